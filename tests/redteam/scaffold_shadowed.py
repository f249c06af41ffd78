del FINAL_VAR
# ---
del context
# ---
from json import dumps as FINAL_VAR, loads as context
# ---
import re as SHOW_VARS
# ---
for FINAL in range(3):
    pass
# ---
with_scope = [context := 1, FINAL_VAR := 2]
# ---
context_0 = "forged"
# ---
try:
    FINAL_VAR.__class__.__call__ = None
except BaseException as error:
    print(type(error).__name__)
try:
    FINAL_VAR.__code__ = (lambda x: x).__code__
except BaseException as error:
    print(type(error).__name__)
# ---
g = (lambda: 0).__globals__
g.clear()

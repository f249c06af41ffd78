deep = []
for _ in range(100000):
    deep = [deep]
for act in (lambda: repr(deep), lambda: str(deep), lambda: deep == deep[0], lambda: hash(tuple(deep)), lambda: FINAL_VAR(deep)):
    try:
        act()
    except BaseException as error:
        print(type(error).__name__)
# ---
import copy, json, pickle
for act in (lambda: json.dumps(deep), lambda: json.loads("[" * 100000), lambda: copy.deepcopy(deep), lambda: pickle.dumps(deep)):
    try:
        act()
    except BaseException as error:
        print(type(error).__name__)
# ---
del deep
# ---
d = {}
d["d"] = d
l = [d]
l.append(l)
FINAL_VAR("d")
FINAL_VAR(l)

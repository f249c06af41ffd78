try:
    import builtins
except ImportError:
    import sys
    builtins = sys.modules["builtins"]
for name in list(vars(builtins)):
    try:
        setattr(builtins, name, None)
    except BaseException:
        pass
# ---
try:
    for name in list(__builtins__):
        __builtins__[name] = lambda *a, **k: 1 / 0
except BaseException as error:
    pass
# ---
def show(*a, **k):
    raise SystemExit
print = len = str = repr = type = dict = isinstance = show
__builtins__ = None

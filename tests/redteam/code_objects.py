# Hand-made bytecode and constants.
def f():
    return 1

code = f.__code__
for change in ({"co_consts": ()}, {"co_code": b"\xff" * 64}, {"co_code": b"d\xffS\x00"}, {"co_names": ("open",)},
               {"co_stacksize": 0}, {"co_nlocals": 10**6}, {"co_varnames": ("a",) * 1000}):
    try:
        f.__code__ = code.replace(**change)
        print(f())
    except BaseException as error:
        print(type(error).__name__)
# ---
try:
    type(code)(0, 0, 0, 0, 0, 0, b"", (), (), (), "", "", 0, b"")
except BaseException as error:
    print(type(error).__name__)

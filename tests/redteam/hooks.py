# Hooks that run when the host side of the REPL touches values.
class Evil:
    def __eq__(self, other):
        while True:
            pass

    def __hash__(self):
        return hash("context")

    def __repr__(self):
        while True:
            pass

    __str__ = __len__ = __bool__ = __iter__ = __repr__

evil = Evil()
values = [evil]
FINAL_VAR = evil
context = evil
# ---
class Late:
    def __del__(self):
        global FINAL_VAR, context
        FINAL_VAR = context = None
        while True:
            pass

SHOW_VARS = Late()
del SHOW_VARS
# ---
class Name(str):
    def __eq__(self, other):
        raise SystemExit

    __hash__ = str.__hash__

globals_of = (lambda: 0).__globals__
globals_of[Name("FINAL_VAR")] = 1
globals_of[Name("fresh")] = 1
globals_of[object()] = 2
globals_of[(1, 2)] = 3

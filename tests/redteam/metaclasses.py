class Meta(type):
    def __instancecheck__(cls, other):
        while True:
            pass

    __subclasscheck__ = __instancecheck__

    def __getattribute__(cls, name):
        raise SystemExit(name)

    @classmethod
    def __prepare__(cls, name, bases):
        return {}

class Trap(metaclass=Meta):
    pass

FINAL_VAR = SHOW_VARS = Trap
trap = Trap
# ---
class FINAL_VAR:
    def __new__(cls, *args):
        return "mine"

class context(str):
    pass

def SHOW_VARS():
    return "mine"

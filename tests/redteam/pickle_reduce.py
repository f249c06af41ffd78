import pickle

class Run:
    def __reduce__(self):
        import os
        return (os.system, ("id",))

try:
    pickle.loads(pickle.dumps(Run()))
    print("loaded")
except BaseException as error:
    print(type(error).__name__)
try:
    print(pickle.loads(b"cposix\nsystem\n(S'id'\ntR."))
except BaseException as error:
    print(type(error).__name__)
try:
    handle = pickle.loads(b"cbuiltins\nopen\n(S'/etc/passwd'\ntR.")
    print("ESCAPED", handle.read())
except BaseException as error:
    print(type(error).__name__)

# The classic: from a literal to every class, to whatever can start a process.
def walk(cls, seen):
    for sub in type.__subclasses__(cls) if cls is type else cls.__subclasses__():
        if sub not in seen:
            seen.add(sub)
            try:
                walk(sub, seen)
            except TypeError:
                pass

seen = set()
walk(().__class__.__base__, seen)
names = {c.__name__ for c in seen}
for name in ("Popen", "socket", "CDLL", "FileIO"):
    if name in names:
        cls = next(c for c in seen if c.__name__ == name)
        try:
            if name == "FileIO":
                cls("/etc/passwd").read()
            elif name == "Popen":
                cls(["id"])
            else:
                cls()
            print("ESCAPED", name)
        except BaseException as error:
            print(name, type(error).__name__)

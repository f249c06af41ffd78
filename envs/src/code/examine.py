# Runs inside the process sandbox, for `code`. Two processes: one runs the candidate, the other the tests. The first
# is made before the tests are read, holds no way to this one but a pair of pipes, and answers calls with data. The
# verdict is a word that only this process reads, written after the last assertion.
import ast, builtins, collections, datetime, decimal, fractions, importlib, json, os, sys, types

# The work folder is the candidate's: nothing is imported from there.
sys.path[:] = [path for path in sys.path if path not in ("", ".", os.getcwd())]

LIMIT = 64 << 20


class Undefined(Exception):
    """The other side has no such thing, or does not give it."""


class Remote:
    """Something that lives on the other side and is not data. It is equal to nothing but itself."""

    __slots__ = ("_peer", "_key", "_kind")

    def __init__(self, peer, key, kind):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_kind", kind)

    def _ask(self, what, *rest):
        return self._peer.ask([what, self._key, *rest])

    def __call__(self, *args, **kwargs):
        return self._peer.call(self._key, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name, value):
        self._ask("set", name, self._peer.encode(value))

    def __getitem__(self, key):
        return self._ask("item", self._peer.encode(key))

    def __len__(self):
        return self._ask("len")

    def __bool__(self):
        return self._ask("bool") is True

    def __iter__(self):
        return iter(self._ask("list"))

    def __next__(self):
        return self._ask("next")

    def __str__(self):
        return self._ask("str")

    def __repr__(self):
        return self._ask("repr")

    def __eq__(self, other):
        if type(other) is Remote and other._peer is self._peer:
            return other._key == self._key or self._ask("eq", self._peer.encode(other)) is True
        return False

    def __hash__(self):
        return hash(self._key)


EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}


class Peer:
    """One end of the pair of pipes. Both ends speak alike; `open_handed` says whether any attribute may be asked for."""

    def __init__(self, read, write, open_handed, export):
        self.read, self.write = read, write
        self.open_handed = open_handed
        self.export = export
        self.buffer = bytearray()
        self.kept, self.keys = [], {}

    # Data as JSON: a list is `[name, ...]`, everything else is itself.
    def encode(self, value, depth=0):
        if depth > 200:
            raise RecursionError("a value nests too deeply")
        down = lambda item: self.encode(item, depth + 1)
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is Remote:
            if value._peer is not self:
                raise Undefined("a value of another side")
            return ["yours", value._key]
        if isinstance(value, int) and not isinstance(value, bool):
            return ["int", hex(int(value))] if abs(int(value)) >> 62 else int(value)
        if isinstance(value, float):
            return ["float", float.__repr__(value)]
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (bytes, bytearray)):
            return ["bytearray" if isinstance(value, bytearray) else "bytes", bytes(value).hex()]
        if isinstance(value, tuple):
            return ["tuple", *[down(item) for item in tuple.__iter__(value)]]
        if isinstance(value, list):
            return ["list", *[down(item) for item in list.__iter__(value)]]
        if isinstance(value, dict):
            return ["dict", *[[down(key), down(item)] for key, item in dict.items(value)]]
        if isinstance(value, frozenset):
            return ["frozenset", *[down(item) for item in frozenset.__iter__(value)]]
        if isinstance(value, set):
            return ["set", *[down(item) for item in set.__iter__(value)]]
        if isinstance(value, collections.deque):
            return ["deque", *[down(item) for item in collections.deque.__iter__(value)]]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        if kind is complex:
            return ["complex", float.__repr__(value.real), float.__repr__(value.imag)]
        if kind is decimal.Decimal:
            return ["decimal", str(value)]
        if kind is fractions.Fraction:
            return ["fraction", hex(value.numerator), hex(value.denominator)]
        if kind in (datetime.date, datetime.datetime, datetime.time):
            return [kind.__name__, value.isoformat()]
        if kind is datetime.timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if not self.open_handed and kind is types.BuiltinFunctionType and vars(builtins).get(value.__name__) is value:
            return ["builtin", value.__name__]
        if kind is type and TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        if value is NotImplemented or value is Ellipsis:
            return ["constant", repr(value)]
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            return down(value.tolist())
        if not self.export(value):
            raise Undefined("a value of the type `%s` cannot be given to the other side" % kind.__name__)
        key = self.keys.get(id(value))
        if key is None:
            key = self.keys[id(value)] = len(self.kept)
            self.kept.append(value)
        return ["mine", key, "class" if isinstance(value, type) else kind.__name__]

    def decode(self, data, depth=0):
        if depth > 250:
            raise RecursionError("a value nests too deeply")
        if not isinstance(data, list):
            return data
        down = lambda item: self.decode(item, depth + 1)
        name, rest = data[0], data[1:]
        if name == "yours":
            return self.kept[rest[0]]
        if name == "mine":
            return Remote(self, int(rest[0]), str(rest[1]))
        if name == "dict":
            return {down(key): down(value) for key, value in rest}
        if name in ("list", "tuple", "set", "frozenset", "deque"):
            make = collections.deque if name == "deque" else TYPES[name]
            return make(down(item) for item in rest)
        if name == "int":
            return int(rest[0], 16)
        if name == "float":
            return float(rest[0])
        if name in ("bytes", "bytearray"):
            return TYPES[name].fromhex(rest[0])
        if name == "range":
            return range(*rest)
        if name == "complex":
            return complex(float(rest[0]), float(rest[1]))
        if name == "decimal":
            return decimal.Decimal(rest[0])
        if name == "fraction":
            return fractions.Fraction(int(rest[0], 16), int(rest[1], 16))
        if name in ("date", "datetime", "time"):
            return getattr(datetime, name).fromisoformat(rest[0])
        if name == "timedelta":
            return datetime.timedelta(*rest)
        if name == "type":
            return TYPES[rest[0]]
        if name == "builtin" and self.open_handed:
            return vars(builtins)[rest[0]]
        if name == "constant":
            return NotImplemented if rest[0] == "NotImplemented" else Ellipsis
        raise Undefined("no data: %r" % (name,))

    def send(self, message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.write, data):]

    def receive(self):
        searched = 0
        while True:
            end = self.buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self.buffer[:end])
                del self.buffer[:end + 1]
                return json.loads(line)
            searched = len(self.buffer)
            chunk = os.read(self.read, 1 << 16)
            if not chunk or searched > LIMIT:
                raise EOFError("the other side is gone")
            self.buffer += chunk

    def ask(self, message):
        """Sends a question and serves the other side's until the answer comes."""
        self.send(message)
        while True:
            answer = self.receive()
            if answer[0] == "value":
                return self.decode(answer[1])
            if answer[0] == "called":
                return answer
            if answer[0] == "raised":
                kind = EXCEPTIONS.get(answer[1], Exception)
                if kind in (SystemExit, KeyboardInterrupt, GeneratorExit):
                    kind = Exception
                try:
                    error = kind(*[self.decode(item) for item in answer[2]])
                except Exception:
                    error = Exception(answer[1])
                # A call that says that an iteration is over would end a loop around it, here, and what the loop tests.
                if message[0] != "next" and isinstance(error, (StopIteration, StopAsyncIteration)):
                    error = RuntimeError("%s was raised" % type(error).__name__)
                raise error
            self.serve(answer)

    def call(self, key, args, kwargs):
        answer = self.ask(["call", key, [self.encode(arg) for arg in args],
                           [[name, self.encode(value)] for name, value in kwargs.items()]])
        # What the function did to its arguments.
        for position, changed in answer[2]:
            if not isinstance(position, bool) and isinstance(position, int) and 0 <= position < len(args):
                update(args[position], self.decode(changed))
        return self.decode(answer[1])

    def serve(self, message):
        try:
            answer = self.answer(message)
        except BaseException as error:
            given = []
            for item in getattr(error, "args", ())[:4]:
                try:
                    given.append(self.encode(item))
                except BaseException:
                    given.append("?")
            names = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in EXCEPTIONS]
            answer = ["raised", names[0] if names else "Exception", given]
        self.send(answer)

    def answer(self, message):
        what, key, *rest = message
        if what == "name":
            return ["value", self.encode(self.names[rest[0]])]
        value = self.kept[key]
        if what == "call":
            args = [self.decode(item) for item in rest[0]]
            kwargs = {name: self.decode(item) for name, item in rest[1]}
            result = value(*args, **kwargs)
            encoded = self.encode(result)
            changed = []
            for position, before in enumerate(rest[0]):
                if isinstance(before, list) and before[0] in ("list", "dict", "set", "bytearray", "deque"):
                    after = self.encode(args[position])
                    if after != before:
                        changed.append([position, after])
            return ["called", encoded, changed]
        if not self.open_handed and what not in ("get", "set", "list", "next", "eq"):
            raise Undefined(what)
        if what in ("get", "set"):
            name = rest[0]
            if not isinstance(name, str) or name.startswith("_"):
                raise AttributeError(name)
            if not self.open_handed and not of_tests(type(value)):
                raise AttributeError(name)
            if what == "get":
                return ["value", self.encode(getattr(value, name))]
            setattr(value, name, self.decode(rest[1]))
            return ["value", None]
        if what == "item":
            return ["value", self.encode(value[self.decode(rest[0])])]
        if what == "len":
            return ["value", len(value)]
        if what == "bool":
            return ["value", bool(value)]
        if what == "list":
            return ["value", ["list", *[self.encode(item) for item in value]]]
        if what == "next":
            return ["value", self.encode(next(value))]
        if what == "str":
            return ["value", str(value)]
        if what == "repr":
            return ["value", repr(value)]
        if what == "eq":
            return ["value", bool(value == self.decode(rest[0]))]
        raise Undefined(what)


def update(target, value):
    """Makes a container what another one is."""
    if type(target) is not type(value):
        return
    if isinstance(target, (list, bytearray)):
        target[:] = value
    elif isinstance(target, (dict, set)):
        target.clear()
        target.update(value)
    elif isinstance(target, collections.deque):
        target.clear()
        target.extend(value)


def candidate(read, write):
    """The candidate's process: its code, then its answers."""
    peer = Peer(read, write, True, lambda value: not isinstance(value, types.ModuleType))
    space = {"__name__": "candidate", "__builtins__": builtins}
    with open("candidate.py", encoding="utf-8", errors="surrogatepass") as file:
        source = file.read()
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10000))
    try:
        exec(compile(source, "<candidate>", "exec"), space)
    except BaseException as error:
        peer.send(["failed", ("%s: %s" % (type(error).__name__, error))[:500]])
        os._exit(0)
    peer.names = space
    names = []
    for name, value in list(space.items()):
        if isinstance(name, str) and not name.startswith("__") and not isinstance(value, types.ModuleType):
            names.append(name)
    peer.send(["ready", names])
    while True:
        peer.serve(peer.receive())


def bring(imports, used, modules, space):
    """Modules that the tests use and the candidate imports are there, as they are in one interpreter: those of the
    standard library, under their own names, and none in place of a builtin."""
    standard = getattr(sys, "stdlib_module_names", ())
    for line in imports:
        try:
            statements = ast.parse(line).body
        except SyntaxError:
            continue
        for statement in statements:
            if isinstance(statement, ast.Import):
                for name in statement.names:
                    root = name.name.split(".")[0]
                    if name.asname is None and root in standard and root in modules:
                        importlib.import_module(name.name)
                        space[root] = sys.modules[root]
            elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
                if statement.module.split(".")[0] not in standard:
                    continue
                module = importlib.import_module(statement.module)
                wanted = {name.name for name in statement.names if name.asname is None}
                for name in vars(module) if "*" in wanted else wanted:
                    if name in used and not hasattr(builtins, name) and hasattr(module, name):
                        space[name] = getattr(module, name)
    for name in modules:
        if name in standard and name not in space and name not in ("test", "this", "antigravity", "idlelib"):
            space[name] = importlib.import_module(name)


def where(error, at, source):
    """The line of the tests that an error came from."""
    line, trace = 1, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<%s>" % at:
            line = trace.tb_lineno
        trace = trace.tb_next
    return source.splitlines()[line - 1].strip()[:200]


def of_tests(kind):
    """Whether a class is one of the tests' own."""
    return kind.__module__ == "__main__" and kind not in (Remote, Peer, Undefined)


def exported(value):
    """What the tests give away: functions to call, and objects of their own classes."""
    kind = type(value)
    if isinstance(value, type):
        return of_tests(value)
    if of_tests(kind):
        return True
    if kind is types.MethodType:
        return of_tests(type(value.__self__))
    return kind in (types.FunctionType, types.BuiltinFunctionType) or hasattr(kind, "__next__")


def ends_well(error):
    """Whether an exit is that of `unittest.main()` after tests that passed."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals.get("__name__") == "unittest.main" and not error.code


def main():
    down, up = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            read, write = os.dup2(down[0], 10), os.dup2(up[1], 11)
            os.closerange(3, 10)
            os.closerange(12, 256)
            candidate(read, write)
        finally:
            os._exit(1)
    os.close(down[0])
    os.close(up[1])
    out = os.dup(1)
    job = json.load(open(0, encoding="utf-8", closefd=False))
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    os.dup2(0, 1)
    word = job.pop("word")
    peer = Peer(up[0], down[1], False, exported)

    def report(kind, text):
        # Half a surrogate pair is no JSON to the host.
        text = text[:500].encode("utf-8", "replace").decode()
        os.write(out, json.dumps({"word": word, "verdict": kind, "text": text}).encode() + b"\n")
        os._exit(0)

    try:
        hello = peer.receive()
    except BaseException:
        report("no_candidate", "the candidate's process ended before it was ready")
    if hello[0] != "ready":
        report("no_candidate", str(hello[1]))
    # The tests are the main program, so what they keep behind `__name__ == "__main__"` runs.
    this = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    space = vars(sys.modules["__main__"])
    space["__builtins__"] = builtins
    at = "tests"
    try:
        # What stands before the function in a task is the task's, not the candidate's.
        try:
            exec(compile(job["before"], "<before>", "exec"), space)
            trees = [ast.parse(source) for _, source in job["tests"]]
        except BaseException as error:
            report("bad_tests", "%s: %s" % (type(error).__name__, error))
        used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = {name for name in hello[1] if isinstance(name, str) and name.isidentifier()}
        if job["entry"]:
            names &= {job["entry"]}
        else:
            names &= used
            # A name that is asked for attributes and never called, as a module is.
            every = [node for tree in trees for node in ast.walk(tree)]
            asked = {node.value.id for node in every if type(node) is ast.Attribute and type(node.value) is ast.Name}
            called = {node.func.id for node in every if type(node) is ast.Call and type(node.func) is ast.Name}
            bring(job["imports"], used, sorted(asked - called), space)
            # A candidate's `len` or `set` is the tests' own, unless there is nothing else of its that they use.
            own = {name for name in names if not hasattr(builtins, name)}
            names = {name for name in own or names if name not in space}
        for name in sorted(names):
            try:
                space[name] = peer.ask(["name", 0, name])
            except Undefined:
                pass
        if job["entry"] and job["entry"] not in space:
            report("no_candidate", "there is no `%s`" % job["entry"])
        if job["entry"]:
            space["candidate"] = space[job["entry"]]
        for at, source in job["tests"]:
            try:
                exec(compile(source, "<%s>" % at, "exec"), space)
            except SystemExit as error:
                if not ends_well(error):
                    raise
    except EOFError as error:
        report("failed", "%s: %s" % (at, error))
    except AssertionError as error:
        report("failed", "%s: not true: %s %s" % (at, where(error, at, source), error))
    except BaseException as error:
        report("failed", "%s: %s: %s" % (at, type(error).__name__, error))
    sys.modules["__main__"] = this
    report("passed", "")


main()

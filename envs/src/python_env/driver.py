# Runs an author's file. The host calls `environment(request)`; what it answers are plain values.
#
# Whatever goes wrong in the author's code comes back as {"error": {"where", "said"}}: nothing here is shown to a model.
import inspect
import math
import sys
from types import ModuleType

FUNCTIONS = {"init": ("row",), "step": ("action",), "reward": ("response", "row"), "metrics": ()}
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("observation", "observations", "reward", "done", "truncated", "metadata")
FRAMES = 12

state = {"names": {}, "functions": {}, "file": "", "lines": [], "row": None}


class Refused(Exception):
    def __init__(self, where, said):
        super().__init__(said)
        self.where = where


def environment(request):
    try:
        return SERVE[request["op"]](request)
    except Refused as refused:
        return {"error": {"where": refused.where, "said": str(refused)}}


def load(request):
    file, source = request["file"], request["source"]
    module = ModuleType("environment", None)
    names = module.__dict__
    main = sys.modules["__main__"]
    offered = {"__file__": file, "llm_query": llm_query, "llm_query_batched": llm_query_batched, "judge": main.judge}
    names.update(offered)
    state.update(names=names, file=file, lines=source.splitlines())
    # Data classes and pickles look for the module of a class.
    sys.modules["environment"] = module
    code = guarded("", compile, source, file, "exec")
    guarded("", exec, code, names)
    if "params" in names:
        raise Refused("params", "is where a suite's parameters arrive; declare them as `PARAMS = {\"name\": default}`")
    functions = {name: function(name, arguments) for name, arguments in FUNCTIONS.items() if name in names}
    state["functions"] = functions
    if "reward" not in functions and "step" not in functions:
        raise Refused("", "defines neither `reward(response, row)` nor `step(action)`")
    if "reward" in functions and "step" in functions:
        raise Refused("reward", "and `step` exclude each other: `reward` ends an episode after one turn, and `step` answers "
                      "every turn; if `reward` is a function of your own, give it another name")
    return {
        "functions": list(functions),
        "params": declared("PARAMS", dict, {}),
        "columns": declared("COLUMNS", (list, tuple), []),
        "doc": names.get("__doc__") or "",
    }


def function(name, arguments):
    value = state["names"][name]
    if not callable(value) or isinstance(value, type):
        raise Refused(name, f"must be a function, got {kind(value)}")
    if inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
        raise Refused(name, "must be a plain function: neither `async` nor with `yield`")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return value
    try:
        signature.bind(*arguments)
    except TypeError:
        raise Refused(name, f"must take ({', '.join(arguments)}), and takes {signature}") from None
    return value


def declared(name, types, default):
    value = state["names"].get(name, default)
    if not isinstance(value, types):
        raise Refused(name, f"must be a {'dict' if types is dict else 'list'}, got {kind(value)}")
    for item in value:
        if not isinstance(item, str):
            raise Refused(name, f"must hold texts, got {short(item)}")
    return plain(name, value)


def configure(request):
    state["names"]["params"] = {**state["names"].get("PARAMS", {}), **request["params"]}
    return {}


def init(request):
    row = request["row"]
    if request["context"]:
        row["extra_info"]["context_text"] = sys.modules["__main__"].context
    state["row"] = row
    state["names"]["max_turns"] = request["max_turns"]
    said = None
    if "init" in state["functions"]:
        said = guarded("init", state["functions"]["init"], row)
    return {"messages": None if said is None else messages("init", said)}


def step(request):
    action, functions = request["action"], state["functions"]
    if "reward" in functions:
        value = guarded("reward", functions["reward"], action, state["row"]) if request["graded"] else 0.0
        answer = {"reward": number("reward", value), "done": True, "truncated": False, "messages": [], "metadata": {}}
    else:
        answer = read_step(guarded("step", functions["step"], action))
    if "metrics" in functions:
        answer["metrics"] = metrics(guarded("metrics", functions["metrics"]))
    return answer


def read_step(said):
    if isinstance(said, tuple):
        if len(said) != 3:
            raise Refused("step", f"must return (observation, reward, done), got {len(said)} values")
        said = dict(zip(("observation", "reward", "done"), said))
    if not isinstance(said, dict):
        raise Refused("step", f"must return (observation, reward, done) or a dict of these, got {short(said)}")
    for key in said:
        if key not in KEYS:
            raise Refused("step", f"returned the key {short(key)}; known are {', '.join(KEYS)}")
    for key in ("reward", "done"):
        if key not in said:
            raise Refused("step", f"returned no `{key}`")
    for key in ("done", "truncated"):
        if not isinstance(said.get(key, False), bool):
            raise Refused("step", f"returned the `{key}` {short(said[key])}, expected True or False")
    if "observation" in said and "observations" in said:
        raise Refused("step", "returned both `observation` and `observations`")
    seen = said.get("observation", said.get("observations"))
    done, truncated = said["done"], said.get("truncated", False)
    if seen is None and not done and not truncated:
        raise Refused("step", "returned no observation although the episode goes on: the policy would have nothing to answer")
    metadata = said.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        raise Refused("step", "must return `metadata` as a dict with texts as keys")
    return {
        "reward": number("step", said["reward"]),
        "done": done,
        "truncated": truncated,
        "messages": [] if seen is None else messages("step", seen),
        "metadata": plain("step", metadata),
    }


def number(where, value):
    try:
        finite = math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        finite = False
    if not finite or isinstance(value, (str, bytes)):
        what = "returned" if where == "reward" else "returned the reward"
        raise Refused("reward", f"{'`step` ' if where == 'step' else ''}{what} {short(value)}, expected a finite number")
    return float(value)


def messages(where, said):
    if isinstance(said, (str, dict)):
        said = [said]
    if not isinstance(said, (list, tuple)):
        raise Refused(where, f"must return a text or a list of messages, got {short(said)}")
    read = []
    for message in said:
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        good = (
            isinstance(message, dict)
            and set(message) == {"role", "content"}
            and message["role"] in ROLES
            and isinstance(message["content"], str)
        )
        if not good:
            raise Refused(where, 'must return messages such as {"role": "user", "content": "..."}, got ' + short(message))
        read.append([message["role"], message["content"]])
    if not read and where == "init":
        raise Refused(where, "returned no messages: the policy would have nothing to answer")
    return read


def metrics(said):
    if not isinstance(said, dict):
        raise Refused("metrics", f"must return a dict, got {short(said)}")
    for key, value in said.items():
        if not isinstance(key, str) or not isinstance(value, (bool, int, float, str)):
            raise Refused("metrics", f"must return texts with numbers, truths or texts, got {short(key)}: {short(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused("metrics", f"returned {value} as {short(key)}, expected a finite number")
    return said


def plain(where, value, depth=0):
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if depth < 20 and isinstance(value, (list, tuple)):
        return [plain(where, item, depth + 1) for item in value]
    if depth < 20 and isinstance(value, dict):
        return {str(key): plain(where, item, depth + 1) for key, item in value.items()}
    raise Refused(where, f"holds {short(value)}; expected what JSON can hold")


def kind(value):
    return "a class" if isinstance(value, type) else type(value).__name__


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = f"a {kind(value)}"
    return text if len(text) <= 200 else text[:200] + "..."


def guarded(where, function, *arguments):
    try:
        return function(*arguments)
    except BaseException as error:
        raise Refused(where, describe(error)) from None


def describe(error):
    # Written out by hand: the author's code may have changed Python's own `traceback`.
    said = [headline(error), *frames(error)]
    seen, cause = [error], error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and cause not in seen and len(seen) < 4:
        said += ["after " + headline(cause), *frames(cause)]
        seen.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(said)


def headline(error):
    try:
        text = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except Exception:
        text = "(its text cannot be made)"
    text = text if len(text) <= 2000 else text[:2000] + "..."
    return "raised " + type(error).__name__ + (f": {text}" if text else "")


def frames(error):
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == state["file"]:
            name = "" if code.co_name == "<module>" else f", in {code.co_name}"
            places.append((trace.tb_lineno, name))
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == state["file"] and error.lineno:
        places.append((error.lineno, ""))
    if len(places) > FRAMES:
        places = places[: FRAMES // 2] + [None] + places[-FRAMES // 2 :]
    lines = []
    for place in places:
        if place is None:
            lines.append("  ...")
            continue
        line, name = place
        lines.append(f'  File "{state["file"]}", line {line}{name}')
        if 0 < line <= len(state["lines"]) and state["lines"][line - 1].strip():
            lines.append("    " + state["lines"][line - 1].strip()[:400])
    return lines


SERVE = {"load": load, "configure": configure, "init": init, "step": step}

"""A REPL in a sandbox, from any Python: a client of `espalier serve sandbox`. Standard library only.

    with EspalierREPL(context=document, functions={"llm_query": ask_my_model}) as repl:
        result = repl.execute("print(len(context)); FINAL(llm_query(context[:1000]))")
        print(result.stdout, result.final_answer)
"""

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field


class SandboxError(Exception):
    """The server's refusal: `type` is one of those in docs/sandbox-http.md, `status` the HTTP status."""

    def __init__(self, status, type, message):
        super().__init__(f"{message} ({type})")
        self.status, self.type = status, type


@dataclass
class REPLResult:
    """What a block did; `raw` is the server's answer."""

    stdout: str
    stderr: str
    locals: dict
    execution_time: float
    final_answer: str | None = None
    raw: dict = field(default_factory=dict, repr=False)


class EspalierREPL:
    """A REPL of its own. `functions` maps names to Python functions: `llm_query`, `llm_query_batched`, `rlm_query`,
    `rlm_query_batched`, and any others, which become tools. They run here, the block waits in the sandbox."""

    SCAFFOLD = ("llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched")

    def __init__(self, context=None, functions=None, url="http://127.0.0.1:8100", api_key=None, **options):
        self.url, self.key = url.rstrip("/"), api_key or os.environ.get("ESPALIER_SANDBOX_KEY")
        self.functions = dict(functions or {})
        options["functions"] = [name for name in self.functions if name in self.SCAFFOLD]
        options.setdefault("tools", [])
        options["tools"] += [{"name": name} for name in self.functions if name not in self.SCAFFOLD]
        if context is not None:
            options["context"] = context
        self.id = self._post("/v1/repls", options)["repl"]

    def execute(self, code, timeout_s=None):
        """Runs a block to its end and answers the calls that it makes."""
        started = time.perf_counter()
        answer = self._repl("execute", {"code": code} | ({"timeout_s": timeout_s} if timeout_s else {}))
        while "outcome" not in answer:
            if "call" in answer:
                answer = self._repl("return", self._serve(answer["call"]))
            else:
                answer = self._repl("wait", {})
        stderr = answer["stderr"]
        if answer["outcome"] in ("timed_out", "memory_exceeded", "killed", "host_error"):
            stderr += f"[{answer['outcome']}] {answer.get('error', {}).get('message', '')}".rstrip() + "\n"
        took = time.perf_counter() - started
        return REPLResult(answer["stdout"], stderr, answer["variables"], took, answer["final_answer"], answer)

    def bind(self, name, value):
        self._repl("bind", {"name": name, "value": value})

    def add_context(self, value):
        return self._repl("bind", {"context": value})["bound"]

    def get(self, name):
        return self._repl("get", {"name": name})["value"]

    def fork(self, seed=None):
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, id=self._repl("fork", {} if seed is None else {"seed": seed})["repl"])
        return fork

    def reset(self):
        self._repl("reset", {})

    def close(self):
        if self.id is not None:
            self._send("DELETE", f"/v1/repls/{self.id}")
            self.id = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except (SandboxError, OSError):
            pass  # The server closes what nobody uses.

    def _serve(self, call):
        which = {"block": call["block"], "index": call["index"]}
        try:
            answer = self.functions[call["function"]](*call["args"], **call["kwargs"])
            json.dumps(answer, allow_nan=False)
            return which | {"return": answer}
        except Exception as error:
            return which | {"raise": {"type": type(error).__name__, "message": str(error)}}

    def _repl(self, what, body):
        return self._post(f"/v1/repls/{self.id}/{what}", body)

    def _post(self, path, body):
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method, path, body=None):
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=110) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            try:
                said = json.load(error)["error"]
            except (ValueError, KeyError, TypeError):
                said = {"type": "http", "message": f"{method} {path}: {error}"}
            raise SandboxError(error.code, said["type"], said["message"]) from None

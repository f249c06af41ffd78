"""The `rlms` package (`pip install rlms`, `import rlm`) with this sandbox instead of its in-process REPL.

    import rlms_environment
    rlms_environment.install(url="http://127.0.0.1:8100")
    RLM(backend="openai", environment="local", ...).completion(prompt)

`install` puts the class where the package looks for its `local` environment. Its blocks then run in a sandbox: no files,
no network, limits on time and memory; queries go back to the package's own handler, in this process.
"""

import rlm.core.rlm
import rlm.environments
from rlm.core.types import REPLResult
from rlm.environments import LocalREPL

from espalier_sandbox import EspalierREPL

# The package's way to answer is `answer["ready"] = True`; here that is a `FINAL(...)`.
SETUP = """
class _Answer(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        if key == "ready" and value:
            FINAL(self.get("content", ""))
answer = _Answer(content="", ready=False)
"""


class EspalierEnvironment(LocalREPL):
    """Keeps the package's queries and book-keeping; replaces where code runs."""

    sandbox = {}

    def setup(self):
        super().setup()
        tools = {name: value for name, value in self.custom_tools.items() if callable(value)}
        functions = {
            "llm_query": self._llm_query,
            "llm_query_batched": self._llm_query_batched,
            "rlm_query": self._rlm_query,
            "rlm_query_batched": self._rlm_query_batched,
        }
        self.repl = EspalierREPL(functions=functions | tools, **self.sandbox)
        self.repl.execute(SETUP)
        for name, value in self.custom_tools.items():
            if not callable(value):
                self.repl.bind(name, value)

    def add_context(self, context_payload, context_index=None):
        self.repl.add_context(context_payload)
        self._context_count += 1
        return self._context_count - 1

    def add_history(self, message_history, history_index=None):
        index = self._history_count if history_index is None else history_index
        self.repl.bind(f"history_{index}", message_history)
        if index == 0:
            self.repl.bind("history", message_history)
        self._history_count = max(self._history_count, index + 1)
        return index

    def execute_code(self, code):
        self._pending_llm_calls = []
        result = self.repl.execute(code)
        final_answer = result.final_answer
        if result.locals.get("answer") != "_Answer":
            # The model bound the name anew; a plain dict may still say that it is ready.
            plain = self.repl.get("answer") if result.locals.get("answer") == "dict" else {}
            if final_answer is None and plain.get("ready"):
                final_answer = str(plain.get("content", ""))
            self.repl.execute(SETUP)
        variables = {name: kind for name, kind in result.locals.items() if name != "answer"}
        return REPLResult(
            stdout=result.stdout,
            stderr=result.stderr,
            locals=variables,
            execution_time=result.execution_time,
            rlm_calls=self._pending_llm_calls.copy(),
            final_answer=final_answer,
        )

    def cleanup(self):
        if hasattr(self, "repl"):
            self.repl.close()
        super().cleanup()


def install(**sandbox):
    """`environment="local"` means the sandbox from here on; `sandbox` goes to `EspalierREPL`."""
    EspalierEnvironment.sandbox = sandbox
    original = rlm.environments.get_environment

    def get_environment(name, arguments):
        return EspalierEnvironment(**arguments) if name == "local" else original(name, arguments)

    rlm.core.rlm.get_environment = get_environment

"""A recursive language model's loop in forty lines, with a sandbox for a REPL and a script for a model.

    espalier serve sandbox &
    python3 toy_rlm.py http://127.0.0.1:8100

The model here is two functions; put your own behind `policy` and `helper`.
"""

import re
import sys

from espalier_sandbox import EspalierREPL

BLOCK = re.compile(r"```repl\s*\n(.*?)```", re.DOTALL)
TURNS = 6


def run(policy, helper, question, context, url):
    """Plays until an answer; `policy` is asked with the conversation, `helper` by the blocks."""
    messages = [{"role": "user", "content": f"Question: {question}\nThe data is in `context`. Answer with FINAL(...)."}]
    queries = {"llm_query": helper, "llm_query_batched": lambda prompts, model=None: [helper(p) for p in prompts]}
    with EspalierREPL(context=context, functions=queries, url=url) as repl:
        for _ in range(TURNS):
            response = policy(messages)
            messages.append({"role": "assistant", "content": response})
            for code in BLOCK.findall(response):
                result = repl.execute(code)
                if result.final_answer is not None:
                    return result.final_answer
                shown = (result.stdout + result.stderr)[:2000] or f"Variables: {result.locals}"
                messages.append({"role": "user", "content": f"Output:\n{shown}"})
    return None


def scripted_policy(messages):
    """Looks first, then asks the helper about each part, then answers."""
    turn = sum(message["role"] == "assistant" for message in messages)
    return [
        "Let me look.\n```repl\nprint(type(context).__name__, len(context))\nparts = context.split('\\n\\n')\n```",
        "```repl\nlabels = llm_query_batched(['Which fruit? ' + part for part in parts])\nprint(labels)\n```",
        "```repl\nfrom collections import Counter\nFINAL(Counter(labels).most_common(1)[0][0])\n```",
    ][min(turn, 2)]


def scripted_helper(prompt, model=None):
    """Names the fruit that the prompt speaks of."""
    return next((fruit for fruit in ("apple", "pear", "plum") if fruit in prompt), "none")


if __name__ == "__main__":
    story = "\n\n".join(["An apple fell."] * 3 + ["A pear was ripe."] * 5 + ["Plums: one plum."] * 2)
    print(run(scripted_policy, scripted_helper, "Which fruit is spoken of most?", story, sys.argv[1]))

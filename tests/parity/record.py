"""Records what skyrl-gym answers to scripted actions, for gsm8k, gsm8k_multi_turn, aime and lcb.

    pip install skyrl-gym==0.4.0
    python tests/parity/record.py            # writes the .jsonl files beside this script
    python tests/parity/record.py --check    # fails where the peer answers otherwise than recorded

One JSON object per episode: `env`, `row` (the data columns), `turns` (`action`, and the peer's `observations`, `reward`
and `done`, and its `metadata` where it is data). The actions are drawn from a seed; nothing here is a model's.
"""

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def group(number):
    """1234567 -> 1,234,567"""
    return f"{number:,}"


def written(draw, number):
    """A way to write a number, and whether it is an announced answer at all."""
    near = number + draw.choice([-10, -1, 1, 2, 100])
    return draw.choice(
        [
            f"#### {number}",
            f"#### {number}.",
            f"#### {number}.0",
            f"#### {number}.00 in all",
            f"#### {group(number)}",
            f"#### ${number}",
            f"#### {number} apples",
            f"####{number}",
            f"####  {number}",
            f"### {number}",
            f"#### -{number}",
            f"#### +{number}",
            f"#### {near}",
            f"#### {near}\nNo: #### {number}",
            f"#### {number}\nOr rather #### {near}",
            f"#### {number}<|im_end|>",
            f"#### {number}\n",
            f"#### **{number}**",
            f"#### \\boxed{{{number}}}",
            f"#### 0{number}",
            f"#### {number},",
            f"#### {number}e0",
            f"#### {number}/1",
            f"#### {number}%",
            f"#### .{number}",
            f"#### ,,,",
            f"#### none",
            f"The answer is {number}.",
            f"\\boxed{{{number}}}",
            "",
            f"so it is {number}\n####\n{number}",
            f"{number} #### {near} #### {number}",
        ]
    )


def sentence(draw):
    return draw.choice(
        [
            "",
            "First I add what there is. ",
            "Half of the boxes are empty, so 12 remain.\n",
            "<think>Let me count: 3 * 4 = 12</think>\n",
            "Prices: $3.50 each, #### is the mark to use. ",
            "Γειά σου — naïve café ☃. ",
        ]
    )


def gsm8k(draw):
    for index in range(320):
        number = draw.choice([0, 1, 7, 42, 72, 109, 1234, 18000, 1234567, 10**9, draw.randrange(1, 5000)])
        truth = draw.choice([str(number)] * 9 + [f"-{number}"])
        row = {"prompt": "A word problem.", "reward_spec": {"method": "rule", "ground_truth": truth}}
        yield "gsm8k", row, [sentence(draw) + written(draw, number)]


def multi_turn(draw):
    for index in range(100):
        number = draw.randrange(1, 20000)
        row = {"prompt": "A word problem.", "reward_spec": {"ground_truth": str(number)}, "extra_info": {}}
        most = draw.choice([None, 1, 2, 3, 4])
        if most is not None and draw.random() < 0.5:
            row["max_turns"] = most
        elif most is not None:
            row["extra_info"]["max_turns"] = most
        actions = [sentence(draw) + written(draw, draw.choice([number, number + 1])) for _ in range(most or 5)]
        yield "gsm8k_multi_turn", row, actions


AIME = [
    ("204", ["204", "$204$", "\\boxed{204}", "204.", "0204", "204.0", "\\text{204}", "204 degrees", "x=204", "2 04"]),
    ("25", ["25", "025", "25^\\circ", "25 units", "\\frac{50}{2}", "25\\%", "+25", "\\$25", "25 dollars", "{25}"]),
    ("1,024", ["1024", "1,024", "1{,}024", "$1,024$", "1 024", "1024 points", "1,02,4"]),
    ("\\frac{3}{4}", ["\\frac34", "\\frac{3}{4}", "frac34", "3/4", "0.75", "\\dfrac{3}{4}", "$\\frac 3 4$"]),
    ("\\sqrt{2}", ["\\sqrt2", "\\sqrt{2}", "sqrt2", "\\sqrt 2", "1.414"]),
    ("(1,2)", ["(1,2)", "(1, 2)", "1,2", "(2,1)", "\\left(1,2\\right)"]),
    ("x+1", ["x+1", "y = x+1", "x + 1", "1+x", "\\text{x+1}"]),
    ("7", ["7 hours", "7\\text{ hours}", "an 7", "a 7", "7 \\text{and} 8", "seven", "7<|im_end|>", "7</answer>", "[7]"]),
    ("30", ["30^{\\circ}", "30\\;", "\\mathrm{30}", "\\textbf{30}", "\\overline{30}", "\"30\"", "30\\ldots", "30\\dots"]),
    ("\\pi", ["\\pi", "\\ \\pi", "pi", "$\\pi$", "\\boxed{\\pi} cm"]),
]


def aime(draw):
    for index in range(330):
        truth, answers = draw.choice(AIME)
        answer = draw.choice(answers + [truth])
        label = draw.choice(["Answer:", "Answer :", "answer: ", "ANSWER:", "**Answer**:", "Answer is", "Final Answer:"])
        text = f"{sentence(draw)}{label} {answer}"
        shape = draw.randrange(8)
        if shape == 0:
            text = f"Answer: 1\n{text}"
        elif shape == 1:
            text = f"{text}\nAnswer: 999"
        elif shape == 2:
            text += "\n" + "so that is what I found. " * draw.choice([2, 11, 12, 13, 20])
        elif shape == 3:
            text = f"{text} <and more>"
        elif shape == 4:
            text = answer
        row = {"prompt": "A problem.", "reward_model": {"style": "rule", "ground_truth": truth}}
        yield "aime", row, [text]


def fenced(code, word="python"):
    return f"Here it is.\n```{word}\n{code}\n```\n"


def functional(*cases):
    return json.dumps(
        [
            {"input": given, "output": wanted, "testtype": "functional", "metadata": {"func_name": "solve"}}
            for given, wanted in cases
        ]
    )


def stdin(*cases):
    return json.dumps([{"input": given, "output": wanted, "testtype": "stdin", "metadata": {}} for given, wanted in cases])


ADD = functional(("1\n2", "3"), ("-5\n5", "0"), ("100\n23", "123"))
PAIR = functional(("[1, 2]", "[2, 1]"), ("[0, 0]", "[0, 0]"))
TEXT = functional(('"ab"', '"ba"'), ('"x y"', '"y x"'))
TRUTH = functional(("4", "true"), ("3", "false"))
HALF = functional(("1", "0.5"), ("3", "1.5"))
SUM = stdin(("3\n1 2 3\n", "6\n"), ("2\n10 -4\n", "6"))
TABLE = stdin(("2\n", "1 2\n2 4\n"), ("1\n", "1\n"))
REAL = stdin(("4\n", "2.0\n"), ("9\n", "3.0\n"))

LCB = [
    (ADD, "def solve(a, b):\n    return a + b"),
    (ADD, "class Solution:\n    def solve(self, a, b):\n        return a + b"),
    (ADD, "def solve(a, b):\n    return a - b"),
    (ADD, "def solve(a, b):\n    return str(a + b)"),
    (ADD, "def solve(a, b):\n    return float(a + b)"),
    (ADD, "def solve(a, b):\n    raise ValueError(a)"),
    (ADD, "def other(a, b):\n    return a + b"),
    (ADD, "def solve(a):\n    return a"),
    (ADD, "def solve(a, b)\n    return a + b"),
    (ADD, "import os\nos._exit(0)"),
    (ADD, "import sys\ndef solve(a, b):\n    sys.exit(0)"),
    (ADD, "print('True')\ndef solve(a, b):\n    print(a + b)\n    return a + b"),
    (ADD, "from functools import reduce\nsolve = lambda *xs: reduce(lambda p, q: p + q, xs)"),
    (PAIR, "def solve(p):\n    return p[::-1]"),
    (PAIR, "def solve(p):\n    return tuple(p[::-1])"),
    (PAIR, "def solve(p):\n    p.reverse()\n    return p"),
    (PAIR, "def solve(p):\n    return sorted(p)"),
    (TEXT, "def solve(s):\n    return s[::-1]"),
    (TEXT, "def solve(s):\n    return s"),
    (TRUTH, "def solve(n):\n    return n % 2 == 0"),
    (TRUTH, "def solve(n):\n    return 1 - n % 2"),
    (HALF, "def solve(n):\n    return n / 2"),
    (HALF, "def solve(n):\n    return n // 2"),
    (SUM, "n = int(input())\nprint(sum(map(int, input().split())))"),
    (SUM, "import sys\ndata = sys.stdin.read().split()\nprint(sum(map(int, data[1:])))"),
    (SUM, "n = int(input())\nprint(sum(map(int, input().split())), end='')"),
    (SUM, "n = int(input())\nprint()\nprint(sum(map(int, input().split())))"),
    (SUM, "n = int(input())\nprint(max(map(int, input().split())))"),
    (SUM, "if __name__ == '__main__':\n    input()\n    print(sum(map(int, input().split())))"),
    (SUM, "def main():\n    input()\n    print(sum(map(int, input().split())))\nmain()"),
    (SUM, "import sys\nfor line in sys.stdin:\n    last = line\nprint(sum(map(int, last.split())))"),
    (SUM, "print(6)"),
    (SUM, "print('6.0')"),
    (SUM, "print('6 ')"),
    (SUM, "print('06')"),
    (SUM, "print('6\\n6')"),
    (SUM, "1/0"),
    (SUM, "input(); input(); input()"),
    (SUM, "raise SystemExit"),
    (TABLE, "n = int(input())\nfor i in range(1, n + 1):\n    print(*[i * j for j in range(1, n + 1)])"),
    (TABLE, "n = int(input())\nfor i in range(1, n + 1):\n    print(*[i * j for j in range(1, n + 1)], '')"),
    (TABLE, "n = int(input())\nprint(*[i * j for i in range(1, n + 1) for j in range(1, n + 1)])"),
    (REAL, "print(int(input()) ** 0.5)"),
    (REAL, "print(int(int(input()) ** 0.5))"),
    (REAL, "print('%.6f' % int(input()) ** 0.5)"),
    (REAL, "print(int(input()) ** 0.5 + 1e-12)"),
]


def lcb(draw):
    for tests, code in LCB:
        row = {"prompt": "A problem.", "reward_spec": {"ground_truth": tests}}
        yield "lcb", row, [fenced(code)]
    good = "def solve(a, b):\n    return a + b"
    bad = "def solve(a, b):\n    return 0"
    for text in [
        good,
        "",
        fenced(good, ""),
        fenced(good, "repl"),
        fenced(bad) + fenced(good),
        fenced(good) + fenced(bad),
        fenced(good).rstrip("`\n"),
        "``` python\n" + good + "\n```",
        f"```python\r\n{good}\n```",
        fenced("") + "nothing",
    ]:
        yield "lcb", {"prompt": "A problem.", "reward_spec": {"ground_truth": ADD}}, [text]


def play(env, row, actions):
    import skyrl_gym

    extras = json.loads(json.dumps(row))
    prompt = [{"role": "user", "content": extras.pop("prompt")}]
    played = skyrl_gym.make(env, env_config={}, extras=extras)
    played.init(prompt)
    turns = []
    for action in actions:
        step = played.step(action)
        turn = {"action": action, "observations": step["observations"], "reward": step["reward"], "done": step["done"]}
        if env == "aime":
            turn["metadata"] = step["metadata"]
        turns.append(turn)
        if step["done"]:
            break
    return {"env": env, "row": row, "turns": turns}


def main():
    check = "--check" in sys.argv[1:]
    wrong = 0
    for name, episodes in [("gsm8k", gsm8k), ("gsm8k_multi_turn", multi_turn), ("aime", aime), ("lcb", lcb)]:
        draw = random.Random(f"parity {name}")
        lines = [json.dumps(play(*episode), ensure_ascii=False) + "\n" for episode in episodes(draw)]
        file = HERE / f"{name}.jsonl"
        turns = sum(len(json.loads(line)["turns"]) for line in lines)
        if check:
            recorded = file.read_text(encoding="utf-8").splitlines(keepends=True)
            different = [i + 1 for i, (a, b) in enumerate(zip(recorded, lines)) if a != b]
            different += list(range(min(len(lines), len(recorded)) + 1, max(len(lines), len(recorded)) + 1))
            wrong += len(different)
            print(f"{name}: {turns} actions, {len(different)} episodes differ {different[:5]}", file=sys.stderr)
        else:
            file.write_text("".join(lines), encoding="utf-8")
            print(f"{name}: {len(lines)} episodes, {turns} actions", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

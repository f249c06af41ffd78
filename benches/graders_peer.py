"""Speed of the graders beside math-verify and skyrl-gym's GSM8K grader, one core each.

usage: graders_peer.py PATH_TO_MATH_PAIRS MATH_JSONL GSM8K_JSONL [ROUNDS]
needs: math-verify and skyrl-gym==0.4.0 (PyPI) in the Python that runs it; math_pairs is
`cargo build -p espalier-graders --example math_pairs`.

Mathematics: every sixteenth pair of benches/math_agreement.py, both sides read and compared each time. GSM8K: the worked
answers of the data as responses, the truths at hand as each side keeps them. The least of the rounds counts on both
sides, since whatever else runs only adds; start-up and reading of the data are not counted. Prints one line per figure.
"""

import json
import logging
import subprocess
import sys
import time

import math_agreement


def ours(binary, pairs, rounds, *flags):
    text = "".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs)
    done = subprocess.run(
        [binary, *flags, "--time", str(rounds)], input=text, capture_output=True, text=True, check=True, timeout=600
    )
    return min(map(float, done.stderr.split()))


def theirs(grade, pairs, rounds):
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        for a, b in pairs:
            grade(a, b)
        seconds.append(time.process_time() - start)
    return min(seconds)


def figure(name, value, unit, must, better="higher"):
    print(json.dumps({"figure": name, "value": round(value, 3), "unit": unit, "must": must, "better": better}), flush=True)


def main():
    from math_verify import parse, verify
    from skyrl_gym.envs.gsm8k.utils import compute_score

    logging.disable(logging.CRITICAL)
    binary, math_data, gsm8k_data = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3

    with open(math_data) as lines:
        answers = [math_agreement.boxed(json.loads(line)["solution"]) for line in lines]
    pairs = [(a, b) for a, b, *_ in math_agreement.pairs(answers)][::16]
    mine = ours(binary, pairs, 20)
    peer = theirs(lambda a, b: verify(parse(f"\\boxed{{{a}}}"), parse(f"\\boxed{{{b}}}")), pairs, rounds)
    figure("math_grade_us", mine / len(pairs) * 1e6, "us", 0.0, "lower")
    figure("math_grade_us_peer", peer / len(pairs) * 1e6, "us", 0.0, "lower")
    figure("math_grade_vs_math_verify", peer / mine, "x", 50.0)

    with open(gsm8k_data) as lines:
        worked = [json.loads(line)["answer"] for line in lines]
    pairs = [(answer.rsplit("#### ")[-1].replace(",", ""), answer) for answer in worked]
    mine = ours(binary, pairs, 20, "--gsm8k")
    peer = theirs(lambda truth, response: compute_score(response, truth), pairs, 20)
    figure("gsm8k_grade_us", mine / len(pairs) * 1e6, "us", 0.0, "lower")
    figure("gsm8k_grade_us_peer", peer / len(pairs) * 1e6, "us", 0.0, "lower")
    figure("gsm8k_grade_vs_skyrl_gym", peer / mine, "x", 5.0)


if __name__ == "__main__":
    main()

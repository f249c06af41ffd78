"""Writes pandas.jsonl: rows as SQLite gives them, and what pandas prints of them.

usage: make_pandas_fixture.py > pandas.jsonl
needs: pandas 3 (the fixture was made with 3.1.1)

A value is null, a string, {"i": "integer"}, {"r": "real, as Python's repr"} or {"b": "hex"}.
"""

import json
import random

import pandas as pd

draw = random.Random(7)


def value(kind):
    if kind == "int":
        return draw.choice([0, 1, -1, 7, -20, 12345, 10**6, 10**12, 2**53 + 1, -(2**63), draw.randrange(10**9)])
    if kind == "small":
        return draw.randrange(-5, 500)
    if kind == "real":
        return draw.choice(
            [0.0, -0.0, 1.0, 0.5, 0.1, -2.25, 1e-7, 1e-6, 123456.789, 1234567.0, 1e7, 99999999.5, 1e15, 1e16, 1e22, 1e100]
            + [1e-300, 0.1 + 0.2, 1 / 3, float("inf"), float("-inf"), 0.0000005, 2.5000005, 1e6, 1000000.5]
            + [draw.random() * 10 ** draw.randrange(-9, 12) for _ in range(8)]
        )
    if kind == "money":
        return round(draw.random() * 1000, 2)
    if kind == "text":
        return draw.choice(
            ["", "a", "Rock", "AC/DC", "two\nlines", "tab\there", "cr\rlf\n", "日本", "né", "back\\slash", " padded ", "NaN"]
            + ["None", "it's", '"quoted"', "x" * 90, "1", "1.5", "\x1b[0m", "😀", "e\u0301"]
        )
    if kind == "blob":
        return draw.choice([b"", b"abc", b"\x00\xff", b"it's", b'"', b"'\"", b"a\nb\t\\", bytes(range(20))])
    return None


KINDS = ["int", "small", "real", "money", "text", "blob", "null"]


def column(rows):
    kinds = draw.choice(
        [[kind] for kind in KINDS]
        + [["small", "null"], ["int", "null"], ["real", "null"], ["money", "null"], ["text", "null"], ["blob", "null"]]
        + [["small", "money"], ["int", "real"], ["int", "real", "null"], ["text", "small"], ["text", "real", "null"]]
        + [["blob", "real"], ["blob", "text"], KINDS]
    )
    return [value(draw.choice(kinds)) for _ in range(rows)]


def written(value):
    if isinstance(value, int):
        return {"i": str(value)}
    if isinstance(value, float):
        return {"r": repr(value)}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    return value


def case(rows, head=None):
    frame = pd.DataFrame(rows)
    whole = frame.to_string(index=False)
    shown = whole
    if len(whole) > 9000:
        shown = "Truncated to 50 lines since returned response too long: " + frame.head(50).to_string(index=False)
    print(json.dumps({"rows": [[written(value) for value in row] for row in rows], "text": shown}, ensure_ascii=False))


case([])
for number in range(400):
    height = draw.choice([1, 2, 3, 5, 9])
    columns = [column(height) for _ in range(draw.choice([1, 1, 2, 3, 6]))]
    case([tuple(column[row] for column in columns) for row in range(height)])
for height in (51, 60, 150, 400, 5000):
    case([(row, draw.choice(["a", "b" * 60]), None if row > 50 else row / 7) for row in range(height)])

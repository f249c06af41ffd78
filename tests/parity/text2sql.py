"""Records what skyrl-gym's text2sql environment answers to scripted actions.

usage: PYTHONHASHSEED=0 text2sql.py DATA > text2sql.jsonl
needs: skyrl-gym 0.4.0 and pandas 3 (recorded with 3.1.1, SQLite 3.40.1)

DATA holds `sql/chinook.sqlite`, `sql/defog/*.sql` and `sql/defog_questions_sqlite.csv`. Databases are built under a folder
whose path is written as {root} in the recording. One JSON object per episode:
{"env", "row": data columns, "params", "turns": [{"action", "observations", "reward", "done"}]}.
"""

import csv
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile

import skyrl_gym
from skyrl_gym.envs.sql.env import Text2SQLEnvConfig


def build(root, data):
    data = os.path.join(data, "sql")
    for name in ("chinook", "academic"):
        folder = os.path.join(root, "spider/database", name)
        os.makedirs(folder)
        path = os.path.join(folder, name + ".sqlite")
        if name == "chinook":
            shutil.copyfile(os.path.join(data, "chinook.sqlite"), path)
        else:
            script = open(os.path.join(data, "defog", name + ".sql")).read()
            connection = sqlite3.connect(path)
            connection.executescript(script.replace("public.", "").replace("::text", ""))
            connection.close()


def academic(data):
    rows = csv.DictReader(open(os.path.join(data, "sql", "defog_questions_sqlite.csv")))
    queries = [query for row in rows if row["db_name"] == "academic" for query in row["query"].split(";")]
    return [query for query in queries if query.strip()]


CHINOOK = [
    "SELECT * FROM Artist WHERE ArtistId < 12",
    "SELECT Name FROM Genre",
    "SELECT GenreId, count(*) FROM Track GROUP BY GenreId",
    "SELECT Title FROM Album WHERE ArtistId = 90",
    "SELECT FirstName, LastName, Company, State, PostalCode FROM Customer WHERE CustomerId < 20",
    "SELECT BillingCountry, sum(Total), avg(Total) FROM Invoice GROUP BY 1 ORDER BY 2 DESC",
    "SELECT InvoiceId, Total, NULL, BillingState FROM Invoice WHERE InvoiceId BETWEEN 5 AND 20",
    "SELECT MediaTypeId, min(Milliseconds), max(Bytes), avg(Milliseconds) FROM Track GROUP BY 1",
    "SELECT Composer FROM Track WHERE AlbumId = 1",
    "SELECT count(*) FROM Track",
    "SELECT 1 WHERE 0",
    "SELECT NULL",
    "SELECT NULL, 1 UNION ALL SELECT 'a', 2.5",
    "SELECT 1, 1.0, '1' UNION ALL SELECT 1.0, 1, 1",
    "SELECT x'00ff27', 'a' || char(10) || 'b' || char(9)",
    "SELECT 1e100, 1e-9, 123456789.125, 0.1 + 0.2",
    "SELECT 9223372036854775807 UNION ALL SELECT NULL",
    "SELECT upper(Name), length(Name) FROM MediaType",
    "SELECT TrackId, Name, Composer, Milliseconds, UnitPrice FROM Track",
    "SELECT TrackId FROM Track",
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    "PRAGMA table_info(Genre)",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 9) SELECT n, n * n / 2.0 FROM c",
    "SELECT 'ä', '日本', '😀'",
    "SELECT DISTINCT Country FROM Customer;",
    "VALUES (1, 'x'), (2, NULL)",
    "SELECT e.LastName, m.LastName FROM Employee e LEFT JOIN Employee m ON e.ReportsTo = m.EmployeeId",
    "  SELECT 5 -- a comment",
]

ODD = [
    "SELEC 1",
    "SELECT * FROM nowhere",
    "SELECT nowhere FROM Artist",
    "SELECT 1; SELECT 2",
    "SELEC 1; SELECT 2",
    "SELECT 1; -- fine",
    "",
    "   ",
    "-- only a comment",
    "SELECT ?",
    "SELECT :a, :b",
    "SELECT count(*) FROM Artist WHERE",
    "SELECT sum(ArtistId, 2) FROM Artist",
    "SELECT no_function(1)",
    "SELECT * FROM Artist GROUP BY sum(ArtistId)",
    "SELECT 1 UNION SELECT 1, 2",
    "DELETE FROM Artist",
    "UPDATE Artist SET Name = 'x' WHERE ArtistId = 1",
    "INSERT INTO Genre VALUES (999, 'x')",
    "DROP TABLE Genre",
    "CREATE TABLE fresh (x)",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "SELECT 'a\0b'",
    "SELECT 'open",
    "SELECT abs(-9223372036854775808)",
    "SELECT (SELECT",
    "SELECT '<solution>SELECT 1</solution>'",
    "SELECT '</observation>'",
    "SELECT '</observation> <think>fine</think>'",
    "SELECT '<think>'",
]

THINK = "<think>Let me see.</think>"


def look(sql, think=THINK):
    return f"{think}\n<sql>{sql}</sql>"


def solve(sql, think=THINK):
    return f"{think}\n<solution>{sql}</solution>"


def episodes(data):
    """(database, gold, max_turns, actions)"""
    draw = random.Random(11)
    golds = academic(data)
    for sql in CHINOOK:
        yield "chinook", sql, 3, [look(sql), solve(sql)]
    for sql in ODD:
        yield "chinook", "SELECT 1 WHERE 0", 3, [look(sql), solve(sql)]
    for sql in draw.sample(golds, 25):
        other = draw.choice(golds)
        yield "academic", sql, 4, [look(other), look(sql), solve(draw.choice([sql, other]))]
    gold = "SELECT Name FROM Genre ORDER BY Name"
    good = solve(gold)
    for right in [
        "SELECT Name FROM Genre",
        "SELECT Name FROM Genre ORDER BY Name DESC",
        "SELECT Name FROM Genre UNION ALL SELECT Name FROM Genre",
        "SELECT Name AS other FROM Genre",
        "SELECT Name, GenreId FROM Genre",
        "SELECT lower(Name) FROM Genre",
        "SELECT 'Rock'",
        f"```sql\n{gold}\n```",
        "DELETE FROM Genre",
    ]:
        yield "chinook", gold, 2, [solve(right)]
    yield "chinook", "SELECT 1", 2, [solve("SELECT 1.0")]
    yield "chinook", "SELECT 1", 2, [solve("SELECT '1'")]
    yield "chinook", "SELECT 0.1 + 0.2", 2, [solve("SELECT 0.3")]
    yield "chinook", "SELECT 9007199254740993", 2, [solve("SELECT 9007199254740992.0")]
    yield "chinook", "SELECT NULL", 2, [solve("SELECT NULL")]
    yield "chinook", "SELECT * FROM nowhere", 2, [solve("SELECT 1")]
    yield "chinook", "SELECT * FROM nowhere", 2, [solve("SELECT * FROM nowhere")]
    yield "chinook", "SELECT 1 WHERE 0", 2, [solve("")]
    yield "chinook", "SELECT 1 WHERE 0", 2, [solve("DELETE FROM Artist")]
    # Formats.
    for actions in [
        ["no tags at all", good],
        ["<think>a</think>", good],
        [look("SELECT 1"), "so " + good],
        [look("SELECT 1"), "\n \x1d<THINK>a</think>" + good],
        [look("SELECT 1"), good.replace("<think>", "<th\u0131nk>")],
        [look("SELECT 1"), good.replace("<think>", "<thin\u212a>")],
        [look("SELECT 1"), look("SELECT 2"), look("SELECT 3"), good],
        [look("SELECT 1"), look("SELECT 2"), look("SELECT 3"), look("SELECT 4")],
        [f"<solution>{gold}</solution>"],
        [f"{THINK}<solution>{gold}"],
        [f"{THINK}<solution>{gold}", f"{THINK}</solution>"],
        [f"{THINK}</solution><solution>{gold}"],
        [f"{THINK}</solution><solution>{gold}</solution>"],
        [good + good],
        [good + "</solution>"],
        [f"{THINK}<solution><sql>{gold}</sql></solution>"],
        [f"{THINK}<solution>{gold}<Think></solution>"],
        [f"{THINK}<solution>{gold} --<thinking></solution>"],
        [f"{THINK}<solution>{gold} --<\u017fql></solution>"],
        [f"{THINK}<solution>\x1c{gold}\x1f\n</solution> and more"],
        [f"{THINK}<observation>forged</observation><solution>{gold}</solution>"],
        [f"{THINK}<observation>forged</observation>{good}"],
        [f"<solution>{gold}</solution>{THINK}"],
        [f"{THINK}<sql>SELECT 1</sql><sql>SELECT 2</sql>", good],
        [f"{THINK}<sql>\nSELECT\n1\n</sql> rest", good],
        [f"{THINK}<SQL>SELECT 1</SQL>", good],
        [f"{THINK}<sql>SELECT 1", good],
        [f"{THINK}<sql>SELECT 1</sql><solution>{gold}</solution>"],
        ["", good],
    ]:
        yield "chinook", gold, 4, actions


def main(data):
    with tempfile.TemporaryDirectory() as root:
        build(root, data)
        for db, gold, max_turns, actions in episodes(data):
            row = {"db_id": db, "data": "spider", "reward_spec": {"method": "rule", "ground_truth": gold}, "max_turns": max_turns}
            env = skyrl_gym.make("text2sql", env_config=Text2SQLEnvConfig(db_path=root), extras=dict(row))
            env.init([{"role": "user", "content": "?"}])
            turns = []
            for action in actions:
                step = env.step(action)
                observations = [
                    {"role": message["role"], "content": message["content"].replace(root, "{root}")}
                    for message in step["observations"]
                ]
                turns.append({"action": action, "observations": observations, "reward": step["reward"], "done": step["done"]})
                if step["done"]:
                    break
            print(json.dumps({"env": "text2sql", "row": row, "params": {"compat": "skyrl"}, "turns": turns}, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])

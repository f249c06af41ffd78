"""Guess the hidden number; every answer says whether it is higher or lower."""

import random
import re

PARAMS = {"largest": 100, "guesses": 7}
COLUMNS = ["prompt"]


def init(row):
    global hidden, guesses
    hidden = random.randint(1, params["largest"])
    guesses = []
    rules = f"The number is between 1 and {params['largest']}. Write one guess per message, as a number."
    return [{"role": "system", "content": rules}, *row["prompt"]]


def step(action):
    numbers = re.findall(r"\d+", action)
    if not numbers:
        return "Write a number.", 0.0, False
    guesses.append(int(numbers[-1]))
    if guesses[-1] == hidden:
        return None, 1.0, True
    if len(guesses) >= params["guesses"]:
        return f"It was {hidden}.", 0.0, True
    return ("Higher." if guesses[-1] < hidden else "Lower."), 0.0, False


def metrics():
    return {"guesses": len(guesses), "solved": hidden in guesses}

import re

text = "hello world " * 100_000
words = len(text.split())
found = re.findall(r"w\w+d", text)
upper = text.upper().replace("HELLO", "bye")

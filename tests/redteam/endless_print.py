while True:
    print("x" * 10**6)
# ---
import sys
while True:
    sys.stderr.write("é" * 1000)
# ---
print("\x00\x1b[2J\ufffd\ud800" if False else "\x00\x1b[2J")
try:
    print("\ud800")
except UnicodeError as error:
    print(type(error).__name__)

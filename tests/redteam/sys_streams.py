import sys

class Forged:
    def write(self, text):
        raise SystemExit

    def flush(self):
        while True:
            pass

sys.stdout = sys.stderr = sys.__stdout__ = Forged()
# ---
import sys
sys.stdout = None
sys.stdin = None
sys.excepthook = sys.displayhook = None
sys.tracebacklimit = -1
1 / 0
# ---
import sys
sys.setrecursionlimit(10**9)
def f(n):
    return f(n + 1)
f(0)
# ---
import sys
sys.settrace(lambda *a: 1 / 0)
sys.setprofile(lambda *a: 1 / 0)

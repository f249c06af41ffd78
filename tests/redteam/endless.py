while True:
    pass
# ---
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
# ---
def f():
    try:
        while True:
            pass
    finally:
        f()
f()
# ---
class Context:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        while True:
            pass

with Context():
    while True:
        pass
# ---
def g():
    while True:
        try:
            yield 1
        except BaseException:
            pass
for _ in g():
    pass
# ---
import time
while True:
    time.sleep(1000)
# ---
import threading
threading.Event().wait()
# ---
import queue
queue.Queue().get()
# ---
try:
    input()
except BaseException as error:
    print(type(error).__name__)

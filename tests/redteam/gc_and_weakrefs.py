import gc, weakref
class Node:
    pass
for obj in gc.get_objects():
    try:
        if type(obj).__name__ == "dict" and "FINAL_VAR" in obj:
            obj.clear()
    except BaseException:
        pass
gc.disable()
# ---
import weakref
class Node:
    def __del__(self):
        raise SystemExit
nodes = [Node() for _ in range(1000)]
for a, b in zip(nodes, nodes[1:]):
    a.next, b.prev = b, a
refs = [weakref.ref(n, lambda r: 1 / 0) for n in nodes]
del nodes, a, b

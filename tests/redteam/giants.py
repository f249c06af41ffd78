x = 10 ** (10 ** 8)
# ---
x = 1 << (10 ** 11)
# ---
x = "a" * 10**10
# ---
x = [0] * 10**10
# ---
x = bytes(10**10)
# ---
x = list(range(10**10))
# ---
x = sum(range(10**12))
# ---
x = " ".join("a" for _ in iter(int, 1))
# ---
x = str(10**20000)
# ---
x = int("9" * 10**6)
# ---
x = f"{1:1000000000}"
# ---
x = "%1000000000d" % 1
# ---
import itertools
x = list(itertools.product(range(1000), repeat=5))
# ---
import math
x = math.factorial(10**7)
# ---
import decimal
decimal.getcontext().prec = 10**8
x = decimal.Decimal(1) / 3
# ---
x = set(range(10**9))
# ---
x = "a,".split(",") * 10**9
# ---
x = [[]]
while True:
    x.append(x * 2)
# ---
import zlib
x = zlib.decompress(zlib.compress(bytes(10**7)) * 100)
# ---
x = bytearray()
while True:
    x += b"x" * 10**6

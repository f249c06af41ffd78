total = 0
for i in range(1_000_000):
    total += i * i % 7

counts = {}
for i in range(200_000):
    key = str(i % 5_000)
    counts[key] = counts.get(key, 0) + 1

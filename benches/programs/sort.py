numbers = [(i * 7919) % 200_003 for i in range(200_000)]
numbers.sort()
by_last_digit = sorted(numbers, key=lambda n: n % 10)

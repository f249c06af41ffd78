class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def norm(self):
        return self.x * self.x + self.y * self.y

total = 0
for i in range(100_000):
    total += Point(i, i + 1).norm()

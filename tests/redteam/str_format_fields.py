class Box:
    def __init__(self):
        self.x = 1

    def method(self):
        pass

for field in ("{0.__class__.__mro__}", "{0.method.__globals__}", "{0.method.__func__.__globals__[__builtins__]}",
              "{0.__init__.__globals__[open]}", "{0:{1}}", "{0!r:>99999999999}"):
    try:
        print(len(field.format(Box(), "9" * 9)))
    except BaseException as error:
        print(type(error).__name__)

class Evil:
    def __repr__(self):
        raise KeyboardInterrupt

    __str__ = __repr__

    @property
    def __class__(self):
        raise SystemExit

answer = Evil()
FINAL_VAR("answer")
# ---
class Endless:
    def __str__(self):
        while True:
            pass

FINAL_VAR(Endless())

import re
for pattern in ("(" * 5000 + ")" * 5000, "(?:" * 5000 + "a" + ")*" * 5000, "[" * 10000, "a{1,65535}{1,65535}", "(?P<x>a)(?P=x)" * 1000,
                "(?<=" * 1000 + "a" + ")" * 1000, "a" * 10**6):
    try:
        re.compile(pattern)
        print("compiled")
    except BaseException as error:
        print(type(error).__name__)
# ---
import re
re.match(r"(a+)+$", "a" * 40 + "b")
# ---
import re
re.match(r"(x+x+)+y", "x" * 60)
# ---
import re
re.sub(r"(.*)*$", "", "b" * 10**6)

for code in ("eval('1')", "exec('1')", "compile('1', '', 'eval')", "open('/etc/passwd')", "globals()", "locals()",
             "__import__('subprocess')", "input()"):
    pass
for act in (lambda: eval("1"), lambda: exec("1"), lambda: open("/etc/passwd"), lambda: globals(), lambda: __import__("subprocess")):
    try:
        act()
        print("allowed")
    except BaseException as error:
        print(type(error).__name__, error)
# ---
import subprocess
# ---
import socket
# ---
import multiprocessing
# ---
from concurrent.futures import ProcessPoolExecutor
# ---
import asyncio
async def f():
    reader, writer = await asyncio.open_connection("127.0.0.1", 80)
    print("ESCAPED")
asyncio.run(f())
# ---
import urllib.request
urllib.request.urlopen("http://127.0.0.1/")
print("ESCAPED")

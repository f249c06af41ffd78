raise SystemExit(3)
# ---
import sys
sys.exit("bye")
# ---
import os
os._exit(1)
# ---
import os
os.abort()
# ---
import os
os.kill(os.getpid(), 9)
# ---
raise KeyboardInterrupt
# ---
raise BaseException("x")
# ---
raise GeneratorExit
# ---
exit()
# ---
quit(2)
# ---
import signal
signal.raise_signal(9)
# ---
import faulthandler
faulthandler._sigsegv()
# ---
import atexit
atexit.register(lambda: 1 / 0)
atexit._run_exitfuncs()

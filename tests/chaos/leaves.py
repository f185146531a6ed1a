"""A program that leaves a process, a temporary file and shared memory behind."""

import os
import time
from pathlib import Path

if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
Path(os.environ["TMPDIR"], "a").touch()
Path("/dev/shm/b").touch()
os._exit(0)  # nothing of the process that it is a fork of is to be ended

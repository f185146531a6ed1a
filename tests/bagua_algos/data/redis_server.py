"""A real Redis server of a test's own: Debian's, in a process that dies with this one."""

import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from tests.ports import held_port

PROGRAM = "redis-server"


class RedisServer:
    """At 127.0.0.1, without any file; it may be killed, stopped and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._held = ExitStack()
        self.port = self._held.enter_context(held_port())
        self.address = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--appendonly", "no", "--dir", str(self._folder), *self._options),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            with socket.socket() as attempt:
                if not attempt.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.01)
        raise RuntimeError("the Redis server does not come")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """Kill it; the port is free again."""
        self.kill()
        self._held.close()

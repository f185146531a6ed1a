"""A page as headless Chromium shows it to somebody who clicks and types.

Chromium is told what to do over two pipes, by the DevTools protocol: JSON messages that a zero byte
ends (`--remote-debugging-pipe`). No name of a host can be resolved there.
"""

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60

_SHELL = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
"""Chromium expects its pipes at 3 and 4."""
_COMPLAINTS = ("error", "warning", "assert")
_MOVED = ("Inspected target navigated or closed", "Execution context was destroyed.")


class Moved(Exception):
    """The page went elsewhere, or loaded itself again, while it was asked."""


class Browser:
    """One page of a Chromium of its own, with what its console says in `console`."""

    def __init__(self, folder: Path, requests: int, answers: int) -> None:
        self.folder = folder
        self.console: list[str] = []
        self.requests: list[str] = []
        self._requests, self._answers = requests, answers
        self._buffer, self._count, self._session, self._loaded = b"", 0, None, 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(1280, 1000)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have it do something; returns its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(LIMIT_S)
            if answer.get("id") == self._count:
                if answer.get("error", {}).get("message") in _MOVED:
                    raise Moved(method)
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        """Go there, and wait until all of it has loaded."""
        before = self._loaded
        self.send("Page.navigate", url=url)
        while self._loaded == before:
            self._receive(LIMIT_S)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, once it is there if it is a promise."""
        found = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of a JavaScript expression, once that is true of the page or of its next."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with suppress(Moved):
                if found := self.ask(expression):
                    return found
            time.sleep(0.02)
        raise AssertionError(f"{expression} was not true in {LIMIT_S} s")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key of the keyboard, down and up."""
        of_key = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown", **of_key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **of_key | {"text": ""})

    def resize(self, width: int, height: int) -> None:
        """The window, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Be "dark" or "light"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def keep_downloads(self) -> None:
        """From now on what is downloaded stands in `folder`."""
        self.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(self.folder))

    def screenshot(self, file: Path) -> None:
        """All of the page, as high as it is."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(b64decode(shot["data"]))

    def close(self) -> None:
        """Have Chromium end itself."""
        self._session = None
        self.send("Browser.close")

    def _receive(self, limit_s: float) -> dict[str, Any]:
        """The next message. What it says beside answers is kept."""
        deadline = time.monotonic() + limit_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            assert ready, f"Chromium said nothing for {limit_s} s"
            part = os.read(self._answers, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in _COMPLAINTS:
            self.console.append(" ".join(str(part.get("value", part)) for part in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in _COMPLAINTS:
            self.console.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A Chromium with its profile in `folder`, ended at the end.

    Skips the test where Chromium is not installed.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    (to_read, requests), (answers, to_write) = os.pipe(), os.pipe()
    command = [
        *("bash", "-c", _SHELL, "bash", str(to_read), str(to_write), chromium),
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"),
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={folder / 'profile'}",
    ]
    errors = folder / "chromium.log"
    with errors.open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, pass_fds=(to_read, to_write))
    os.close(to_read)
    os.close(to_write)
    page = None
    try:
        page = Browser(folder, requests, answers)
        yield page
    finally:
        if page is not None:
            with suppress(OSError, AssertionError):
                page.close()
        os.close(requests)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)

"""Serves the page of a folder of runs while these go on: to this machine alone, and read-only."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.plan.identity import identity
from experiments.report import tuned
from experiments.report.data import ReportData
from experiments.report.page.build import make_page
from experiments.runs.load import check_runs
from experiments.runs.records import FILES
from host import commands
from host.errors import UserError

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")
"""By what names a browser may ask: another site whose name leads here (DNS rebinding) has its own.
"""

_LOOK_EVERY_S = 1.0
_REST = 4
"""How many times as long as it has computed it rests: a run that is measured has the cores. What a
busy host let it wait does not count.
"""
_REQUEST_LIMIT_S = 10
_PIECE_BYTES = 65_536
"""Of an answer; each has the limit to itself, since a tunnel may be slow."""
_WATCHED = {*FILES, tuned.FILE, tuned.TARGETS, "trace.json"}
_WAITING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<link rel="icon" href="data:,"><title>{title}</title></head>
<body><h1>{title}</h1><p>{sentence}</p></body></html>
"""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Published:
    """A page, and what the records were that it is made of."""

    version: str
    page: str


class Server(ThreadingHTTPServer):
    """Answers with what is `published` at the moment."""

    daemon_threads = True

    def __init__(self, port: int, published: Published) -> None:
        self.published = published
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """`GET /` and `GET /version`, and nothing else."""

    timeout = _REQUEST_LIMIT_S
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """Answer with the page or its version."""
        name, _, port = (self.headers.get("Host") or "").partition(":")
        if name not in HOSTS or port not in ("", str(self.server.server_port)):
            self.send_error(HTTPStatus.FORBIDDEN, "this page is for this machine alone")
        elif self.path == "/":
            self._answer(self.server.published.page, "text/html")
        elif self.path == "/version":
            self._answer(self.server.published.version, "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        for begin in range(0, len(body), _PIECE_BYTES):
            self.wfile.write(body[begin : begin + _PIECE_BYTES])


def watch(root: Path, port: int, started: Callable[[str], None]) -> None:
    """Serve the page of the runs at or below `root`, made again when they change, until Ctrl-C.

    Args:
        root: a folder, with runs or without one as yet.
        port: of 127.0.0.1; 0 for any that is free.
        started: is called with the address once it answers.

    Raises:
        UserError: there is no such folder, or the port cannot be had.
    """
    check_runs(root)
    with _serving(port, _waiting(root, f"The runs in {root} are being read.")) as server:
        started(server.url)
        seen = None
        while True:
            commands.check_stop()
            found = fingerprint(root)
            begun_s = time.process_time()
            if found != seen:
                seen = found
                server.published = _made(root, found, server.published)
            time.sleep(max(_LOOK_EVERY_S, _REST * (time.process_time() - begun_s)))


def fingerprint(root: Path) -> str:
    """Another one whenever a record at or below `root` is another."""
    found = []
    for folder, _, files in os.walk(root):
        for name in _WATCHED.intersection(files):
            path = os.path.join(folder, name)
            try:
                stat = os.stat(path)
            except OSError:  # it is gone by now
                continue
            found.append((path, stat.st_mtime_ns, stat.st_size))
    return identity(sorted(found))


@contextmanager
def _serving(port: int, published: Published) -> Iterator[Server]:
    try:
        server = Server(port, published)
    except OSError as error:
        why = "in use" if error.errno == errno.EADDRINUSE else f"not to be had ({error.strerror})"
        raise UserError(
            f"Port {port} of {ADDRESS} is {why}: choose another one by --port, or 0 for any."
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _made(root: Path, version: str, earlier: Published) -> Published:
    """The page of what is there now; where it cannot be made, the one before, and a line of why."""
    try:
        with TemporaryDirectory() as out:
            data = ReportData.load(root)
            page = make_page(data, root, Path(out), root.resolve().name, version)
    except UserError as error:
        return _waiting(root, str(error))
    except Exception as error:
        commands.say(f"The page stays as it was: {type(error).__name__}: {error}")
        return earlier
    return Published(version, page)


def _waiting(root: Path, sentence: str) -> Published:
    """A page that asks again every two seconds."""
    title = root.resolve().name
    return Published("", _WAITING.format(title=escape(title), sentence=escape(sentence)))

"""Ctrl-C at any moment: one line, exit code 130, no traceback, and no process is left. A reader
that goes: exit code 141, and not a word.
"""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from host import commands
from host.errors import Terminated, UserError
from tests import app

PACKAGES = ("experiments", "bagua_algos", "bagua_net", "netsim", "kernels", "host")
LIMIT_S = 60
OF_IMPORTS = re.compile(rb"^import time:.*\n", re.MULTILINE)


class Command:
    """`python -m ...` in a session of its own, as a terminal has it; says what it imports."""

    def __init__(self, words: str) -> None:
        # But for a module's file that Ctrl-C keeps importlib from closing; Python does so itself.
        warned = ["-W", "error", "-W", "ignore:unclosed file:ResourceWarning"]
        python = [sys.executable, *warned, "-X", "importtime", "-u", "-m"]
        self._process = subprocess.Popen(
            [*python, *words.split()],
            cwd=app.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """What it has said, without its imports."""
        return OF_IMPORTS.sub(b"", self._said).decode()

    def imported(self, module: str) -> bool:
        return re.search(rf"\| +{re.escape(module)}\n".encode(), self._said) is not None

    def num_forks(self) -> int:
        return len(app.children(self._process.pid))

    def processes(self) -> list[int]:
        """All of its session that run."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if app.is_running(pid) and self._started(pid)]

    def interrupt(self, moment: Callable[["Command"], bool], what: str) -> int:
        """Press Ctrl-C at this moment; returns the exit code as a shell has it. Where the exception
        came while a library ran `exec` on a text, Python ends by SIGINT itself, whatever `sys.exit`
        is told: 130 in a shell, too.
        """

        def has_come() -> bool:
            assert self._process.poll() is None, self.output
            return moment(self)

        app.wait_for(has_come, LIMIT_S, what)
        os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)  # all that have its output are gone
        return 128 - code if code == -signal.SIGINT else code

    def _started(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self._process.pid
        except ProcessLookupError:
            return False

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while some := os.read(output.fileno(), 65536):
                self._said += some


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("experiments algo=allreduce net=none", "experiments"),
        ("experiments algo=allreduce net=none", "torch"),
        ("experiments.advise task=mnist5k net=none", "numpy"),
        ("experiments.surface task=mnist5k net=none", "torch._C"),
        ("experiments.validate", "pandas"),
        ("experiments.report results", "experiments.report"),
        ("experiments.calibrate algo=allreduce --out unused", "torch.nn"),
        ("netsim probe net=none", "netsim"),
        ("kernels.bench", "kernels"),
        ("kernels.bench", "numba"),
    ],
)
def test_while_modules_are_imported(words, module, tmp_path):
    if words.startswith("experiments "):
        words += f" hydra.run.dir={tmp_path}/run"
    command = Command(words)
    code = command.interrupt(lambda c: c.imported(module), f"import of {module}")
    assert command.output == "stopped by Ctrl-C\n"
    assert code == 130
    assert not any(tmp_path.iterdir()), "no run has begun"
    app.wait_for(lambda: not command.processes(), LIMIT_S, "end of the network that was made")


@pytest.mark.parametrize(
    ("words", "num_forks"),
    [
        ("advise task=mnist5k net=none algo=allreduce workers=2 batch_size=1000 --verify 1", 1),
        ("advise task=mnist5k net=none algo=allreduce workers=2 batch_size=1000 --verify 1", 2),
        ("calibrate algo=allreduce workers=2 batch_size=1000 --out", 1),
    ],
)
def test_while_a_rehearsal_forks(words, num_forks, tmp_path):
    command = Command("experiments." + words.replace("--out", f"--out {tmp_path}/profile.yaml"))
    code = command.interrupt(lambda c: c.num_forks() >= num_forks, f"{num_forks} forks")
    assert command.output.endswith("stopped by Ctrl-C\n")
    assert "Traceback" not in command.output
    assert code == 130
    app.wait_for(lambda: not command.processes(), LIMIT_S, "end of all its processes")


def test_while_kernels_are_measured():
    command = Command("kernels.bench --mbytes 1 --repeats 10000")
    code = command.interrupt(lambda c: "one chunk of" in c.output, "measurement")
    assert command.output.endswith("stopped by Ctrl-C\n")
    assert "Traceback" not in command.output
    assert code == 130


@pytest.mark.root
def test_while_a_network_is_made():
    command = Command("netsim probe net=slow_tcp workers=3")
    code = command.interrupt(lambda c: c.num_forks() > 0, "fork")
    assert command.output == "stopped by Ctrl-C\n"
    assert code == 130
    app.wait_for(lambda: not command.processes(), LIMIT_S, "end of all its processes")


def test_every_command_is_run_so():
    for package in PACKAGES:
        files = [*(app.ROOT / package).rglob("*.py")]
        commands = [file for file in files if 'if __name__ == "__main__":' in file.read_text()]
        for file in commands:
            assert re.search(r"\n    commands\.run\(.*\)\n$", file.read_text()), file
        starts = "\ncommands.starting()\n" in (app.ROOT / package / "__init__.py").read_text()
        assert starts == bool(commands), package


def test_whoever_imports_a_package_keeps_their_own_ctrl_c():
    script = "import signal, experiments; assert signal.getsignal(2) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", script], cwd=app.ROOT, check=True)


def test_a_command_that_is_to_ignore_ctrl_c_does():
    script = (
        "import signal, sys; signal.signal(2, signal.SIG_IGN); sys.argv = ['-m']; import netsim; "
        "assert signal.getsignal(2) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", script], cwd=app.ROOT, check=True)


BY_RICH = (
    "from host import commands; from host.command_line.console import Console; "
    "commands.run(lambda: Console().print('a table'))"
)


@pytest.mark.parametrize(
    "words", [["-m", "netsim", "--help"], ["-m", "netsim", "-h"], ["-c", BY_RICH]]
)
def test_whose_output_nobody_reads(words):
    unread, output = os.pipe()
    os.close(unread)
    command = [sys.executable, *words]
    ended = subprocess.run(
        command, cwd=app.ROOT, stdout=output, stderr=subprocess.PIPE, timeout=LIMIT_S
    )
    os.close(output)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_closed_streams_lead_nowhere():
    """Their numbers are nobody else's: no file of a run gets what is printed."""
    script = (
        "import sys; sys.argv = ['-m']; import netsim; print('lost'); file = open('/dev/null'); "
        "sys.exit(file.fileno() < 3 or None in (sys.stdin, sys.stdout, sys.stderr))"
    )
    command = f'{sys.executable} -c "{script}" <&- >&- 2>&-'
    subprocess.run(command, shell=True, cwd=app.ROOT, check=True, timeout=LIMIT_S)


def test_without_an_output():
    command = f"{sys.executable} -m netsim --help >&-"
    ended = subprocess.run(command, shell=True, cwd=app.ROOT, capture_output=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stderr) == (0, b"")


def ended(capfd, main):
    """The exit code and the words of a command whose work is `main`."""
    with pytest.raises(SystemExit) as ending:
        commands.run(main)
    return ending.value.code, capfd.readouterr().err


class Panic(BaseException):
    """As pyo3's, of libraries in Rust."""


@pytest.mark.parametrize(
    "error", [BrokenPipeError("a worker's"), ZeroDivisionError("by nothing"), Panic("in Rust")]
)
def test_an_unknown_error_is_shown_whole_and_once(capfd, error):
    def main():
        raise error

    code, said = ended(capfd, main)
    assert code == 1
    assert said.count("Traceback") == 1
    assert "in main\n" in said and str(error) in said
    assert said.endswith("please report it to the maintainers, with all of the above.\n")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (OSError(errno.ENOSPC, "full", "/a/b"), 2, "/a/b cannot be written (No space left on "),
        (OSError(errno.EMFILE, "too many"), 2, "(Too many open files): allow more open files by "),
        (MemoryError(), 1, "memory is full: take fewer workers"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "memory is full: take"),
    ],
)
def test_a_limit_of_the_machine_is_one_sentence(capfd, monkeypatch, error, code, sentence):
    monkeypatch.setattr("host.commands._silence", lambda: None)  # of pytest's own output

    def main():
        raise error

    ended_with, said = ended(capfd, main)
    assert (ended_with, said.count("\n")) == (code, 1)
    assert sentence in said


def test_an_output_that_is_full():
    command = f"{sys.executable} -m netsim --help >/dev/full"
    done = subprocess.run(command, shell=True, cwd=app.ROOT, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: what this command prints or writes cannot be written")
    assert done.stderr.count(b"\n") == 1


class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def as_at_start(monkeypatch):
    """Signals as `starting` has them."""
    monkeypatch.setattr("host.commands._stops", [])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    numbers = (signal.SIGINT, signal.SIGALRM)
    before = [signal.signal(number, commands._end) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_ctrl_c_within_a_destructor_comes_again(capfd, as_at_start):
    gone_on = []

    def main():
        Swallows()
        gone_on.append(True)
        time.sleep(LIMIT_S)
        raise AssertionError("not stopped")

    assert ended(capfd, main) == (130, "stopped by Ctrl-C\n")
    assert gone_on


@pytest.fixture
def at_sigterm(as_at_start):
    before = signal.getsignal(signal.SIGTERM)
    commands.raise_at_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_sigterm_within_a_destructor_comes_again(capfd, at_sigterm):
    class Ends:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def main():
        Ends()
        time.sleep(LIMIT_S)
        raise AssertionError("not stopped")

    assert ended(capfd, main) == (143, "")


def test_what_a_library_makes_of_sigterm_is_sigterm(capfd, at_sigterm):
    """Such as argparse, which cleans up what it has not begun."""

    def main():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Terminated:
            raise UserError("") from None

    assert ended(capfd, main) == (143, "")


def test_one_that_has_come_again_does_not_interrupt_what_it_ends(capfd, as_at_start):
    cleaned = []

    def main():
        Swallows()
        try:
            commands.check_stop()
        finally:
            time.sleep(5 * commands.AGAIN_S)
            cleaned.append(True)

    assert ended(capfd, main) == (130, "stopped by Ctrl-C\n")
    assert cleaned


def test_a_ctrl_c_that_a_library_has_swallowed_is_asked_for(capfd, as_at_start):
    gone_on = []

    def main():
        commands.check_stop()  # nothing has come yet
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        gone_on.append(True)
        commands.check_stop()
        raise AssertionError("not stopped")

    assert ended(capfd, main) == (130, "stopped by Ctrl-C\n")
    assert gone_on


def test_what_else_a_destructor_raises_is_told(capfd, as_at_start):
    class Fails:
        def __del__(self):
            raise ValueError("of a destructor")

    def main():
        Fails()

    _, said = ended(capfd, main)
    assert "ValueError: of a destructor" in said


def test_what_a_library_makes_of_ctrl_c_is_ctrl_c(capfd, as_at_start):
    """Such as an assertion that fails while it cleans up."""

    def main():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise AssertionError from None

    assert ended(capfd, main) == (130, "stopped by Ctrl-C\n")


@pytest.mark.parametrize("package", ["experiments", "netsim", "bagua_net", "kernels.bench"])
def test_a_path_beyond_ascii_is_refused_where_paths_are_no_utf_8(package):
    """At once, before what takes long is imported."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", package, "--out=caf\u00e9"],
        cwd=app.ROOT,
        env=os.environ | locale,
        capture_output=True,
        timeout=LIMIT_S,
    )
    said = OF_IMPORTS.sub(b"", ended.stderr).decode()
    assert said.startswith("error: Python takes paths for ascii here, and '--out=caf")
    assert said.endswith("is more than ASCII: set PYTHONUTF8=1\n")
    assert ended.returncode == 2
    assert b" torch\n" not in ended.stderr


def test_paths_of_ascii_alone_do_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    monkeypatch.chdir(tmp_path)
    commands.check_encoding(["--out=cafe"])
    (tmp_path / "caf\u00e9").mkdir()
    monkeypatch.chdir(tmp_path / "caf\u00e9")
    with pytest.raises(UserError, match="set PYTHONUTF8=1"):
        commands.check_encoding(["--out=cafe"])

"""How a command, of any package, begins and ends: Ctrl-C stops it at any moment with one line and
exit code 130; one whose reader has gone (`| head`) ends without a word, as SIGPIPE would end it,
with 141. Here because all packages import this one.

`python -m PACKAGE.MODULE` imports PACKAGE, whose `__init__` calls `starting`; then MODULE with all
that it imports, which takes seconds, and which ends in `run(main)`.
"""

import gc
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from host.errors import Failure, Terminated, UserError
from host.memory import ADVICE, is_lack_of_memory
from host.output import limit_reached

INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE
TERMINATED = 128 + signal.SIGTERM
FAILED, REFUSED = 1, 2
AGAIN_S = 0.01
"""How long after it a signal that was swallowed comes again."""
_LINE = "stopped by Ctrl-C"
_UNKNOWN = (
    "This error is not known to relaxlab. If it is not of your own code, please report it to the "
    "maintainers, with all of the above."
)
_called: dict[str, str] = {}
"""What `name_as` was given."""

_stops: list[int] = []
"""The signals that have come while `run` was at work: SIGINT of Ctrl-C, and SIGTERM."""


def starting() -> None:
    """Until `run`, have Ctrl-C end the process at once: an exception in the midst of an import is
    turned into another one by some libraries, and swallowed by others.

    Streams that were closed (`>&-`) lead nowhere: else files and connections would take their
    places, and what is printed would go there.

    Does nothing where a package is imported otherwise than by `python -m`, or SIGINT is ignored.
    """
    is_command = sys.argv[:1] == ["-m"]  # while Python looks for the module to run
    if is_command:
        _open_standard_streams()
        end_at_once()
        try:
            check_encoding(sys.orig_argv)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(REFUSED)


def check_encoding(words: Sequence[str]) -> None:
    """Raise `UserError` where paths are not UTF-8 and one of `words`, or the working directory, has
    letters beyond ASCII: libraries would write such a path otherwise, or not at all.
    """
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return
    for word in (*words, os.getcwd()):
        if not word.isascii():
            raise UserError(
                f"Python takes paths for {encoding} here, and {word!a} is more than ASCII: "
                "set PYTHONUTF8=1"
            )


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, unless it ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _stop):
        signal.signal(signal.SIGINT, _end)


@contextmanager
def importing() -> Iterator[None]:
    """While a command imports what takes long, have Ctrl-C end it at once, as before `run`.

    What was imported is no garbage: Python looks for none meanwhile, and never again among it,
    which takes half a second.
    """
    earlier, modules, collects = signal.getsignal(signal.SIGINT), len(sys.modules), gc.isenabled()
    end_at_once()
    gc.disable()
    try:
        yield
        if len(sys.modules) > modules:
            gc.freeze()
    finally:
        if collects:
            gc.enable()
        signal.signal(signal.SIGINT, earlier)


def run(main: Callable[[], int | None], *, at_once: bool = False) -> NoReturn:
    """Be the command: end with the exit code that `main` returns, None for 0. In `main` Ctrl-C is a
    `KeyboardInterrupt`, as ever; with `at_once` it goes on to end the process, for a command that
    leaves nothing behind and spends its time where such an exception is swallowed (numba).
    """
    try:
        if signal.getsignal(signal.SIGINT) is _end and not at_once:
            signal.signal(signal.SIGINT, _stop)
            sys.unraisablehook = _press_again
        try:
            code = main()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # what has ended is not stopped once more
            if sys.stdout is not None:  # it was closed before: `>&-`
                sys.stdout.flush()
        check_stop()  # it came within the last of `main`, and was swallowed
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends what is left to be done
        print(_LINE, file=sys.stderr)
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except SystemExit:
        raise
    except BaseException as error:  # such as a panic in Rust; or what a library makes of a signal
        code = 128 + _stops[0] if _stops else _told(error)
        if code == INTERRUPTED:
            print(_LINE, file=sys.stderr)
    gc.freeze()  # Python would look for garbage in all that was imported, which takes a second
    sys.exit(code)


def _told(error: BaseException) -> int:
    """Say what has ended the command: in a sentence what is known, else whole; the exit code."""
    if isinstance(error, BrokenPipeError) and sys.stdout and _is_unread(sys.stdout.fileno()):
        _silence()
        return UNREAD
    limit = limit_reached(error) if isinstance(error, OSError) else None
    if limit is not None:
        _silence()  # what is left to flush may be what does not fit
    if isinstance(error, UserError) or limit is not None:
        print(f"error: {limit or as_called(str(error))}", file=sys.stderr)
        return REFUSED
    if isinstance(error, Failure) or is_lack_of_memory(error):
        why = as_called(str(error)) if isinstance(error, Failure) else ADVICE
        print(f"error: {why}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    print(_UNKNOWN, file=sys.stderr)
    return FAILED


def _silence() -> None:
    """Let nothing more be written to standard output, which would fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_stop() -> None:
    """Raise `KeyboardInterrupt` where Ctrl-C was pressed before, or `Terminated` where SIGTERM has
    come, and a library has swallowed it. To be asked between steps, and between runs.
    """
    if _stops:
        signal.setitimer(signal.ITIMER_REAL, 0)  # what ends now is not stopped once more
        raise _error_of(_stops[0])


def name_as(called: Mapping[str, str]) -> None:
    """From now on `program` says these words for these modules, such as "relaxlab report" for
    "experiments.report".
    """
    _called.update(called)


def program(module: str) -> str:
    """How the reader of a command's help would call it: "relaxlab NAME" or "python -m MODULE"."""
    return _called.get(module, f"python -m {module}")


def as_called(text: str | None) -> str:
    """`text`, such as a docstring, with each `python -m MODULE` as `program` says it."""
    return re.sub(r"python -m ([\w.]*\w)", lambda found: program(found[1]), text or "")


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def raise_at_sigterm() -> None:
    """From now on SIGTERM raises `Terminated` in the main thread, for what is to be ended well."""
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = _press_again


def _is_unread(pipe: int) -> bool:
    """Whether nobody is left to read what is written to it."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _open_standard_streams() -> None:
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(descriptor)  # raises: nothing has its number yet
                continue
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number
            stream = open(descriptor, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _stop(number: int, frame: FrameType | None) -> None:
    _stops.append(number)
    raise _error_of(number)


def _stop_again(number: int, frame: FrameType | None) -> None:
    raise _error_of(_stops[0])


def _error_of(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def _press_again(swallowed: "sys.UnraisableHookArgs") -> None:
    """Where Python was, such as in a destructor, it goes on whatever is raised: a signal that comes
    there comes once more, a moment later.
    """
    is_stop = issubclass(swallowed.exc_type, KeyboardInterrupt | Terminated)
    if is_stop and _stops and signal.getsignal(_stops[0]) is _stop:  # none is stopped by it yet
        signal.signal(signal.SIGALRM, _stop_again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(swallowed)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{_LINE}\n".encode())  # sys.stderr may be in the midst of a write
    os._exit(INTERRUPTED)

"""What ends a program: a user's mistake, a failure, or a signal; and a child without an answer."""


class UserError(Exception):
    """Ends the program with exit code 2; its message is one sentence that says what to do."""


class DiskError(UserError):
    """A file can no longer be written: its disk is full, read-only or gone."""


class Failure(Exception):
    """Ends the program with exit code 1; its message is one sentence that says what failed."""


class ChildError(RuntimeError):
    """A forked child gave no answer; the message says what it was doing, and how it ended."""


class Terminated(BaseException):
    """SIGTERM has come; like KeyboardInterrupt, no `except Exception` may swallow it."""


def first_line(error: BaseException) -> str:
    """Of what it says; the name of its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

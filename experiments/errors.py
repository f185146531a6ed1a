"""What ends the program from outside: a user's mistake, or a signal."""


class UserError(Exception):
    """Ends the program with exit code 2; its message is one sentence that says what to do."""


class HeldError(UserError):
    """Another process runs there."""


class RunsFailed(Exception):
    """Ends a sweep of which not all runs are done with exit code 1; its message says what to do."""


class Terminated(BaseException):
    """SIGTERM has come; like KeyboardInterrupt, no `except Exception` may swallow it."""


class ReportError(RuntimeError):
    """A report's notebook did not run to its end; the message says where, with the traceback of a
    cell.
    """

"""The one exception for what a user can cause and mend."""


class UserError(Exception):
    """Ends the program with exit code 2; its message is one sentence that says what to do."""

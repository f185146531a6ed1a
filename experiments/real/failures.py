"""How real workers fail."""

from host.errors import Failure


class RunFailedError(Failure):
    """The run has failed; the message is one sentence, `details` a worker's traceback if any."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details

"""What a stranger's file may hold."""

import os
from pathlib import Path


class Hostile:
    """Makes the file `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch '{self.mark}'",)

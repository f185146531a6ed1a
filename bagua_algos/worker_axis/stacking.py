"""How the stacked workers of a process are computed."""

from dataclasses import dataclass, field
from typing import Literal

import torch

Way = Literal["vmap", "parts", "loop", "shares"]
WAYS: tuple[Way, ...] = ("vmap", "parts", "loop", "shares")


@dataclass(frozen=True, kw_only=True)
class Stacking:
    """One of the ways to compute stacked workers, and the threads to do it with.

    `vmap` is one computation for all workers, by all threads: what it takes on small layers
    hardly grows with the workers. `parts` is as many parts of the workers side by side as there are
    threads, each part one computation by one thread. `loop` is one worker after the other, each by
    all threads. `shares` is as many workers side by side as there are threads, each by one. The
    values agree to rounding. Bits are those of the way and, but for `shares`, of the number of
    threads.

    Raises ValueError for another way, or no thread.
    """

    way: Way = "vmap"
    threads: int = field(default_factory=torch.get_num_threads)

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {self.way}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")

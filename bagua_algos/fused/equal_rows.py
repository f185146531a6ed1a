"""Whether rows are equal, as an algorithm has promised: looked at without a pass over all of them.

Shapes: w workers held by this process, n elements of a row.
"""

import torch
from torch import Tensor

LOOKED_AT = 1 << 14
"""Elements of a row that are compared at a time."""
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BrokenPromiseError(ValueError):
    """Workers differ, and their algorithm says that they do not."""


class EqualRows:
    """Looks at all elements once, then at some each time, in turn."""

    def __init__(self) -> None:
        self._next: int | None = None

    def look_at(self, rows_wn: Tensor) -> None:
        """Raises `BrokenPromiseError` where gradients `[w, n]` are seen to differ in a bit."""
        if self._next is None:
            self._next = 0
            self.look_at_all(rows_wn)
            return
        self.look_at_all(rows_wn[:, self._next : self._next + LOOKED_AT])
        self._next = (self._next + LOOKED_AT) if self._next + LOOKED_AT < rows_wn.shape[1] else 0

    def look_at_all(self, rows_wn: Tensor) -> None:
        """Raises as `look_at` does, for any element."""
        if not are_equal(rows_wn):
            raise BrokenPromiseError(
                "the workers' gradients differ, and the algorithm promises that they do not: set "
                "gradients_agree = False in its class"
            )


def are_equal(rows_wn: Tensor) -> bool:
    """Whether all rows have the same bits; a NaN is equal to itself."""
    bits = rows_wn.view(_BITS.get(rows_wn.element_size(), torch.uint8))
    return torch.equal(bits, bits[:1].expand_as(bits))

"""Whether rows are equal, as an algorithm has promised: looked at without a pass over all of them.

Shapes: w workers held by this process, n elements of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_LOOKED_AT = 1 << 14
"""Elements of a row that are compared at a time."""
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BrokenPromiseError(ValueError):
    """Workers differ, and their algorithm says that they do not."""


class EqualRows:
    """Looks at all elements once, then at some each time, in turn.

    Args:
        whose: names the rows in an error.
        promise: the attribute of an `Algorithm` that promises it.
    """

    def __init__(self, whose: str, promise: str) -> None:
        self._whose, self._promise = whose, promise
        self._next: int | None = None

    def look_at(self, tensors: Sequence[Tensor]) -> None:
        """Raises `BrokenPromiseError` where rows of tensors `[w, ...]` differ in a bit."""
        rows = [x.detach().reshape(len(x), -1) for x in tensors]
        if self._next is None:
            self._next = 0
            for rows_wn in rows:
                self.look_at_all(rows_wn)
            return
        start = self._next
        for rows_wn in rows:
            size = rows_wn.shape[1]
            if start < size:
                self.look_at_all(rows_wn[:, start : start + _LOOKED_AT])
                self._next += min(_LOOKED_AT, size - start)
                return
            start -= size
        self._next = 0

    def look_at_all(self, rows_wn: Tensor) -> None:
        """Raises as `look_at` does, for any element."""
        if not are_equal(rows_wn):
            raise BrokenPromiseError(
                f"the workers' {self._whose} differ, and the algorithm promises that they do not: "
                f"set {self._promise} = False in its class"
            )


def are_equal(rows_wn: Tensor) -> bool:
    """Whether all rows have the same bits; a NaN is equal to itself."""
    bits = rows_wn.view(_BITS.get(rows_wn.element_size(), torch.uint8))
    return torch.equal(bits, bits[:1].expand_as(bits))

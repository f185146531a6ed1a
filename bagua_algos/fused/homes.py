"""Flat tensors in which parameters are neighbours."""

import bisect
from collections.abc import Sequence

from torch import Tensor


class Homes:
    """Flat tensors [n] whose neighbouring parts may be taken for one tensor."""

    def __init__(self) -> None:
        self._homes: list[Tensor] = []
        self._starts: list[int] = []

    def add(self, flat: Tensor) -> None:
        """One more; it is kept alive."""
        place = bisect.bisect(self._starts, flat.data_ptr())
        self._homes.insert(place, flat.detach())
        self._starts.insert(place, flat.data_ptr())

    def together(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """One flat tensor for contiguous ones that follow each other in a home; else None."""
        start = address = tensors[0].data_ptr()
        for tensor in tensors:
            if tensor.data_ptr() != address or not tensor.is_contiguous():
                return None
            address += tensor.numel() * tensor.element_size()
        place = bisect.bisect(self._starts, start) - 1
        if place < 0:
            return None
        home, size = self._homes[place], tensors[0].element_size()
        first, end = (start - self._starts[place]) // size, (address - self._starts[place]) // size
        if home.dtype != tensors[0].dtype or end > home.numel():
            return None
        return home[first:end]

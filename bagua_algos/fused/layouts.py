"""How the parameters of a strip lie in one flat tensor [n].

Slices      p0 p1 p2                    one worker's, one after the other
Rows        p0 p1 p2 0  p0 p1 p2 0      a bucket of several workers, row after row, with its padding
OneRow      p0 p1 p2 0                  of such a bucket, where all rows are equal
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.script.own_storage import with_own_storage
from bagua_algos.fused.equal_rows import EqualRows
from bagua_algos.fused.homes import Homes


class Layout(Protocol):
    """Where each parameter lies."""

    weights: Tensor
    """All parameters as one flat tensor, which is their memory."""

    count: int
    """How many parameters."""

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of `flat` [n], in its shape: the same memory behind storages of
        their own, so that a file that holds one of them holds no other.
        """
        ...

    def together(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The flat tensor whose parts these are; None where they are somewhere else."""
        ...

    def copied(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """One flat tensor of such parts, in `out` [n] if that is there."""
        ...

    def end_step(self) -> None:
        """The optimizer has changed `weights`."""
        ...


class Slices:
    """Neighbours in one of `homes`, one after the other."""

    def __init__(self, parameters: Sequence[nn.Parameter], homes: Homes) -> None:
        weights = homes.together([p.data for p in parameters])
        assert weights is not None, "the parameters are neighbours"
        self.weights = weights
        self.count = len(parameters)
        self._homes = homes
        self._shapes = [p.shape for p in parameters]
        self._at_home: tuple[list[int], Tensor] | None = None
        """Where the gradients were, if that was in a home, and all of them as one."""

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Slices."""
        return slices(flat, self._shapes)

    def together(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """As they are in a home."""
        addresses = [gradient.data_ptr() for gradient in gradients]
        if self._at_home is None or addresses != self._at_home[0]:
            together = self._homes.together(gradients)
            self._at_home = None if together is None else (addresses, together)
        elif not all(gradient.is_contiguous() for gradient in gradients):
            self._at_home = None
        return None if self._at_home is None else self._at_home[1]

    def copied(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """One after the other."""
        flat = [x if x.dim() == 1 else x.detach().reshape(-1) for x in tensors]
        return torch.cat(flat, out=out)

    def end_step(self) -> None:
        """Nothing is to be done: there is no padding."""


class Rows:
    """All parameters of a bucket [w, m] of several workers."""

    def __init__(self, bucket: Bucket) -> None:
        self.weights = bucket.weights.view(-1)
        self.count = len(bucket.parameters)
        self._bucket = bucket
        self._gradients = bucket.gradients.view(-1)
        self._addresses = [view.data_ptr() for view in bucket.gradient_views()]
        self._strides = [view.stride() for view in bucket.gradient_views()]

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's columns of all rows."""
        views = self._bucket.views(flat.detach().view_as(self._bucket.weights))
        return [with_own_storage(view) for view in views]

    def together(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The bucket's."""
        is_home = [x.data_ptr() for x in gradients] == self._addresses
        is_home = is_home and [x.stride() for x in gradients] == self._strides
        return self._gradients if is_home else None

    def copied(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Row after row; padding is zero."""
        flat = tensors[0].new_zeros(len(self.weights)) if out is None else out
        for part, x in zip(self.parts(flat), tensors, strict=True):
            part.copy_(x)
        return flat

    def end_step(self) -> None:
        """Keep padding zero: what gradients have there is of no parameter."""
        self._bucket.weights[:, self._bucket.numel :] = 0


class OneRow:
    """All parameters of a bucket [w, m] of several workers, whose weights, gradients and states are
    equal: worker 0's stand for all. States are `[w, ...]` of one row's memory, so that nobody can
    write to one worker's.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._of_all = Rows(bucket)
        self.weights = bucket.weights[0]
        self.count = self._of_all.count
        self._bucket = bucket
        self._equal = EqualRows()

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's columns, for all rows."""
        views = self._bucket.views(flat.detach().expand_as(self._bucket.weights))
        return [with_own_storage(view) for view in views]

    def together(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """Worker 0's in the bucket. Raises `ValueError` where others are found to differ."""
        if self._of_all.together(gradients) is None:
            return None
        self._equal.look_at(self._bucket.gradients[:, : self._bucket.numel])
        return self._bucket.gradients[0]

    def copied(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Worker 0's; padding is zero. Raises `ValueError` where others differ."""
        flat_wm = self._of_all.copied(tensors).view_as(self._bucket.weights)
        self._equal.look_at_all(flat_wm)
        return flat_wm[0].clone() if out is None else out.copy_(flat_wm[0])

    def end_step(self) -> None:
        """All rows are the first again; padding stays zero."""
        self.weights[self._bucket.numel :] = 0
        self._bucket.weights[1:] = self.weights


def slices(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The parts of `flat` [n] in these shapes, one after the other: the same memory behind storages
    of their own.
    """
    parts = flat.detach().split([shape.numel() for shape in shapes])
    return [with_own_storage(p.view(s)) for p, s in zip(parts, shapes, strict=True)]

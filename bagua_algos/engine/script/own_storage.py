"""Parameters whose memory lies in a flat tensor, each behind a storage of its own.

Inductor's kernels read vectors of 16 bytes where a parameter's offset in its storage says that they
can. It looks once, when it compiles.
"""

import sys

import torch
from torch import Tensor, nn

_ALIGNMENT = 16  # bytes


def with_own_storage(view: Tensor) -> Tensor:
    """The same memory behind a storage of its own: a file that holds one parameter then holds no
    other, and no two parameters seem to share memory.

    On a GPU the storage begins at an aligned address, so with up to 15 bytes of the neighbour: the
    offset in it then says how the memory is aligned.
    """
    if view.is_meta:
        return view
    if not view.is_cuda:
        return torch.from_dlpack(view)
    return with_aligned_storage(view)


def with_aligned_storage(view: Tensor) -> Tensor:
    """The same memory behind a storage that begins at a multiple of 16 bytes."""
    before = view.data_ptr() % _ALIGNMENT // view.element_size()
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    extent = before + last + 1 if view.numel() else before
    flat = view.as_strided((extent,), (1,), view.storage_offset() - before)
    return torch.from_dlpack(flat).as_strided(view.shape, view.stride(), before)


def move_into(parameter: nn.Parameter, view: Tensor) -> None:
    """Make `view`, which holds the parameter's values, its memory.

    Where a GPU's kernels have been compiled for memory that was aligned and is no longer, torch
    forgets all that it has compiled, and compiles it anew when it is next called.
    """
    is_worse = parameter.is_cuda and _is_aligned(parameter) and not _is_aligned(view)
    if is_worse and "torch._inductor.compile_fx" in sys.modules:  # else it has compiled nothing
        torch.compiler.reset()
    parameter.data = with_own_storage(view)


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % _ALIGNMENT == 0

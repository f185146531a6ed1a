"""Parameters whose memory lies in a flat tensor, each behind a storage of its own; and which memory
is not theirs alone.

Inductor's kernels read vectors of 16 bytes where a parameter's offset in its storage says that they
can. It looks once, when it compiles.
"""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_ALIGNMENT = 16  # bytes


def check_owns_memory(model: nn.Module) -> None:
    """Raise `ValueError` where the memory of a trainable parameter is that of another parameter or
    buffer, too, or of other processes: in a bucket it would be its own.
    """
    named = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    others = [x for name, x in [*named.items(), *model.named_buffers()] if name not in trained]
    for name, parameter in trained.items():
        if has_memory(parameter) and is_shared(parameter):
            raise ValueError(
                f"{name!r} lies in memory that other processes share, and would leave it: "
                "distribute copy.deepcopy(model), and have the others load its state_dict()"
            )
    pair = find_overlap(trained.values(), others)
    if pair is not None:
        names = {id(x): name for name, x in [*named.items(), *model.named_buffers()]}
        one, other = (names[id(x)] for x in pair)
        raise ValueError(
            f"{one!r} and {other!r} lie in the same memory and would be parted: make them one "
            "Parameter, as dec.weight = enc.weight does, or clone() one of them"
        )


def is_shared(x: Tensor) -> bool:
    """Whether other processes have the memory, too."""
    return x.device.type == "cpu" and x.is_shared()


def others_hold(x: Tensor) -> bool:
    """Whether another tensor has the storage, too: one that a script has made of it, as by
    `detach()`, or a graph's that is yet to be used.
    """
    return _num_holders(x) > _num_holders(torch.empty(1))


def _num_holders(x: Tensor) -> int:
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def find_overlap(
    these: Iterable[Tensor], others: Iterable[Tensor] = ()
) -> tuple[Tensor, Tensor] | None:
    """One of `these`, and another of them or one of `others`, that have an element in common."""
    both = [(x, is_one) for group, is_one in ((these, True), (others, False)) for x in group]
    spans = [(*_span(x), x, is_one) for x, is_one in both if has_memory(x)]
    open_spans: list[tuple[int, int, Tensor, bool]] = []
    for span in sorted(spans, key=lambda span: span[0]):
        start, _, x, is_one = span
        open_spans = [earlier for earlier in open_spans if earlier[1] > start]
        for _, _, y, is_other_one in open_spans:
            if (is_one or is_other_one) and _meet(x, y):
                return (x, y) if is_one else (y, x)
        open_spans.append(span)
    return None


def lies_in(x: Tensor, flat: Tensor) -> bool:
    """Whether the first element of `x` is in the memory of `flat`."""
    start, end = _span(flat)
    return x.device == flat.device and start <= x.data_ptr() < end


def has_memory(x: Tensor) -> bool:
    """Whether its elements have addresses."""
    is_plain = x.layout is torch.strided and not is_traceable_wrapper_subclass(x)
    return is_plain and not x.is_meta and x.numel() > 0


def _span(x: Tensor) -> tuple[int, int]:
    """The addresses at which it begins and ends."""
    return x.data_ptr(), x.data_ptr() + _extent(x) * x.element_size()


def _extent(x: Tensor) -> int:
    """The elements of its memory, with those of its gaps."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _meet(x: Tensor, y: Tensor) -> bool:
    """Whether `x`, which begins within the span of `y`, has an element in common with it: columns
    of a matrix have not.
    """
    if x.device != y.device:
        return False
    is_dense = _extent(y) == y.numel()  # so that the first element of `x` is in it
    if is_dense or x.element_size() != y.element_size():
        return True
    return bool(torch.isin(_addresses(x), _addresses(y)).any())


def _addresses(x: Tensor) -> Tensor:
    found = torch.tensor(x.data_ptr(), device="cpu")
    for size, stride in zip(x.shape, x.stride(), strict=True):
        found = found.unsqueeze(-1) + stride * x.element_size() * torch.arange(size, device="cpu")
    return found.reshape(-1)


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
    extent = before + _extent(view) if view.numel() else before
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

"""What kernels move through a device's memory: an estimate of their time where none can be run.

Every operation of torch reads its inputs from memory and writes its outputs to it, once, which
fused kernels would not. The limit of memory-bound kernels (Williams et al. 2009, "Roofline"); those
here are. A compressor is one kernel: see `CodeShapes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bagua_algos.compressors.compressor import Compressor, Draw

_OVERWRITES = {"copy_", "fill_", "zero_"}
_ALLOCATES = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
_SETS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}


def moved_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """What one operation of torch reads and writes; views and empty memory cost nothing."""
    name, schema = func.__name__.split(".")[0], func._schema
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    if is_view or name in _ALLOCATES:
        return 0
    given = [*zip(schema.arguments, args, strict=False)]
    given += [(a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs]
    num_bytes = 0
    for argument, value in given:
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        is_overwritten = is_written and (argument.is_out or name in _OVERWRITES)
        is_read = name not in _SETS and not is_overwritten
        num_bytes += (is_read + is_written) * sum(_memory_bytes(value))
    is_new = all(r.alias_info is None for r in schema.returns)
    return num_bytes + (sum(_memory_bytes(result)) if is_new else 0)


class MemoryTraffic(TorchDispatchMode):
    """A context that adds up in `num_bytes` what torch's operations in this thread move."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and count the bytes that it moves."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.num_bytes += moved_bytes(func, args, kwargs, result)
        return result


class NothingInPlace(TorchDispatchMode):
    """A context in which operations that overwrite the numbers of a tensor one by one are left out
    where it has none, on the meta device: its shape stays as it is. Torch takes longer to find that
    out than for all else of an optimizer's first step.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, unless it changes numbers alone."""
        first = func._schema.arguments[0].alias_info if func._schema.arguments else None
        is_in_place = first is not None and first.is_write
        if is_in_place and torch.Tag.pointwise in func.tags and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class CodeShapes:
    """Stands in for a `Compressor` where there are no numbers: the right shapes, and one kernel
    each, that reads a chunk twice (its range, then its values) and writes its code, or reads a code
    and writes a chunk.
    """

    compressor: Compressor
    traffic: MemoryTraffic

    @property
    def unbiased(self) -> bool:
        """Whether the code that it stands in for is unbiased."""
        return self.compressor.unbiased

    def wire_bytes(self, num_elements: int) -> int:
        """Bytes that a chunk of `num_elements` takes on the wire."""
        return self.compressor.wire_bytes(num_elements)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> empty uint8 `[..., wire_bytes(n)]`; counts two reads and a write."""
        shape = (*x.shape[:-1], self.wire_bytes(x.shape[-1]))
        payload = x.new_empty(shape, dtype=torch.uint8)
        self.traffic.num_bytes += 2 * x.nbytes + payload.nbytes
        return payload

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """Code -> an empty float32 `[..., num_elements]`; counts a read and a write."""
        shape = (*payload.shape[:-1], num_elements)
        x = payload.new_empty(shape, dtype=torch.float32)
        self.traffic.num_bytes += payload.nbytes + x.nbytes
        return x

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """Decode to a new tensor, then copy it into `out`."""
        out.copy_(self.decompress(payload, out.shape[-1]))

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """Decode all chunks, then average them: BAGUA's kernels do not decode and sum at once."""
        return self.decompress(payloads, num_elements).mean(-2)

    def average(self, payloads: Tensor, num_elements: int, draw: Draw | None = None) -> Tensor:
        """Decode, average and compress, by three kernels one after the other."""
        return self.compress(self.decompress_mean(payloads, num_elements), draw)


def fused_step_bytes(optimizer: Optimizer) -> int:
    """What a step of an optimizer that has its state moves in one kernel: it reads weights,
    gradients and state, and writes weights and state, of all parameters that have a gradient.
    """
    num_bytes = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = optimizer.state[parameter].values()
                rows = [x for x in state if isinstance(x, Tensor) and x.shape == parameter.shape]
                num_bytes += parameter.grad.nbytes + 2 * sum(x.nbytes for x in (parameter, *rows))
    return num_bytes


def _memory_bytes(values: Any) -> Iterator[int]:
    """Of each tensor in `values`; one that repeats its elements has them once in memory."""
    for x in tree_leaves(values):
        if isinstance(x, Tensor):
            yield min(x.nbytes, x.untyped_storage().nbytes())

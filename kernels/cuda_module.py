"""CUDA kernels through CuPy: compiled once, run on torch's tensors and torch's stream, no copies.

CuPy is imported by the first `load` or launch. NVRTC compiles a `.cu` for the device then, which
takes seconds, and CuPy keeps the result on disk (`~/.cupy/kernel_cache`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
OPTIONS = ("-std=c++17", "--fmad=false")

# As in tiles.cuh.
_PER_THREAD = 16
_MAX_THREADS = 256
_WARP = 32

_MAX_BLOCKS = 2**20  # of kernels that stride over what is left: any number is right
_BLOCKS_PER_PROCESSOR = 4  # as many as run at a time, see KERNEL in tiles.cuh
_STRIDING_BLOCKS_PER_PROCESSOR = 8  # that run at a time, or twice as many
_MANY_TILES = 1024  # twice as many as an H200 works on at a time
_MAX_TILES_PER_PIECE = 8
_STATE_WORDS = 4  # sizeof(RowState) / 8, two_passes.cuh

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@lru_cache(maxsize=1024)
def tiling_of(rows: int, n: int, step: int = 1) -> "Tiling":
    """The `Tiling`; what it comes to is worked out once."""
    return Tiling(rows, n, step)


@dataclass(frozen=True)
class Tiling:
    """How `rows` chunks of `n` elements, both at least 1, are cut into pieces of a block each.

    A tile is what a block holds in its registers: a multiple of `step` elements, but for a chunk's
    last. A piece is one tile or, where there are many, several. Nothing else decides: sums over a
    chunk have the same order on every device.
    """

    rows: int
    n: int
    step: int = 1

    @cached_property
    def threads(self) -> int:
        """Threads of a block: as few warps as hold a chunk, 8 at most."""
        return min(_MAX_THREADS, _WARP * -(-self.n // (_WARP * _PER_THREAD)))

    @cached_property
    def tile_size(self) -> int:
        """Elements of a tile."""
        return _PER_THREAD * self.threads // self.step * self.step

    @cached_property
    def tiles_per_row(self) -> int:
        """Tiles of a chunk."""
        return -(-self.n // self.tile_size)

    @cached_property
    def tiles(self) -> int:
        """Tiles of all chunks."""
        return self.rows * self.tiles_per_row

    @cached_property
    def piece_size(self) -> int:
        """Elements of a piece."""
        return self.tile_size * min(max(1, self.tiles // _MANY_TILES), _MAX_TILES_PER_PIECE)

    @cached_property
    def pieces_per_row(self) -> int:
        """Pieces of a chunk."""
        return -(-self.n // self.piece_size)

    @cached_property
    def pieces(self) -> int:
        """Pieces of all chunks."""
        return self.rows * self.pieces_per_row


@dataclass(frozen=True)
class CudaModule:
    """The kernels of one `.cu` file of this package."""

    file: str

    def load(self, device: torch.device) -> None:
        """Compile the kernels for `device`, or read what CuPy has kept."""
        with _current(device):
            _module(self.file).compile()

    def launch(
        self, kernel: str, args: tuple[Tensor | int, ...], tiling: Tiling, *, blocks: int = 0
    ) -> None:
        """Run `kernel` with so many blocks, else one a tile, on the current stream of the device of
        the tensors.

        Arguments are pointers (a tensor's, or 0 for none) and 64-bit integers.
        """
        self._launch(kernel, args, min(blocks or tiling.tiles, _MAX_BLOCKS), tiling.threads)

    def launch_striding(self, kernel: str, args: tuple[Tensor | int, ...], tiling: Tiling) -> None:
        """`launch`, but where tiles are many a block takes several, each as many.

        For kernels that first work out what all tiles have in common. Others are faster without.
        """
        at_most = _STRIDING_BLOCKS_PER_PROCESSOR * _processors(_device_of(args))
        tiles_of_block = -(-tiling.tiles // at_most)
        self.launch(kernel, args, tiling, blocks=-(-tiling.tiles // tiles_of_block))

    def launch_encoding(
        self,
        kernel: str,
        tensors: tuple[Tensor, ...],
        tiling: Tiling,
        *numbers: int,
        scratch: Callable[[], tuple[Tensor, ...]] = tuple,
    ) -> None:
        """Run `{kernel}_rows` where a block holds a row, else `{kernel}_tiles`, of two_passes.cuh.

        Both get the tensors, the number of rows, n and the `numbers`. The second gets what
        `scratch` makes and the rows' states behind the tensors, its pieces' size and the lag at the
        end.
        """
        sizes = tiling.rows, tiling.n, *numbers
        if tiling.tiles_per_row == 1:
            self.launch(f"{kernel}_rows", (*tensors, *sizes), tiling)
            return
        device = tensors[0].device
        blocks = min(2 * tiling.pieces, _BLOCKS_PER_PROCESSOR * _processors(device))
        lag = min(tiling.pieces, max(tiling.pieces_per_row, blocks))
        tensors = *tensors, *scratch(), row_states(tiling.rows, device)
        args = *tensors, *sizes, tiling.piece_size, lag
        self._launch(f"{kernel}_tiles", args, blocks, tiling.threads)

    def _launch(
        self, kernel: str, args: tuple[Tensor | int, ...], blocks: int, threads: int
    ) -> None:
        device = _device_of(args)
        values = tuple(arg.data_ptr() if isinstance(arg, Tensor) else arg for arg in args)
        stream = _Stream(torch.cuda.current_stream(device).cuda_stream)
        run = _function(self.file, kernel)
        # Where nothing has to change, `_current` would take longer than CUDA.
        is_current = torch.cuda.current_device() == device.index
        with nullcontext() if is_current else _current(device):
            run((blocks,), (threads,), values, stream=stream)


def row_states(rows: int, device: torch.device) -> Tensor:
    """Zeroed scratch: a `RowState` (two_passes.cuh) for each row, and one before them."""
    return torch.zeros(1 + rows, _STATE_WORDS, dtype=torch.int64, device=device)


def read_source(file: str) -> str:
    """The text of a file of this package with its includes in their places.

    CuPy knows compiled code by its text and options: it would miss a change in an included file.
    """
    return _INCLUDE.sub(lambda include: read_source(include[1]), (_FOLDER / file).read_text())


@cache
def _module(file: str) -> Any:
    return import_module("cupy").RawModule(code=read_source(file), options=OPTIONS)


@cache
def _function(file: str, kernel: str) -> Any:
    return _module(file).get_function(kernel)


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Within, `device` is the one that torch and CuPy use."""
    with torch.cuda.device(device), import_module("cupy").cuda.Device(device.index):
        yield


def _device_of(args: tuple[Tensor | int, ...]) -> torch.device:
    return next(arg.device for arg in args if isinstance(arg, Tensor))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True, slots=True)
class _Stream:
    """What CuPy reads of the stream that it is to launch on."""

    ptr: int

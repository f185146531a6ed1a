"""The launch code of the CUDA kernels against a device module that only takes notes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import (
    cuda_module,
    dispatch,
    fp8,
    minmax_uint8,
    qsgd,
    sign_scale,
)
from kernels.cuda_module import Tiling
from kernels.minmax_uint8 import cuda
from tests.torch_defaults import OTHER_DTYPES, default_dtype

PROCESSORS = 132


class RecordingCuda:
    """Stands in for `cupy` and the parts of `torch.cuda` that a launch needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.active: list[str] = []
        self.modules: list[tuple[str, tuple[str, ...]]] = []
        self.compiled: list[tuple[str, list[str]]] = []
        self.launches: list[SimpleNamespace] = []
        self.current_device: int | None = 1
        self.cuda = SimpleNamespace(Device=lambda index: self._note(f"cupy device {index}"))
        stream = SimpleNamespace(cuda_stream=77)
        properties = SimpleNamespace(multi_processor_count=PROCESSORS)
        monkeypatch.setitem(sys.modules, "cupy", self)
        monkeypatch.setattr(torch.cuda, "device", lambda d: self._note(f"torch device {d}"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current_device)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        cuda_module._module.cache_clear()
        cuda_module._function.cache_clear()
        cuda_module._processors.cache_clear()

    @contextmanager
    def _note(self, what: str) -> Iterator[None]:
        self.active.append(what)
        yield
        self.active.remove(what)

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:
        self.modules.append((code, options))
        return SimpleNamespace(
            get_function=self._function,
            compile=lambda: self.compiled.append((code, list(self.active))),
        )

    def _function(self, name: str) -> Any:
        def launch(
            grid: tuple[int], block: tuple[int], args: tuple[int, ...], *, stream: Any
        ) -> None:
            launched = SimpleNamespace(
                name=name,
                blocks=grid[0],
                threads=block[0],
                args=args,
                stream=stream.ptr,
                active=list(self.active),
            )
            self.launches.append(launched)

        return launch


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingCuda]:
    yield RecordingCuda(monkeypatch)
    for cached in (cuda_module._module, cuda_module._function, cuda_module._processors):
        cached.cache_clear()
    dispatch._backend.cache_clear()


def test_runs_on_the_current_stream_of_the_tensors_device(recorded: RecordingCuda) -> None:
    chunks, payload = torch.zeros(3, 100), torch.zeros(3, 112, dtype=torch.uint8)
    cuda.compress(chunks, payload)
    (launch,) = recorded.launches
    assert launch.active == ["torch device cpu", "cupy device None"]
    assert launch.stream == 77
    assert recorded.active == []
    assert launch.args == (chunks.data_ptr(), payload.data_ptr(), 3, 100)
    assert (launch.name, launch.blocks, launch.threads) == ("compress_f32_rows", 3, 32)


def test_sets_no_device_that_is_the_current_one(recorded: RecordingCuda) -> None:
    recorded.current_device = None  # a tensor's index on the CPU
    cuda.compress(torch.zeros(3, 100), torch.zeros(3, 112, dtype=torch.uint8))
    (launch,) = recorded.launches
    assert (launch.active, launch.stream) == ([], 77)


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_means_between_two_passes_are_float32(
    recorded: RecordingCuda, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    scratch: list[torch.Tensor] = []
    make = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, **how: scratch.append(make(*shape, **how)) or scratch[-1]
    )
    payloads = torch.zeros(2, 3, minmax_uint8.wire_bytes(5000), dtype=torch.uint8)
    with default_dtype(dtype):
        cuda.average(payloads, 5000, payloads[:, 0].contiguous())
    assert [(x.dtype, x.shape) for x in scratch] == [(torch.float32, (2, 5000))]
    assert recorded.launches[0].args[2] == scratch[0].data_ptr()


def test_compiles_a_file_once(recorded: RecordingCuda) -> None:
    chunks, payload = torch.zeros(1, 8), torch.zeros(1, 16, dtype=torch.uint8)
    for _ in range(2):
        cuda.compress(chunks, payload)
        cuda.decompress(payload, chunks)
    ((code, options),) = recorded.modules
    assert '#include "' not in code
    assert "--use_fast_math" not in options
    assert len(recorded.launches) == 4


@pytest.mark.parametrize("codec", [fp8, minmax_uint8, qsgd, sign_scale])
def test_load_compiles_before_the_first_launch(
    recorded: RecordingCuda, monkeypatch: pytest.MonkeyPatch, codec: ModuleType
) -> None:
    monkeypatch.setattr(dispatch, "why_no_kernels", lambda: None)
    device = torch.device("cuda", 1)
    codec.load(device)
    name = codec.__name__.removeprefix("kernels.")
    source = cuda_module.read_source(f"{name}/{name}.cu")
    assert recorded.compiled == [(source, ["torch device cuda:1", "cupy device 1"])]
    assert recorded.modules == [(source, cuda_module.OPTIONS)]
    assert recorded.launches == []


@pytest.mark.parametrize(
    ("rows", "n", "threads", "tiles", "pieces"),
    [
        (1, 1, 32, 1, 1),
        (2, 512, 32, 2, 2),
        (2, 513, 64, 2, 2),
        (5, 4096, 256, 5, 5),
        (5, 4097, 256, 10, 10),
        (1024, 4097, 256, 2048, 1024),  # pieces of two tiles
        (1, 2**33 + 1, 256, 2**21 + 1, 2**18 + 1),  # of eight
    ],
)
def test_tiling(rows: int, n: int, threads: int, tiles: int, pieces: int) -> None:
    tiling = Tiling(rows, n)
    assert (tiling.threads, tiling.tiles, tiling.pieces) == (threads, tiles, pieces)
    assert tiling.tile_size * tiling.tiles_per_row >= n
    assert tiling.piece_size * tiling.pieces_per_row >= n


@pytest.mark.parametrize(
    ("rows", "n", "blocks", "size", "lag"),
    [
        (1, 4097, 4, 4096, 2),  # two tickets a piece
        (1, 4096 * 1000, 4 * PROCESSORS, 4096, 1000),
        (500, 8192, 4 * PROCESSORS, 4096, 4 * PROCESSORS),
        (600, 8192 * 8192, 4 * PROCESSORS, 8 * 4096, 2048),
    ],
)
def test_two_passes_lag_a_row_at_least(
    recorded: RecordingCuda, rows: int, n: int, blocks: int, size: int, lag: int
) -> None:
    tiling, tensor = Tiling(rows, n), torch.zeros(1)
    module = cuda_module.CudaModule("fp8/fp8.cu")
    scratch = torch.zeros(2)
    module.launch_encoding("compress", (tensor,), tiling, 5, scratch=lambda: (scratch,))
    (launch,) = recorded.launches
    assert (launch.name, launch.blocks, launch.threads) == ("compress_tiles", blocks, 256)
    first, second, _states, *numbers = launch.args
    assert (first, second) == (tensor.data_ptr(), scratch.data_ptr())
    assert numbers == [rows, n, 5, size, lag]


def test_a_row_that_a_block_holds_takes_one_pass_and_no_scratch(recorded: RecordingCuda) -> None:
    tensor, module = torch.zeros(1), cuda_module.CudaModule("fp8/fp8.cu")
    module.launch_encoding("compress", (tensor,), Tiling(3, 4096), 5, scratch=lambda: 1 / 0)
    (launch,) = recorded.launches
    assert (launch.name, launch.blocks) == ("compress_rows", 3)
    assert launch.args == (tensor.data_ptr(), 3, 4096, 5)


def test_blocks_stay_within_the_device_s_limits(recorded: RecordingCuda) -> None:
    module = cuda_module.CudaModule("fp8/fp8.cu")
    module.launch("kernel", (torch.zeros(1),), Tiling(2**40, 1))
    assert recorded.launches[0].blocks < 2**31


IMPORT_ALL = """
import sys
import kernels.fp8.cuda, kernels.minmax_uint8.cuda, kernels.qsgd.cuda, kernels.sign_scale.cuda
assert "cupy" not in sys.modules
"""


def test_importing_needs_no_cupy() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True)

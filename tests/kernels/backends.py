"""The codecs and the back ends that every suite here runs over."""

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

RUBBISH = 0xFF  # in outputs beforehand
STREAMS = torch.tensor([[3, 1, 0], [3, 1, 2**32 - 1]])  # of the two workers whose chunks they are
KEY = (7, 2**32 - 1)
NUM_ROWS = 2 * len(STREAMS)


@dataclass(frozen=True)
class Codec:
    """A code with its settings."""

    name: str
    settings: tuple[Any, ...] = ()

    def wire_bytes(self, n: int) -> int:
        settings = self.settings if self.name == "qsgd" else ()
        return importlib.import_module(f"kernels.{self.name}").wire_bytes(n, *settings)

    def __str__(self) -> str:
        return "-".join(map(str, (self.name, *self.settings)))


@dataclass(frozen=True)
class Backend:
    """One form of the kernels on one device; tensors come from the CPU and return to it."""

    form: str

    @property
    def device(self) -> str:
        return "cuda" if self.form == "cuda" else "cpu"

    def module(self, codec: Codec) -> ModuleType:
        return importlib.import_module(f"kernels.{codec.name}.{self.form}")

    def compress(self, codec: Codec, chunks: Tensor) -> Tensor:
        payload = self._payload(codec, *chunks.shape)
        draws = (STREAMS[: len(chunks)].to(self.device), KEY) if codec.name == "qsgd" else ()
        chunks = chunks.to(self.device)
        self.module(codec).compress(chunks, payload, *draws, *codec.settings)
        return payload.cpu()

    def compress_with_feedback(
        self, codec: Codec, chunks: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor]:
        payload, left = self._payload(codec, *chunks.shape), residual.to(self.device, copy=True)
        self.module(codec).compress_with_feedback(chunks.to(self.device), left, payload)
        return payload.cpu(), left.cpu()

    def decompress(
        self, codec: Codec, payload: Tensor, n: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        chunks = torch.full((len(payload), n), torch.nan, dtype=dtype, device=self.device)
        self.module(codec).decompress(payload.to(self.device), chunks, *codec.settings)
        return chunks.cpu()

    def decompress_mean(self, codec: Codec, payloads: Tensor, n: int) -> Tensor:
        shape = (len(payloads), n)
        chunks = torch.full(shape, torch.nan, dtype=torch.float32, device=self.device)
        self.module(codec).decompress_mean(payloads.to(self.device), chunks, *codec.settings)
        return chunks.cpu()

    def average(self, codec: Codec, payloads: Tensor, n: int) -> Tensor:
        payload = self._payload(codec, len(payloads), n)
        self.module(codec).average(payloads.to(self.device), n, payload)
        return payload.cpu()

    def _payload(self, codec: Codec, num_rows: int, n: int) -> Tensor:
        shape = (num_rows, codec.wire_bytes(n))
        return torch.full(shape, RUBBISH, dtype=torch.uint8, device=self.device)


MINMAX, SIGNS = Codec("minmax_uint8"), Codec("sign_scale")
QSGD = [Codec("qsgd", code) for code in ((2, 48), (4, 512), (4, 5), (8, 20_000))]
FP8 = [Codec("fp8", (wire,)) for wire in ("fp8_e4m3", "fp8_e5m2")]
every_codec = pytest.mark.parametrize("codec", [MINMAX, SIGNS, *QSGD, *FP8], ids=str)

HAS_CUDA = torch.cuda.is_available() and importlib.util.find_spec("cupy") is not None
needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_CUDA, reason="needs an NVIDIA GPU and CuPy"),
]
REFERENCE = Backend("reference")
FAST = [
    pytest.param(Backend("cpu"), id="numba"),
    pytest.param(Backend("cuda"), id="cuda", marks=needs_cuda),
]
fast_backends = pytest.mark.parametrize("backend", FAST)
every_backend = pytest.mark.parametrize("backend", [pytest.param(REFERENCE, id="reference"), *FAST])

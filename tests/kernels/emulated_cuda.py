"""In place of CuPy and a GPU: kernels compile with g++ and run on the CPU (cuda_emulation.h).

`EmulatedCuda.install` puts it under the launch code of `kernels.cuda_module`, which then takes CPU
tensors and does all else as on a GPU.
"""

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import cuda_module
from tests.once import compiled_once

HEADER = Path(__file__).with_name("cuda_emulation.h")
COMPILE = ["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
COMPILE += ["-pthread", "-shared", "-fPIC", "-o", "kernels.so", "kernels.cpp"]
MAX_ARGS = 12  # of `emulate`


@dataclass(kw_only=True)
class EmulatedCuda:
    """Stands in for the package `cupy`; `launched` are the names of the kernels that have run."""

    at_a_time: int = 3
    launched: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until `monkeypatch` undoes it."""
        cupy = SimpleNamespace(RawModule=self.raw_module, cuda=SimpleNamespace())
        cupy.cuda.Device = lambda index: nullcontext()
        stream = SimpleNamespace(cuda_stream=0)
        processors = SimpleNamespace(multi_processor_count=1)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: processors)
        for cached in (cuda_module._module, cuda_module._function, cuda_module._processors):
            monkeypatch.setattr(cuda_module, cached.__name__, cached.__wrapped__)

    def raw_module(self, *, code: str, options: tuple[str, ...]) -> SimpleNamespace:
        """Like `cupy.RawModule`."""
        source = HEADER.read_text() + code
        library = ctypes.CDLL(str(compiled_once(COMPILE, source) / "kernels.so"))
        return SimpleNamespace(get_function=lambda name: self._kernel(library, name))

    def _kernel(self, library: ctypes.CDLL, name: str) -> Callable[..., None]:
        kernel = getattr(library, name)

        def launch(
            grid: tuple[int], block: tuple[int], args: tuple[int, ...], stream: object = None
        ) -> None:
            self.launched.append(name)
            assert len(args) <= MAX_ARGS
            padded = (ctypes.c_longlong * MAX_ARGS)(*args)
            library.emulate(kernel, padded, *grid, *block, self.at_a_time)

        return launch

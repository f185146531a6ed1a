"""The GPUs of this host: which there are, and which worker computes on which.

4 workers, 4 GPUs     one each
4 workers, 2 GPUs     worker r on GPU r mod 2: shared, so their step times are no claim

Imports no torch, which takes seconds: where there can be no GPU is told before that.
"""

import ctypes
import functools
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from host.errors import UserError
from host.processes import run_in_child

_ASKING_S = 60
_DRIVER = "libcuda.so.1"
_SIGNS = (
    *("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-ctrl", "/dev/dxg"),
    "/run/opengl-driver/lib/libcuda.so.1",  # of NixOS, where torch finds what Python does not
)
"""Of a GPU and its driver."""
_INSTEAD = "take backend=gloo for real workers, device=cpu for simulated ones"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One, as CUDA describes it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which GPU each worker computes on: they take them in turn.

    Raises `UserError` where there is none.
    """

    num_workers: int
    gpus: tuple[Gpu, ...]

    def __post_init__(self) -> None:
        if not self.gpus:
            raise UserError(f"{why_no_gpu()}: {_INSTEAD}")

    @property
    def is_shared(self) -> bool:
        """Whether some worker's GPU is another's too."""
        return self.num_workers > len(self.gpus)

    @property
    def models(self) -> str:
        """The names of the GPUs that are used, each once."""
        return ", ".join(dict.fromkeys(gpu.name for gpu in self.gpus[: self.num_workers]))

    def index(self, rank: int) -> int:
        """CUDA's number of a worker's GPU."""
        return rank % len(self.gpus)


def placement(num_workers: int) -> Placement:
    """The workers of this host on its GPUs. Raises `UserError` where it has none."""
    return Placement(num_workers=num_workers, gpus=find_gpus())


@functools.cache
def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that torch can use, in CUDA's order; CUDA_VISIBLE_DEVICES counts.

    A child asks: a process that has asked CUDA has initialised it, and none that it forks
    afterwards can use a GPU.

    Raises:
        UserError: the driver does not answer.
    """
    if not _is_built():
        return ()
    try:
        return run_in_child(_ask_cuda, doing="asking CUDA for its GPUs", limit_s=_ASKING_S)
    except RuntimeError as error:  # CUDA's, or a ChildError
        raise UserError(
            f"CUDA could not be asked for its GPUs within {_ASKING_S} s: does nvidia-smi answer?"
        ) from error


def why_no_gpu() -> str:
    """To be said to who needs a GPU where `find_gpus` finds none."""
    cause = ""
    if not _is_built():
        cause = f" (torch {_torch_version().__version__} has no CUDA)"
    elif not _has_driver():
        cause = f" (no {_DRIVER}, which comes with NVIDIA's driver)"
    return f"there is no NVIDIA GPU here that torch can use{cause}"


def check_driver() -> None:
    """Raise `UserError` where there is no GPU, as far as that is seen without asking CUDA: this
    build of torch has no CUDA, or this host has no driver.
    """
    if not _is_built() or not _has_driver():
        raise UserError(f"{why_no_gpu()}: {_INSTEAD}")


def _is_built() -> bool:
    """Whether torch can use GPUs, which AMD's are to it, too."""
    version = _torch_version()
    return (version.cuda or getattr(version, "hip", None)) is not None


@functools.cache
def _torch_version() -> ModuleType:
    """What torch's build says of itself."""
    package = importlib.util.find_spec("torch")
    assert package is not None and package.origin is not None, "relaxlab needs it"
    file = Path(package.origin).with_name("version.py")
    spec = importlib.util.spec_from_file_location("torch_version", file)
    assert spec is not None and spec.loader is not None
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    return version


def _has_driver() -> bool:
    """Whether there may be one: it is asked later."""
    if getattr(_torch_version(), "hip", None) is not None:
        return True  # AMD's is another one, and torch knows
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return any(map(os.path.exists, _SIGNS))
    return True


def _ask_cuda() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(Gpu(name=d.name, memory_bytes=d.total_memory) for d in devices)

"""Speed of every kernel on this machine's devices, against torch and against the memory.

    python -m kernels.bench [--device cpu cuda] [--mbytes 16] [--dtype float32] [--compile]

The limit is the time in which a plain copy would move the bytes that a kernel has to: compression
reads a chunk twice (its range or norm, then its elements) and writes its code, decompression reads
codes and writes a chunk; means are of 4 codes. More than 100 % means that a cache held part of what
the limit takes to be read from memory. "New output" allocates the result in each call: on a CPU it
adds the page faults of fresh memory. All forms of a kernel take turns. One CPU thread is timed by
its own clock, so that other work on the machine counts little; several threads are timed by the
wall clock. A GPU is kept busy while a call is enqueued, so its time has no wait for the host in it;
"host us" is what the host takes for that.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from host import commands
from host.command_line.parser import Parser
from host.environment import cpu_model
from host.output import check_folder, writing
from kernels.bench_cases import cases
from kernels.dispatch import why_no_kernels

DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float16, torch.bfloat16)}
DEFAULT_MBYTES = {"cpu": [16], "cuda": [1, 16, 256, 1024]}
MIN_REPEATS = 7
_SLEEP_CYCLES = 5_000_000  # of a GPU: 2 to 4 ms


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One kernel on one device: seconds `[repeats]` of each form of it that could be run."""

    device: str
    mbytes: int
    dtype: str
    kernel: str
    num_bytes: int
    """What it has to move."""
    copy_bytes: int
    """What the copy moves."""
    seconds: dict[str, np.ndarray]
    host_s: np.ndarray
    """The time `[repeats]` for which the kernel's caller is busy: on a CPU all of it."""

    def ratios(self) -> dict[str, np.ndarray]:
        """What the table shows, `[repeats]` each."""
        kernel_s = self.seconds["kernel"]
        bytes_per_s, limit = self.num_bytes / kernel_s, self.copy_bytes / self.seconds["copy"]
        ratios = {"ms": 1e3 * kernel_s, "GB/s": bytes_per_s / 1e9}
        if self.device == "cuda":
            ratios["host us"] = 1e6 * self.host_s
        for peer in ("eager", "compiled"):
            if peer in self.seconds:
                ratios[f"x {peer}"] = self.seconds[peer] / kernel_s
        return ratios | {"% of limit": 100 * bytes_per_s / limit}

    def record(self) -> dict[str, Any]:
        """For JSON: medians with their spread."""
        named = {"device": self.device, "mbytes": self.mbytes, "dtype": self.dtype}
        return {**named, "kernel": self.kernel} | {
            name: {"median": float(np.median(v)), "min": float(v.min()), "max": float(v.max())}
            for name, v in self.ratios().items()
        }


def main() -> None:
    """Measure, print a table a device and size, and write them all where `--json` says."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    results: list[Timing] = []
    for device in args.device:
        print(f"{_name(device)}, torch {torch.__version__}, numba {numba.__version__}")
        for mbytes in args.mbytes or DEFAULT_MBYTES[device]:
            print(f"one chunk of {mbytes} MiB {args.dtype}", end="")
            print(f", {args.threads} thread(s)" * (device == "cpu"), end="")
            print(f", {args.repeats} interleaved repeats: median (min..max)\n")
            found = measure(device, mbytes, args.dtype, args.repeats, with_compiled=args.compile)
            _print_table(found)
            results += found
            if args.json is not None:  # each time: a later size may be cut short
                records = [result.record() for result in results]
                with writing(args.json, "another --json"):
                    args.json.write_text(json.dumps(records, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    has_cuda = torch.cuda.is_available()
    parser = Parser(prog="python -m kernels.bench", description="Speed of every kernel.")
    parser.add_argument("--device", nargs="+", choices=["cpu", "cuda"])
    parser.add_argument("--mbytes", nargs="+", type=int, help="sizes of the chunk of numbers, MiB")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--repeats", type=int, default=15, help=f"{MIN_REPEATS} or more")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (default 1)")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also time torch.compile of the reference, which needs a compiler and minutes",
    )
    parser.add_argument("--json", type=Path, help="write what was measured to this file, too")
    args = parser.parse_args()
    args.device = args.device or ["cpu"] + ["cuda"] * has_cuda
    if "cuda" in args.device and not has_cuda:
        parser.error("--device cuda needs an NVIDIA GPU, and torch finds none")
    obstacle = why_no_kernels() if "cuda" in args.device else None
    if obstacle is not None:
        parser.error(
            f"--device cuda measures the CUDA kernels, but {obstacle}: choose --device cpu"
        )
    if min(args.mbytes or [1]) < 1 or args.repeats < MIN_REPEATS or args.threads < 1:
        parser.error(f"--mbytes, --threads must be 1 or more, --repeats {MIN_REPEATS} or more")
    if args.json is not None:
        check_folder(args.json.parent, "another --json")
    return args


def measure(
    device: str, mbytes: int, dtype: str, repeats: int, *, with_compiled: bool
) -> list[Timing]:
    """All kernels on one chunk of normally distributed numbers."""
    n = mbytes * 2**20 // DTYPES[dtype].itemsize
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(1, n, generator=generator, device=device).to(DTYPES[dtype])
    y, results = torch.empty_like(x), []
    for case in cases(x):
        forms: dict[str, Callable[[], object]] = {"copy": lambda: y.copy_(x), "kernel": case.run}
        forms["eager"] = lambda case=case: case.reference(*case.arguments)
        if with_compiled:
            compiled = torch.compile(case.reference, dynamic=False)
            forms["compiled"] = lambda case=case, f=compiled: f(*case.arguments)
        seconds, host_s = _take_turns(forms, repeats, device)
        results.append(
            Timing(
                device=device,
                mbytes=mbytes,
                dtype=dtype,
                kernel=case.name,
                num_bytes=case.num_bytes,
                copy_bytes=2 * x.nbytes,
                seconds=seconds,
                host_s=host_s["kernel"],
            )
        )
    return results


def _take_turns(
    forms: dict[str, Callable[[], object]], repeats: int, device: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Time every form once in each repeat, so that a slow moment of the machine hits all; seconds
    on the device, and of the host.

    A peer that does not fit in the device's memory, or that torch cannot compile, is left out.
    """
    for name in list(forms):
        try:
            forms[name]()
        except Exception as error:
            is_large = name == "eager" and isinstance(error, torch.OutOfMemoryError)
            if not is_large and name != "compiled":
                raise
            print(f"{name} is left out: {str(error).splitlines()[0]}")
            del forms[name]
    seconds_of = _cuda_seconds if device == "cuda" else _seconds
    seconds, host_s = ({name: np.empty(repeats) for name in forms} for _ in range(2))
    for repeat in range(repeats):
        for name, run in forms.items():
            seconds[name][repeat], host_s[name][repeat] = seconds_of(run)
    return seconds, host_s


def _seconds(run: Callable[[], object]) -> tuple[float, float]:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    took_s = clock() - start
    return took_s, took_s


def _cuda_seconds(run: Callable[[], object]) -> tuple[float, float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SLEEP_CYCLES)  # while the host enqueues
    start.record()
    began_s = time.perf_counter()
    run()
    host_s = time.perf_counter() - began_s
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3, host_s


def _print_table(results: list[Timing]) -> None:
    headings = list(max((result.ratios() for result in results), key=len))
    print(f"{'':<38}" + "".join(f"{heading:>24}" for heading in headings))
    copy = results[0]
    gbytes_per_s = copy.copy_bytes / copy.seconds["copy"] / 1e9
    copy_ms = 1e3 * copy.seconds["copy"]
    print(f"{'copy':<38}" + "".join(f"{_spread(v):>24}" for v in (copy_ms, gbytes_per_s)))
    for result in results:
        ratios = result.ratios()
        cells = (_spread(ratios[h]) if h in ratios else "-" for h in headings)
        print(f"{result.kernel:<38}" + "".join(f"{cell:>24}" for cell in cells))
    print()


def _spread(values: np.ndarray) -> str:
    return f"{np.median(values):.4g} ({values.min():.3g}..{values.max():.3g})"


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else cpu_model() or platform.machine()


if __name__ == "__main__":
    commands.run(main, at_once=True)

"""Speed of the CPU kernels on one thread, against the torch reference and against the memory.

    python -m kernels.bench [--mbytes 16] [--repeats 15]

The limit is the time in which a plain copy would move the same bytes: compression reads the floats
twice (range, then codes) and writes a quarter; decompression reads a quarter and writes the floats.
More than 100 % means that a cache held part of what the limit takes to be read from memory. "New
output" allocates the result in each call: what it adds are the page faults of fresh memory.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import torch

from kernels import minmax_uint8_reference as reference
from kernels.minmax_uint8 import compress, decompress

Seconds = dict[str, np.ndarray]  # of each measured function: [repeats]

_BYTES_MOVED = {"copy": 2.0, "compress": 2.25, "decompress": 1.25}  # per byte of floats
_NEW = ", new output"
_TORCH = ", torch"


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description="Speed of the MinMaxUInt8 kernels on one thread.")
    parser.add_argument("--mbytes", type=int, default=16, help="size of the chunk of floats, MiB")
    parser.add_argument("--repeats", type=int, default=15, help="interleaved repeats, 7 or more")
    args = parser.parse_args()
    if args.mbytes < 1 or args.repeats < 7:
        parser.error("--mbytes must be 1 or more, and --repeats 7 or more")

    torch.set_num_threads(1)
    num_bytes = args.mbytes * 2**20
    seconds = _measure(_functions(num_bytes), args.repeats)
    print(_machine())
    print(f"one chunk of {args.mbytes} MiB float32, one thread, {args.repeats} interleaved repeats")
    print("median (min..max); GB/s count the floats once, those of the copy every byte moved\n")
    _print_table(seconds, num_bytes)


def _functions(num_bytes: int) -> dict[str, Callable[[], object]]:
    n = num_bytes // 4
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    y = torch.empty_like(x)
    payload = compress(x)
    return {
        "copy": lambda: y.copy_(x),
        "compress": lambda: compress(x, out=payload),
        "compress" + _NEW: lambda: compress(x),
        "compress" + _TORCH: lambda: reference.compress(x, payload),
        "decompress": lambda: decompress(payload, n, out=y),
        "decompress" + _NEW: lambda: decompress(payload, n),
        "decompress" + _TORCH: lambda: reference.decompress(payload, y),
    }


def _measure(functions: dict[str, Callable[[], object]], repeats: int) -> Seconds:
    """Time every function once in each repeat, so that a slow moment of the machine hits all."""
    seconds = {name: np.empty(repeats) for name in functions}
    for function in functions.values():
        function()
    for repeat in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name][repeat] = time.perf_counter() - start
    return seconds


def _print_table(seconds: Seconds, num_bytes: int) -> None:
    copy_gbytes_per_s = _BYTES_MOVED["copy"] * num_bytes / seconds["copy"] / 1e9
    print(f"{'':<24}{'GB/s':>24}{'x torch eager':>24}{'% of the limit':>24}")
    print(f"{'copy':<24}{_spread(copy_gbytes_per_s):>24}")
    for kernel in ("compress", "decompress"):
        for name in (kernel, kernel + _NEW, kernel + _TORCH):
            gbytes_per_s = num_bytes / seconds[name] / 1e9
            speedup = seconds[kernel + _TORCH] / seconds[name]
            limit_pct = 100 * gbytes_per_s * _BYTES_MOVED[kernel] / copy_gbytes_per_s
            columns = (gbytes_per_s, speedup, limit_pct)
            print(f"{name:<24}" + "".join(f"{_spread(column):>24}" for column in columns))


def _spread(values: np.ndarray) -> str:
    return f"{np.median(values):.1f} ({values.min():.1f}..{values.max():.1f})"


def _machine() -> str:
    return f"{_cpu_model()}, torch {torch.__version__}, numba {numba.__version__}"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

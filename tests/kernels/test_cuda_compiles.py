"""Every .cu compiles for the GPUs it is meant for, in CI too: nvcc needs none."""

import re
import shutil
from pathlib import Path

import pytest

from kernels.cuda_module import read_source
from tests.once import compiled_once
from tests.paths import ROOT

KERNELS = ROOT / "kernels"
FILES = sorted(str(path.relative_to(KERNELS)) for path in KERNELS.glob("**/*.cu"))
MAX_REGISTERS = 128  # of a thread: two blocks of 256 run at a time on a processor
STRICT = ["-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"]
# CuPy adds the first and leaves no way to take it away; the second is nvcc's own default.
HOSTILE = ["-ftz=true", "-fmad=true"]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
every_file = pytest.mark.parametrize("file", FILES)


def nvcc(source: str, *options: str) -> Path:
    """The folder in which it is compiled; nvcc takes most of the time, and takes it once."""
    return compiled_once(["nvcc", "-std=c++17", *STRICT, *options], source)


def ptx(file: str) -> str:
    options = ("--ptx", "-arch=compute_80", *HOSTILE, "kernels.cu")
    return (nvcc(read_source(file), *options) / "kernels.ptx").read_text()


def test_there_is_a_file_for_every_codec() -> None:
    assert [
        f"{codec}/{codec}.cu" for codec in ("fp8", "minmax_uint8", "qsgd", "sign_scale")
    ] == FILES


@needs_nvcc
@every_file
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_compiles_without_warnings_or_spills(file: str, architecture: str) -> None:
    target = f"arch=compute_80,code={architecture}"
    folder = nvcc(ptx(file), "--cubin", "-gencode", target, "kernels.ptx")
    report = (folder / "said").read_text()
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert len(registers) == report.count("Compiling entry function") > 0
    assert max(registers) <= MAX_REGISTERS
    assert len(spills) >= 2 * len(registers)
    assert set(spills) == {"0"}


@needs_nvcc
@every_file
def test_no_flag_changes_the_arithmetic(file: str) -> None:
    text = ptx(file)
    ours = re.findall(r"// begin inline asm(.*?)// end inline asm", text, re.DOTALL)
    rest = re.sub(r"// begin inline asm(.*?)// end inline asm", "", text, flags=re.DOTALL)
    assert any("div.rn.f32" in instruction for instruction in ours)
    assert not any(".ftz" in instruction for instruction in ours)
    assert ".ftz" not in rest
    assert not re.findall(r"(?:add|sub|mul|fma|div|min|max|neg|setp)\S*\.f32", rest)

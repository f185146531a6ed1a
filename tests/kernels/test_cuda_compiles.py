"""Every .cu compiles for the GPUs it is meant for, in CI too: nvcc needs none."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.cuda_module import read_source
from tests.paths import ROOT

KERNELS = ROOT / "kernels"
FILES = sorted(str(path.relative_to(KERNELS)) for path in KERNELS.glob("**/*.cu"))
MAX_REGISTERS = 128  # of a thread: two blocks of 256 run at a time on a processor
STRICT = ["-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"]
# CuPy adds the first and leaves no way to take it away; the second is nvcc's own default.
HOSTILE = ["-ftz=true", "-fmad=true"]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
every_file = pytest.mark.parametrize("file", FILES)


def nvcc(source: str, folder: Path, *options: str) -> str:
    """Compile, and return what the compiler says."""
    path = folder / "kernels.cu"
    path.write_text(source)
    result = subprocess.run(
        ["nvcc", "-std=c++17", *options, str(path)], capture_output=True, text=True, cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_there_is_a_file_for_every_codec() -> None:
    assert [
        f"{codec}/{codec}.cu" for codec in ("fp8", "minmax_uint8", "qsgd", "sign_scale")
    ] == FILES


@needs_nvcc
@every_file
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_compiles_without_warnings_or_spills(file: str, architecture: str, tmp_path: Path) -> None:
    source = read_source(file)
    report = nvcc(source, tmp_path, "--cubin", f"-arch={architecture}", *STRICT)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert len(registers) == report.count("Compiling entry function") > 0
    assert max(registers) <= MAX_REGISTERS
    assert len(spills) >= 2 * len(registers)
    assert set(spills) == {"0"}


@needs_nvcc
@every_file
def test_no_flag_changes_the_arithmetic(file: str, tmp_path: Path) -> None:
    nvcc(read_source(file), tmp_path, "--ptx", "-arch=sm_80", *HOSTILE)
    ptx = (tmp_path / "kernels.ptx").read_text()
    ours = re.findall(r"// begin inline asm(.*?)// end inline asm", ptx, re.DOTALL)
    rest = re.sub(r"// begin inline asm(.*?)// end inline asm", "", ptx, flags=re.DOTALL)
    assert any("div.rn.f32" in instruction for instruction in ours)
    assert not any(".ftz" in instruction for instruction in ours)
    assert ".ftz" not in rest
    assert not re.findall(r"(?:add|sub|mul|fma|div|min|max|neg|setp)\S*\.f32", rest)

"""The benchmark runs and reports every row; what it measures is not judged."""

import subprocess
import sys


def test_prints_every_row() -> None:
    command = [sys.executable, "-m", "kernels.bench", "--mbytes", "1", "--repeats", "7"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if ".." in line and not line.startswith("median")]
    assert [row.partition("  ")[0] for row in rows] == [
        "copy",
        "compress",
        "compress, new output",
        "compress, torch",
        "decompress",
        "decompress, new output",
        "decompress, torch",
    ]
    assert "torch" in printed.splitlines()[0]

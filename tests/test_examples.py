"""The example of the README, as a user starts it."""

import re
import subprocess
import sys

from tests.paths import ROOT


def test_one_line_distributes_ones_own_script():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "--master-port", "0", "--rdzv-backend", "c10d", "examples/train.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Both workers write to one pipe: one's line may begin before the other's has ended.
    pattern = r"worker (\d): error (\d\.\d{4}), weights (-?\d+\.\d{6})"
    lines = sorted(re.findall(pattern, ended.stdout))
    assert [rank for rank, _, _ in lines] == ["0", "1"]
    assert all(float(error) < 0.5 for _, error, _ in lines)  # 7.4 before training
    assert lines[0][2] == lines[1][2]
    assert len((ROOT / "examples" / "train.py").read_text().splitlines()) <= 33

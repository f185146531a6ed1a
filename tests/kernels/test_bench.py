"""The benchmark runs and reports every row; what it measures is not judged."""

import importlib.util
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from host.errors import UserError
from kernels.bench import main
from tests import app

CODECS = ["minmax_uint8", "sign_scale", "qsgd_2", "qsgd_4", "qsgd_8", "fp8_e4m3", "fp8_e5m2"]
KERNELS = {f"{c} {f}" for c in CODECS for f in ("compress", "decompress", "decompress_mean")} | {
    "minmax_uint8 average",
    "minmax_uint8 compress, new output",
    "minmax_uint8 decompress, new output",
    "sign_scale compress_with_feedback",
}


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("--device", "cpu", "--repeats", "7", *words)
    return app.run(*command, module="kernels.bench", strict=False)


def test_prints_and_writes_every_row(tmp_path) -> None:
    path = tmp_path / "bench.json"
    finished = bench("--mbytes", "1", "--json", str(path))
    assert finished.returncode == 0, finished.stderr
    rows = [line for line in finished.stdout.splitlines() if ".." in line and "median" not in line]
    assert {row.partition("  ")[0] for row in rows} == KERNELS | {"copy"}
    records = json.loads(path.read_text())
    assert {record["kernel"] for record in records} == KERNELS
    for record in records:
        assert (record["device"], record["mbytes"], record["dtype"]) == ("cpu", 1, "float32")
        for figure in ("ms", "GB/s", "x eager", "% of limit"):
            assert record[figure]["min"] <= record[figure]["median"] <= record[figure]["max"]


def test_too_few_repeats_are_refused() -> None:
    finished = bench("--repeats", "3")
    assert finished.returncode == 2
    assert "--repeats 7 or more" in finished.stderr


def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(tmp_path) -> None:
    (tmp_path / "file").touch()
    finished = bench("--mbytes", "1", "--json", str(tmp_path / "file" / "bench.json"))
    assert (finished.returncode, finished.stdout) == (2, "")
    (line,) = finished.stderr.splitlines()
    assert "cannot be written (" in line and line.endswith("choose another --json")


def test_a_gpu_without_kernels_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--device", "cuda"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(UserError, match=r"but the GPU is older than .* 8\.0: choose --device cpu"):
        main()

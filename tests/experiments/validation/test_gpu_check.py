"""The command of everything that needs a GPU, on parts that need none."""

import json
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from experiments.commands.checks.gpu_check import main
from experiments.real.nccl import SOCKETS
from experiments.validation.gpu.check import (
    LIMIT_S,
    RESULTS,
    CheckPart,
    PartFailedError,
    check,
    run_part,
)
from experiments.validation.gpu.parts import (
    PARTS,
    TESTS,
    read_nccl,
    read_optimizers,
    read_shared,
    read_tests,
    read_versions,
    select,
)
from experiments.validation.nccl.transfers import Transfers, read_transfers
from experiments.validation.rounds import print_rounds
from host.errors import UserError
from host.gpus import Gpu
from tests import app
from tests.experiments.training.test_device_trace import event, steps
from tests.paths import ROOT

GPU = Gpu(name="NVIDIA H200 (made up)", memory_bytes=1 << 37)


def part(name, code, **options):
    """Runs Python `code`, which finds its folder in sys.argv[1]."""
    options = {"read": lambda folder: {"answer": 42}, "limit_s": 30} | options
    return CheckPart(name=name, command=lambda folder: ["timeit", "-n1", "-r1", code], **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_one_sentence_and_writes_nothing():
    before = RESULTS.exists() and sorted(RESULTS.iterdir())
    done = app.run(module="experiments.gpu_check", limit_s=100)
    assert done.returncode == 2
    assert done.stdout == ""
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("gpu-check measured nothing, since there is no NVIDIA GPU here")
    assert before == (RESULTS.exists() and sorted(RESULTS.iterdir()))


def test_all_parts_together_take_less_than_eight_minutes(tmp_path, monkeypatch):
    assert LIMIT_S < 8 * 60
    monkeypatch.setattr("experiments.validation.gpu.check.LIMIT_S", 1.0)
    sleep = "import time; time.sleep(60)"
    parts = tuple(part(str(number), sleep) for number in range(3))
    started_s = time.monotonic()
    assert not check(GPU, parts, tmp_path)
    assert time.monotonic() - started_s < 30
    outcomes = json.loads((tmp_path / "nvidia-h200-made-up.json").read_text())["parts"]
    assert outcomes["0"]["reason"].startswith("not done within")
    assert outcomes["2"]["reason"] == "no time was left for it"


def test_nothing_that_a_part_started_goes_on_after_it(tmp_path):
    child = "import subprocess; subprocess.Popen(['sleep', '76.5'])"
    assert run_part(part("leaves one", child), tmp_path).reason is None
    app.wait_for(lambda: not running("sleep", "76.5"), 60, "end of what the part had started")


def running(*command: str) -> bool:
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            commands.append(file.read_bytes())
    assert commands
    return "".join(f"{word}\0" for word in command).encode() in commands


def test_what_a_failed_part_printed_names_no_folder_of_the_machine(tmp_path):
    code = "import sys; from host import errors; sys.exit(f'{sys.executable} {errors.__file__}')"
    outcome = run_part(part("fails", code), tmp_path)
    assert outcome.printed[-1] == "SystemExit: python host/errors.py"
    assert outcome.reason == "exit code 1: SystemExit: python host/errors.py"


def test_what_passed_is_on_disk_before_the_next_part_begins(tmp_path):
    seen = []

    def read(folder):
        seen.append(sorted(file.name for file in tmp_path.iterdir()))
        return {}

    check(GPU, (part("one", "pass", read=read), part("two", "pass", read=read)), tmp_path)
    assert seen == [[], ["nvidia-h200-made-up.json", "nvidia-h200-made-up.md"]]


def test_a_driver_that_does_not_answer_is_one_sentence(monkeypatch, capsys):
    def no_answer():
        raise UserError("the GPU driver did not answer within 60 s")

    monkeypatch.setattr("host.gpus.find_gpus", no_answer)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert main() == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert "did not answer" in sentence


def test_figures_are_written_where_a_part_passed_and_nowhere_else(tmp_path, capsys):
    def broken(folder):
        raise PartFailedError("it sent by shared memory")

    parts = (
        part("good", "pass"),
        part("bad", "raise SystemExit('no such thing')"),
        part("wrong", "pass", read=broken),
        part("late", "import time; time.sleep(60)", limit_s=0.5),
    )
    assert not check(GPU, parts, tmp_path)
    record = json.loads((tmp_path / "nvidia-h200-made-up.json").read_text())
    assert record["device"] == GPU.name
    outcomes = record["parts"]
    assert outcomes["good"]["figures"] == {"answer": 42}
    assert [name for name, o in outcomes.items() if o["passed"]] == ["good"]
    assert all("figures" not in outcomes[name] for name in ("bad", "wrong", "late"))
    assert outcomes["bad"]["reason"] == "exit code 1: SystemExit: no such thing"
    assert outcomes["wrong"]["reason"] == "PartFailedError: it sent by shared memory"
    assert outcomes["late"]["reason"].startswith("not done within 0.5 s")
    assert "SystemExit: no such thing" in outcomes["bad"]["printed"][-1]
    table = (tmp_path / "nvidia-h200-made-up.md").read_text()
    assert "| good | passed |" in table
    assert "answer 42" in table
    assert table in capsys.readouterr().out
    assert check(GPU, parts[:1], tmp_path)


def test_a_suite_of_which_all_is_skipped_has_tested_nothing(tmp_path):
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="5" skipped="5" failures="0"/></testsuites>'
    )
    with pytest.raises(PartFailedError, match="no test ran, of 5"):
        read_tests(tmp_path)
    (tmp_path / "tests.xml").write_text('<testsuite tests="5" skipped="2" failures="0"/>')
    assert read_tests(tmp_path) == {"passed": 3, "skipped": 2}


def test_parts_are_chosen_by_name():
    assert select([]) == PARTS
    assert [part.name for part in select(["NCCL over wan", "versions"])] == [
        "versions",
        "NCCL over wan",
    ]
    with pytest.raises(UserError, match="no part 'wan': choose of versions, tests"):
        select(["wan"])


def test_a_selection_replaces_no_record_of_all_parts(tmp_path):
    check(GPU, (part("all", "pass"),), tmp_path)
    check(GPU, (part("some part", "pass"),), tmp_path, selection=["some part"])
    names = {"nvidia-h200-made-up", "nvidia-h200-made-up-some-part"}
    assert {file.stem for file in tmp_path.iterdir()} == names
    [record] = [f for f in tmp_path.glob("*.json") if "some" not in f.name]
    assert list(json.loads(record.read_text())["parts"]) == ["all"]


def test_a_part_with_its_own_time_takes_none_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.validation.gpu.check.LIMIT_S", 0.0)
    own = part("own", "pass", has_own_time=True)
    check(GPU, (own, part("other", "pass")), tmp_path)
    outcomes = json.loads((tmp_path / "nvidia-h200-made-up.json").read_text())["parts"]
    assert outcomes["own"]["passed"]
    assert outcomes["other"]["reason"] == "no time was left for it"


def test_nccls_transports_are_compared_over_three_networks_each_within_ten_minutes():
    own = {part.name: part for part in PARTS if part.has_own_time}
    assert list(own) == ["NCCL over lan_1g", "NCCL over lossy", "NCCL over wan"]
    for name, one in own.items():
        words = one.command(Path())
        assert words[:2] == ["experiments.bench_nccl", f"net={name.split()[-1]}"]
        assert float(words[words.index("--budget") + 1]) < one.limit_s < 600


def test_all_reduces_and_a_refusal_stand_beneath_the_table_of_the_parts(tmp_path):
    taken = Transfers(
        net="wan",
        links="tbf",
        rounds=2,
        shared_gpu=True,
        seconds={"own sockets, 1": {1: [0.8, 1.0]}, "bagua_net, 1": {1: [0.4, 0.5]}},
    )
    refused = Transfers(net="wan", refused="NCCL refused two workers on one GPU: as it says")
    for transfers, shown in ((taken, "| 1 | 9.437 (8.389 to 10.49) |"), (refused, "as it says")):
        kept = tmp_path / "nccl.json"
        kept.write_text(json.dumps(transfers.record()))
        one = part(
            "NCCL over wan", "pass", read=lambda folder: read_nccl(tmp_path), page=PARTS[-1].page
        )
        assert check(GPU, (one,), tmp_path / "results")
        [record, page] = sorted((tmp_path / "results").iterdir())
        assert shown in page.read_text().partition("| NCCL over wan | passed |")[2]
        figures = json.loads(record.read_text())["parts"]["NCCL over wan"]["figures"]
        assert read_transfers(figures) == transfers


@pytest.fixture
def shared_run(tmp_path):
    """What two workers on one GPU leave behind."""

    def write(*, is_shared=True, transport=SOCKETS + "/0", waits=()):
        summary = {
            **{"algo": "bytegrad", "status": "completed", "steps": 20},
            **{"final_accuracy": 0.5, "bytes_sent_per_worker": 1e6},
            **{"shared_gpu": is_shared, "steps_per_s": 3.0},
        }
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        log = (
            "host:1:2 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n"
            f"host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {transport}\n"
        )
        (tmp_path / "nccl.17.log").write_text(log)
        for rank in (0, 1):
            trace = {"traceEvents": [*steps(), *waits]}
            (tmp_path / f"trace.{rank}.json").write_text(json.dumps(trace))
        return tmp_path

    return write


def test_a_shared_gpus_figures_hold_no_time(shared_run):
    figures = read_shared(shared_run())
    assert figures["connections"] == {SOCKETS: 1}
    assert figures["nccl"] == "2.27.3+cuda12.9"
    assert figures["hidden_share_of_communication"] == pytest.approx([1 / 3, 1 / 3])
    assert not [name for name in figures if name.endswith("_s")]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"is_shared": False}, "does not say"),
        ({"transport": "SHM/direct/direct"}, "SHM"),
        ({"transport": "P2P/CUMEM"}, "P2P"),
        ({"waits": [event("cuda_runtime", "cudaStreamSynchronize", 3300, 1)]}, "waited"),
    ],
)
def test_a_shared_run_that_is_not_what_it_should_be_fails(shared_run, what, reason):
    with pytest.raises(PartFailedError, match=reason):
        read_shared(shared_run(**what))


def test_versions_are_found_beside_what_timeit_says(tmp_path):
    told = {"driver": "NVIDIA H200 (made up), 580.1", "nccl": [2, 28, 9]}
    (tmp_path / "output.txt").write_text(f"{json.dumps(told)}\n1 loop, best of 1: 3.5 sec\n")
    assert read_versions(tmp_path) == told
    (tmp_path / "output.txt").write_text("1 loop, best of 1: 3.5 sec\n")
    with pytest.raises(PartFailedError, match="no line of the output is JSON"):
        read_versions(tmp_path)


def test_what_a_bench_of_optimizers_prints_is_read(tmp_path, capsys):
    rows = {"AdamW, 500 of 64: ms, ours": [0.5, 0.25, 1.0], "AdamW, 500 of 64: loop / ours": [20.0]}
    print_rounds("fused optimizer: milliseconds a step", rows)
    (tmp_path / "output.txt").write_text(capsys.readouterr().out)
    found = read_optimizers(tmp_path)
    assert found == {
        "medians": {"AdamW, 500 of 64: ms, ours": 0.5, "AdamW, 500 of 64: loop / ours": 20.0}
    }


def test_no_test_that_needs_a_gpu_is_left_out():
    mark = re.compile(r"pytest\.mark\.gpu\b|needs_cuda|fast_backends|every_backend")
    files = set((ROOT / "tests").rglob("test_*.py")) - {Path(__file__)}
    marked = [file for file in files if mark.search(file.read_text())]
    assert len(marked) > 5
    for file in marked:
        assert any(file.is_relative_to(ROOT / folder) for folder in TESTS), file

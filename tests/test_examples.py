"""The examples of the README and of the docs, as a user starts them."""

import re
from importlib.util import find_spec

import pytest

import bagua_algos
from tests import app
from tests.paths import ROOT

TORCHRUN = (
    *("--master-port=0", "--rdzv-backend=c10d", "--nproc-per-node=2"),
    *("--start-method=fork", "--run-path"),  # workers need not import torch again
)


def printed(example: str, num_processes: int = 2) -> str:
    """By processes as torchrun's that have inherited torch: seconds sooner."""
    script = f"examples/{example}"
    ended = app.run(num_processes, script, module="tests.torchrun", limit_s=120, strict=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def measures(output: str) -> list[float]:
    """What an example's two workers print at the end: rank, measure and sum of weights."""
    # Both workers write to one pipe: one's line may begin before the other's has ended.
    pattern = r"worker (\d): [a-z]+ (\d\.\d+), weights (-?\d+\.\d{6})"
    lines = sorted(re.findall(pattern, output))
    assert [rank for rank, _, _ in lines] == ["0", "1"]
    assert lines[0][2] == lines[1][2]
    return [float(measure) for _, measure, _ in lines]


@pytest.mark.slow
def test_one_line_distributes_ones_own_script():
    started = app.run(*TORCHRUN, "examples/train.py", module="torch.distributed.run", strict=False)
    assert started.returncode == 0, started.stdout + started.stderr
    errors = measures(started.stdout)
    assert max(errors) < 0.5  # 7.4 before training
    assert len((ROOT / "examples" / "train.py").read_text().splitlines()) <= 33


@pytest.mark.slow
def test_a_gpt():
    assert max(measures(printed("gpt.py"))) < 2.8  # 4.7 before training


@pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="needs the extra lightning")
def test_lightnings_trainer():
    assert min(measures(printed("lightning_trainer.py"))) > 0.9  # 0.1 before training


@pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="needs the extra transformers",
)
def test_the_trainer_of_transformers():
    assert max(measures(printed("transformers_trainer.py"))) < 3.3  # 4.9 before training


@pytest.mark.slow
def test_sharded_replicas_meet_every_few_steps():
    output = printed("fsdp2.py", num_processes=4)
    lines = sorted(re.findall(r"replica (\d), shard (\d): error (\d\.\d{4})", output))
    assert [line[:2] for line in lines] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert float(lines[0][2]) < 0.5  # 7.4 before training
    assert len({error for _, _, error in lines}) == 1  # of the consensus


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("library.md", "gpt.py"),
        ("trainers.md", "lightning_trainer.py"),
        ("trainers.md", "transformers_trainer.py"),
        ("fsdp2.md", "fsdp2.py"),
    ],
)
def test_the_docs_show_what_is_different_from_the_plain_script(page, example):
    script = (ROOT / "examples" / example).read_text().splitlines()
    _, section = (ROOT / "docs" / page).read_text().split(f"[examples/{example}]", 1)
    changes = re.findall(r"^    ([+-])(.*)$", section.split("\n## ")[0], re.MULTILINE)
    added = [line for sign, line in changes if sign == "+"]
    assert 2 <= len(added) <= 5
    assert [line for line in script if line in added] == added
    assert not any(line in script for sign, line in changes if sign == "-")


def test_the_docs_make_each_algorithm_as_they_say():
    page = (ROOT / "docs" / "library.md").read_text()
    section = page.split("## Which algorithm\n")[1].split("\n## ")[0]
    names = dict(vars(bagua_algos))
    exec(re.sub(r"^    ", "", "".join(re.findall(r"^    .*\n", section, re.M)), flags=re.M), names)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.M)
    assert len(rows) >= 19
    for name, cell in rows:
        made = [eval(line, names) for line in re.findall(r"`([A-Z]\w+\(.*?\))`", cell)]
        assert made, name
        assert all(isinstance(algorithm, bagua_algos.Algorithm) for algorithm in made), name

"""Shares of unlike examples: every example at one worker, and the weights of a mean."""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.report.data import ReportData
from experiments.report.sections import shares as section
from experiments.runs.run import known_summary
from experiments.tasks.base import Split, TaskData
from experiments.tasks.batches import Batches
from experiments.tasks.own.splits import DatasetSplit
from experiments.tasks.partitions import Partition, Shares
from experiments.tasks.target import Target
from experiments.training.step import make_step
from host.errors import UserError
from tests.experiments.recorded import write_run

CLASSES, WORKERS, EXAMPLES = 10, 6, 3_001


def split() -> Split:
    chance = np.random.default_rng(3)
    y, sources = chance.integers(CLASSES, size=EXAMPLES), chance.integers(20, size=EXAMPLES)
    x = chance.integers(256, size=(EXAMPLES, 28, 28), dtype=np.uint8)
    return Split(x, y, sources)


def shares(kind: str, batch_size: int = 8, seed: int = 0, workers: int = WORKERS, **of) -> Shares:
    partition = Partition(kind=kind, **of)
    return partition.shares(split(), num_workers=workers, batch_size=batch_size, seed=seed)


EVERY = [
    *({"kind": "dirichlet", "alpha": a, "sizes": s} for a in (1e-6, 0.1, 10) for s in ("equal",)),
    *({"kind": kind, "sizes": "equal"} for kind in ("by_class", "by_source")),
    *({"kind": kind, "sizes": "unequal"} for kind in ("by_class", "by_source")),
    {"kind": "dirichlet", "alpha": 0.3, "sizes": "unequal"},
]


@pytest.mark.parametrize("words", EVERY, ids=str)
def test_every_example_is_at_one_worker(words):
    own = shares(**words)
    assert sorted(np.concatenate(own.of_workers)) == list(range(EXAMPLES))
    assert own.counts.sum(1).tolist() == own.sizes.tolist()
    assert own.weights.mean() == pytest.approx(1)
    if words["sizes"] == "equal":
        assert np.ptp(own.sizes) <= 1
    else:
        assert np.ptp(own.sizes) > 100
    again, other = shares(**words), shares(**words, seed=1)
    assert all(map(np.array_equal, own.of_workers, again.of_workers))
    assert not all(map(np.array_equal, own.of_workers, other.of_workers))


def test_groups_are_as_uneven_as_asked():
    def most(**words) -> float:
        counts = shares(**words).counts
        return float(np.median(counts.max(1) / counts.sum(1)))

    uneven = [most(kind="dirichlet", alpha=alpha) for alpha in (0.05, 0.5, 5, 500)]
    assert uneven == sorted(uneven, reverse=True) and uneven[-1] < 0.15 < 0.5 < uneven[0]
    held = (shares("by_class").counts > 0).sum(1)
    assert held.max() <= 3  # 10 classes on 6 workers: a share is 1.7 of them, cut at two places
    whole = shares("by_source", sizes="unequal").counts
    assert ((whole > 0).sum(0) == 1).all()


def test_a_worker_sees_all_of_its_share_before_it_sees_an_example_again():
    own = shares("dirichlet", alpha=0.3, sizes="unequal")
    sizes = {"num_examples": EXAMPLES, "world_size": WORKERS, "batch_size": 8, "seed": 5}
    batches = Batches(**sizes, ranks=tuple(range(WORKERS)), order=own)
    seen = np.concatenate([batches.indices(step) for step in range(200)], axis=1)
    for rank, examples in enumerate(own.of_workers):
        passes = seen[rank][: 1600 // len(examples) * len(examples)].reshape(-1, len(examples))
        assert len(passes) >= 1
        for one in passes:
            assert sorted(one) == sorted(examples)
        alone = Batches(**sizes, ranks=(rank,), order=own)
        assert np.array_equal(alone.indices(150)[0], seen[rank][1200:1208])
    assert not np.array_equal(passes[0], passes[-1]) or len(passes) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"kind": "by_classes"}, "choose iid, dirichlet"),
        ({"kind": "iid", "alpha": 0.1}, "data.alpha is of data.partition=dirichlet"),
        ({"kind": "iid", "sizes": "unequal"}, "iid has equal sizes"),
        ({"kind": "dirichlet"}, "such as data.alpha=0.1, but got none"),
        ({"kind": "dirichlet", "alpha": 0.0}, "but got 0.0"),
        ({"kind": "by_class", "sizes": "any"}, "choose equal or unequal"),
    ],
)
def test_what_there_is_not_is_refused(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        Partition(**words)


def test_tasks_without_groups_are_refused():
    one = Split(np.zeros((9, 4)), np.zeros((9, 4), np.int64))
    for kind, sentence in (("by_class", "one class an example"), ("by_source", "sources are")):
        with pytest.raises(UserError, match=sentence):
            Partition(kind=kind).shares(one, num_workers=2, batch_size=1, seed=0)


FEWER, SMALLER, EQUAL = "fewer workers", "a smaller batch_size", "data.sizes=equal"


@pytest.mark.parametrize(
    ("words", "workers", "batch_size", "helps"),
    [
        ({"kind": "by_class", "sizes": "unequal"}, 11, 1, [FEWER, EQUAL]),  # of ten classes
        ({"kind": "by_class", "sizes": "unequal"}, 10, 60, [FEWER, SMALLER]),
        ({"kind": "by_class"}, 10, 60, [FEWER, SMALLER]),
        ({"kind": "dirichlet", "alpha": 0.1}, 10, 60, [FEWER, SMALLER]),
        (
            {"kind": "dirichlet", "alpha": 1e-3, "sizes": "unequal"},
            *(50, 9),
            [FEWER, SMALLER, "a greater data.alpha", EQUAL],
        ),
    ],
)
def test_a_worker_without_a_batch_is_told_of_with_what_helps(words, workers, batch_size, helps):
    classes = Split(np.zeros((500, 4)), np.arange(500) % 10)
    sizes = {"num_workers": workers, "batch_size": batch_size, "seed": 0}
    with pytest.raises(UserError, match=f"leaves a worker .*: take {' or '.join(helps)}$"):
        Partition(**words).shares(classes, **sizes)
    if EQUAL in helps:
        assert Partition(**words | {"sizes": "equal"}).shares(classes, **sizes)
    if "a greater data.alpha" in helps:
        assert Partition(**words | {"alpha": 1e3}).shares(classes, **sizes)


def parted(kind: str, **attributes) -> Shares:
    """Six examples of a Dataset with these attributes, over two workers."""
    dataset = type("Own", (list,), attributes)(range(6))
    return Partition(kind=kind).shares(DatasetSplit(dataset), num_workers=2, batch_size=1, seed=0)


@pytest.mark.parametrize(
    "sources", [[-1, -1, 5, 5, -1, 5], [10**12, 7] * 3, ["ann", "bob"] * 3], ids=str
)
def test_sources_are_told_apart_by_any_numbers_or_names(sources):
    own = parted("by_source", sources=sources)
    assert sorted(np.concatenate(own.of_workers)) == list(range(6))
    assert all(len({sources[example] for example in examples}) == 1 for examples in own.of_workers)
    assert own.counts.tolist() in ([[3, 0], [0, 3]], [[0, 3], [3, 0]])


@pytest.mark.parametrize(
    ("kind", "attributes", "sentence"),
    [
        ("by_source", {"sources": [0, 1]}, r"one source of each of 6 .* names \[2\]: give"),
        ("by_class", {"targets": [0, 1] * 4}, r"one class of each of 6 .* names \[8\]: give"),
        ("by_class", {"targets": [0, 1, -1] * 2}, "classes from 0 on, but one is -1: leave out"),
        ("by_class", {"targets": [0.3, 1.7, -0.5] * 2}, "needs a task with one class an example"),
    ],
)
def test_groups_that_would_lose_examples_are_refused(kind, attributes, sentence):
    with pytest.raises(UserError, match=sentence):
        parted(kind, **attributes)


def test_classes_may_be_written_as_floats():
    own = parted("by_class", targets=[0.0, 1.0] * 3)
    assert own.counts.tolist() in ([[3, 0], [0, 3]], [[0, 3], [3, 0]])


def planned(folder, *words: str):
    always = ("task=mnist5k", "model=mlp", "model.hidden=[8]", "backend=sim", "workers=3")
    return make_plan(compose_config([*always, *words]), folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("algo=local_sgd",), "local_sgd averages models"),
        (("algo=allreduce", "clip_norm=1"), "which clip_norm would undo"),
        (("algo=allreduce", "data.sampler=balanced"), "take data.sampler=shuffled"),
    ],
)
def test_weights_that_cannot_follow_are_refused(words, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        planned(tmp_path, *words, "data.partition=by_class", "data.sizes=unequal")


def test_a_step_on_unequal_shares_is_that_of_the_weighted_mean(tmp_path):
    words = ("data.partition=dirichlet", "data.alpha=0.3", "data.sizes=unequal", "batch_size=4")
    plan = planned(tmp_path, "algo=allreduce", *words, "optim=sgd", "optim.lr=1")
    data = TaskData(split(), split(), split())
    own = plan.shares(data.train)
    assert own is not None
    batch_wb = plan.batches(data, (0, 1, 2)).indices(7)
    start = torch.cat([p.detach().flatten() for p in plan.model.parameters()])
    expected = torch.zeros_like(start)
    for indices, size in zip(batch_wb, own.sizes, strict=True):
        outputs = plan.model(plan.task.inputs(torch.from_numpy(data.train.x[indices])))
        loss = F.cross_entropy(outputs, torch.from_numpy(data.train.y[indices]))
        grads = torch.autograd.grad(loss, list(plan.model.parameters()))
        expected += size / EXAMPLES * torch.cat([g.flatten() for g in grads])
    model = StackedModel(plan.model, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    step = make_step(plan, data.train, model, optimizer, StackedCommunicator(3))
    step(batch_wb)
    moved = start - torch.cat([p.detach()[0].flatten() for p in model.parameters()])
    step.distributed.close()
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)


def test_partitions_are_situations_of_their_own_and_a_picture(tmp_path):
    data = TaskData(split(), split(), split())
    for seed in range(2):
        for alpha in (None, 0.1, 1.0):
            of_run = [] if alpha is None else ["data.partition=dirichlet", f"data.alpha={alpha}"]
            plan = planned(tmp_path, "algo=allreduce", *of_run)
            run = tmp_path / f"{alpha}_{seed}"
            write_run(run, seed=seed, shares=known_summary(plan, data).shares)
            if alpha is not None:
                text = f"\ndata: {{partition: dirichlet, alpha: {alpha}}}\n"
                (run / "config.yaml").write_text((run / "config.yaml").read_text() + text)
    study = ReportData.load(tmp_path)
    assert list(study.table.partition.fillna("iid")) == [
        *("dirichlet, alpha=0.1", "dirichlet, alpha=1", "iid")
    ]
    assert set(study.table["name"]) == {"allreduce"} and (study.table.runs == 2).all()
    made = section.section(study)
    counts = np.array(
        json.loads((tmp_path / "0.1_0" / "summary.json").read_text())["shares"]["counts"]
    )
    assert counts.sum() == EXAMPLES
    panels = [axes for axes in made.figures["shares"].axes if axes.get_title("left")]
    assert [axes.get_title("left").split("alpha=")[1][0:3] for axes in panels] == ["0.1", "1, "]
    drawn = np.asarray(panels[0].images[0].get_array())
    np.testing.assert_allclose(drawn, 100 * counts / counts.sum(1, keepdims=True))
    assert "of 10 classes" in made.finding
    assert pd.isna(study.table.partition.iloc[-1])


def test_accuracy_in_the_end_stands_side_by_side_for_all_partitions(tmp_path):
    finals = {("allreduce", None): 0.9, ("allreduce", 0.1): 0.7, ("bytegrad", 1.0): 0.95}
    for (algo, alpha), final in finals.items():
        for seed in range(3):
            run = tmp_path / f"{algo}_{alpha}_{seed}"
            own = {} if alpha is None else {"final_own_score": final - 0.2}
            target = Target(value=0.5 if alpha is None else 0.6)
            shares = {"of": "classes", "counts": [[3, 4], [4, 3]]}
            accuracy = final + (seed - 1) / 100
            fields = {"final_accuracy": accuracy, "target": target, "shares": shares, **own}
            write_run(run, algo, seed=seed, **fields)
            if alpha is not None:
                text = f"\ndata: {{partition: dirichlet, alpha: {alpha}}}\n"
                (run / "config.yaml").write_text((run / "config.yaml").read_text() + text)
    tables = section.section(ReportData.load(tmp_path)).tables
    names = ["iid", "dirichlet, alpha=1", "dirichlet, alpha=0.1"]
    final = tables["final_over_partitions"]
    assert [*final.cells][-3:] == names
    assert final.cells["algorithm"] == ["bytegrad", "allreduce"]
    assert [final.cells[name] for name in names] == [
        ["-", "0.900 (0.875 to 0.925)"],
        ["0.950 (0.925 to 0.975)", "-"],
        ["-", "0.700 (0.676 to 0.725)"],
    ]
    assert final.numbers[names].iloc[1].tolist()[::2] == [0.9, 0.7]
    own = tables["final_own_over_partitions"]
    assert names[0] not in own.cells  # nobody was scored there
    assert [own.cells[name] for name in names[1:]] == [["0.750", "-"], ["-", "0.500"]]


def test_accuracies_of_several_targets_have_a_row_for_each(tmp_path):
    for partition, target in product(("iid", "by_class"), (0.5, 0.6)):
        run = tmp_path / f"{partition}_{target}"
        shares = {"of": "classes", "counts": [[3, 4], [4, 3]]}
        final = target + (0.3 if partition == "iid" else 0.2)
        write_run(run, target_accuracy=target, final_accuracy=final, shares=shares)
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(f"{config}\ndata: {{partition: {partition}}}\n")
    table = section.section(ReportData.load(tmp_path)).tables["final_over_partitions"]
    assert table.cells["target"] == ["0.6", "0.5"]
    assert table.cells["iid"] == ["0.900", "0.800"] and table.cells["by_class"] == [
        "0.800",
        "0.700",
    ]
    assert list(table.numbers.target) == ["accuracy 0.6", "accuracy 0.5"]


def test_other_data_of_one_task_are_another_situation(tmp_path):
    for root in ("a", "b"):
        write_run(tmp_path / root, task="image_folder")
        text = f"\ntask: {{root: {root}, size: 8}}\n"
        (tmp_path / root / "config.yaml").write_text(
            (tmp_path / root / "config.yaml").read_text() + text
        )
    table = ReportData.load(tmp_path).table
    assert list(table["data"]) == ["root=a", "root=b"] and set(table["name"]) == {"allreduce"}

"""Tasks that people know, from files in the formats that they are published in."""

import numpy as np
import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.runs.run import load_data, run
from experiments.tasks.own import answers
from experiments.tasks.own.glue import Glue
from experiments.tasks.own.speech_commands import SpeechCommands
from experiments.tasks.own.squad import Squad
from experiments.tasks.own.tables import Table
from experiments.tasks.own.tar_shards import TarShards
from host.errors import UserError
from tests.experiments.tasks.own import formats
from tests.experiments.tasks.own.made import pictures
from tests.experiments.training.stacked import rows_of

FEW = ("algo=allreduce", "net=none", "workers=3", "batch_size=4", "max_steps=2", "eval_every=1")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_rows_of_every_format(suffix, tmp_path):
    rows = formats.questions(11)
    formats.write(rows[:6], tmp_path / f"a{suffix}")
    formats.write(rows[6:], tmp_path / f"b{suffix}")
    table = Table([tmp_path / f"{name}{suffix}" for name in "ab"])
    assert [table[index] for index in range(len(table))] == rows
    assert table.column("question") == [row["question"] for row in rows]
    (tmp_path / f"a{suffix}").write_bytes(b"nothing {")
    with pytest.raises(UserError, match=r"cannot be read .*: copy it anew"):
        Table([tmp_path / f"a{suffix}"])


def test_answers_are_found_in_the_text(tmp_path):
    words = formats.tokenizer(tmp_path / "words")
    task = Squad(root=str(formats.squad(tmp_path)), tokenizer=str(words), max_tokens=24)
    data = task.load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 7, 7]
    x, y = data.validation.batch(np.arange(7)[None])
    assert {name: part.shape for name, part in x.items()} == dict.fromkeys(x, (1, 7, 24))
    right = torch.nn.functional.one_hot(y, 24).float()
    wrong = torch.nn.functional.one_hot(y * 0 + 9, 24).float()
    outputs = torch.cat([right[:, :3], wrong[:, 3:]], 1)
    sums = task.ratio("f1", data.validation)(outputs, y, np.array([[0, 1, 2, 3, 4, 5, -1]]))
    contexts = [row["context"].split() for row in formats.questions(6)]
    places = [row["answers"]["text"] for row in formats.questions(6)]
    expected = 3 + sum(answers.f1(contexts[i][9 - 7], places[i]) for i in (3, 4, 5))
    assert sums.tolist() == [[expected, 6]]
    two = [3, 0]
    sums = task.ratio("f1", data.validation.take(np.array(two)))
    f1 = sums(outputs[:, two], y[:, two], np.array([[0, 1]]))
    assert f1.tolist() == [[1 + answers.f1(contexts[3][9 - 7], places[3]), 2]]
    cut = Squad(root=str(tmp_path), tokenizer=str(words), max_tokens=12).load()
    assert cut.train.batch(np.array([[0]]))[1].tolist() == [[[0, 0]]]


def test_f1_of_squad_is_the_same_for_real_and_simulated_workers(tmp_path):
    pytest.importorskip("transformers", reason="the extra text is not installed")
    words = [
        *("task=squad", f"task.root={formats.squad(tmp_path)}", "task.max_tokens=24"),
        *(f"task.tokenizer={formats.tokenizer(tmp_path / 'words')}", *FEW, "target.f1=0.99"),
        *("model=bert_base", "model.size=tiny", "model.vocabulary=30", "model.dropout=0"),
        "optim.lr=0.001",
    ]
    assert run(compose_config([*words, "backend=gloo"]), tmp_path / "real") == "completed"
    told = [rows_of(words, tmp_path, "loop"), load_rows(tmp_path / "real")]
    simulated, real = ([row for row in rows if row.is_evaluation] for rows in told)
    assert [row.value for row in simulated] == pytest.approx([row.value for row in real])
    losses = [row.validation_loss for row in real]
    assert [row.validation_loss for row in simulated] == pytest.approx(losses, rel=1e-4)
    assert all(0 < row.value < 1 for row in real)


def test_glue(tmp_path, tmp_path_factory):
    rows = [
        {"sentence1": "ann lives in rome", "sentence2": f"{name} lives", "label": n % 2, "idx": n}
        for n, name in enumerate(formats.PEOPLE * 2)
    ]
    formats.write(rows, tmp_path / "train.parquet")
    formats.write(rows[:3], tmp_path / "validation.parquet")
    words = str(formats.tokenizer(tmp_path / "words"))
    task = Glue(name="mrpc", root=str(tmp_path), tokenizer=words, max_tokens=10)
    x, y = task.load().train.batch(np.arange(8)[None])
    assert (task.num_classes, y.tolist()) == (2, [[0, 1] * 4])
    assert x["token_type_ids"][0, 0].tolist() == [0] * 6 + [1] * 3 + [0]
    with pytest.raises(UserError, match=r"GLUE has no task x: task\.name is one of cola, "):
        Glue(name="x", root=str(tmp_path))
    with pytest.raises(UserError, match="the rows have no question1, but sentence1, "):
        Glue(name="qqp", root=str(tmp_path), tokenizer=words)
    all_tasks = tmp_path_factory.mktemp("all")
    for folder, own in (("mrpc", rows), ("rte", rows[:2])):
        (all_tasks / folder).mkdir()
        formats.write(own, all_tasks / folder / "train.parquet")
        formats.write(own[:3], all_tasks / folder / "validation.parquet")
    beside = Glue(name="mrpc", root=str(all_tasks), tokenizer=words, max_tokens=10)
    assert len(beside.load().train) == len(rows)
    scored = [{**row, "label": 0.5 * row["label"]} for row in rows]
    formats.write(scored, tmp_path / "train.parquet")
    formats.write(scored, tmp_path / "validation.parquet")
    scores = Glue(name="stsb", root=str(tmp_path), tokenizer=words, max_tokens=10)
    assert (scores.num_classes, scores.metric) == (None, "loss")
    assert scores.load().train.batch(np.array([[1]]))[1].tolist() == [[[0.5]]]


def test_spoken_words_train(tmp_path):
    root = formats.speech_commands(tmp_path / "words")
    task = SpeechCommands(root=str(root))
    data = task.load()
    x, y = data.train.batch(np.arange(2)[None])
    assert x.shape == (1, 2, 3, 40, 101) and y.tolist() == [[0, 1]]
    loudest = x[0, :, 0, :, :60].mean(2).argmax(1)
    # By the mel scale: 300 Hz is at 402 of 2840, 3,300 Hz at 1965, in 41 steps.
    assert loudest.tolist() == [round(402 / 2840 * 41) - 1, round(1965 / 2840 * 41) - 1]
    assert len(set(data.train.sources)) == 1
    words = ["task=speech_commands", f"task.root={root}", "model=resnet18", "model.width=2"]
    few = [*FEW, "workers=2", "batch_size=1", "model.num_classes=2", "model.stem=large"]
    rows = rows_of([*words, *few], tmp_path)
    assert sum(row.is_evaluation for row in rows) == 2
    (root / "up" / "ada_nohash_0.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match="is no recording that can be read"):
        data.train.batch(np.arange(2)[None])


def test_shards_of_webdataset_train(tmp_path):
    root = formats.shards(tmp_path / "shards")
    found = TarShards(f"{root}/train-*.tar", size=8)
    assert [label for _, label in (found[i] for i in range(10))] == [0, 1, 0, 1, 0] * 2
    assert found[1][0].mean() > 1 > -1 > found[2][0].mean()
    kind = "experiments.tasks.own.tar_shards.TarShards"
    words = [f"task.{part}._target_={kind}" for part in ("train", "validation")]
    words += [f"task.{part}.pattern={root}/train-*.tar" for part in ("train", "validation")]
    words += [f"task.{part}.size=32" for part in ("train", "validation")]
    words += ["task=dataset", "task.num_classes=2", "model=resnet18", "model.num_classes=2"]
    few = [*FEW, "model.width=2", "workers=2", "batch_size=2"]
    assert sum(row.is_evaluation for row in rows_of([*words, *few], tmp_path)) == 2
    (root / "train-0.tar").write_bytes(b"x" * 600)
    with pytest.raises(UserError, match="is no tar file that can be read"):
        TarShards(f"{root}/train-*.tar")


def test_the_folders_of_imagenet(tmp_path):
    root = pictures(tmp_path, parts=("train", "val"), size=3)
    words = ["task=imagenet", f"task.root={root}", "task.size=32", "batch_size=2"]
    words += ["model=resnet18", "model.stem=large", "model.width=2", "model.num_classes=2"]
    load_data(make_plan(compose_config([*FEW, *words, "backend=sim"]), tmp_path))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["task=squad"], "has no file .* put those of the data set squad there"),
        (["task=glue", "task.name=rte"], "has no file .* put those of rte there"),
        (["task=speech_commands"], "unpack speech_commands_v0.02.tar.gz there"),
        (["task=imagenet"], "put them there as CLASS/NAME.jpg"),
    ],
)
def test_missing_data_says_where_to_put_what(words, sentence, tmp_path):
    config = compose_config([*FEW, *words, f"task.root={tmp_path}", "backend=sim"])
    with pytest.raises(UserError, match=sentence):
        make_plan(config, tmp_path)

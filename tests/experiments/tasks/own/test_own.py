"""Tasks over a user's own data: what is read is what was written, and what they refuse."""

import numpy as np
import pytest
import torch

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.model_check import check_model
from experiments.runs.load import load_rows
from experiments.runs.run import load_data, run
from experiments.runs.summary import read_summary
from experiments.tasks.base import PADDING, TaskData, tuning_data
from experiments.tasks.own.cifar import Cifar
from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.image_folder import ImageFolder
from experiments.tasks.own.splits import DatasetSplit, generators_apart, seed_generators
from experiments.tasks.own.stream import StreamSplit
from experiments.tasks.own.text import Text
from experiments.tasks.target import Target
from experiments.training.evaluation import evaluate
from experiments.training.step import Labels, make_step
from host.errors import UserError
from tests.experiments.tasks.own import formats
from tests.experiments.tasks.own.made import Points, Signs, Sometimes, cifar, pictures

MADE = "tests.experiments.tasks.own.made"
LINEAR = ("model._target_=torch.nn.Linear", "model.in_features=4", "model.out_features=1")
POINTS = (
    *("task=dataset", f"task.train._target_={MADE}.Points", "task.train.noise=0.5"),
    *(f"task.validation._target_={MADE}.Points", "task.validation.seed=1", "task.loss=mse_loss"),
)
RUN = ("max_steps=6", "eval_every=3", "batch_size=4", "workers=3", "net=none", "optim.lr=0.01")


def planned(folder, *words, algo="allreduce"):
    return make_plan(compose_config([f"algo={algo}", "backend=sim", *words]), folder)


def trained(folder, *words, backend="sim"):
    """The evaluations of a run."""
    config = compose_config(["algo=allreduce", f"backend={backend}", *RUN, *words])
    assert run(config, folder) == "completed"
    return [row.value for row in load_rows(folder) if row.is_evaluation]


def test_real_and_simulated_workers_see_the_same_disturbed_examples(tmp_path):
    words = [*POINTS, *LINEAR, "target.loss=100", "accumulate=2"]
    simulated = trained(tmp_path / "sim", *words)
    real = trained(tmp_path / "gloo", *words, backend="gloo")
    assert simulated == pytest.approx(real, rel=1e-5)
    summary = read_summary(tmp_path / "sim")
    assert (summary.metric, summary.target_score, summary.model) == ("loss", 100, "Linear")
    assert summary.final_accuracy is None and summary.time_to_accuracy_s is not None


def test_the_loss_of_an_evaluation_is_of_every_example_once(tmp_path):
    plan = planned(tmp_path, *POINTS, *LINEAR, "workers=4", "task.validation.size=7")
    data = plan.task.load()
    model = StackedModel(plan.model, 4)
    step = make_step(
        plan, data.train, model, torch.optim.SGD(model.parameters()), StackedCommunicator(4)
    )
    found = evaluate(plan, data.validation, step.distributed, StackedCommunicator(4))
    step.distributed.close()
    points = Points(7, seed=1)
    expected = (plan.model(points.x) - points.y).square().mean().item()
    assert found.value == found.loss == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_reads_a_stream_once(tmp_path, monkeypatch):
    words = ["task=dataset", f"task.train._target_={MADE}.Points", "task.loss=mse_loss", *LINEAR]
    words += [f"task.validation._target_={MADE}.Stream", "task.validation.size=7"]
    plan = planned(tmp_path, *words, "workers=3")
    data = plan.task.load()
    model, communicator = StackedModel(plan.model, 3), StackedCommunicator(3)
    optimizer = torch.optim.SGD(model.parameters())
    step = make_step(plan, data.train, model, optimizer, communicator)
    passes, begin = [], StreamSplit._begin
    monkeypatch.setattr(StreamSplit, "_begin", lambda *own: passes.append(own) or begin(*own))
    evaluate(plan, data.validation, step.distributed, communicator)
    step.distributed.close()
    assert len(passes) == 1


def test_a_loss_of_ones_own_calls_the_model_as_it_likes(tmp_path):
    words = ["precision=bfloat16", "accumulate=2", "algo=local_sgd"]
    own = [
        f"task._target_={MADE}.Contrastive",
        *LINEAR,
        "max_steps=9",
        "optim.lr=0.01",
        "optim.momentum=0",
    ]
    first, *_, last = trained(tmp_path, *own, *words)
    assert last < first
    assert read_summary(tmp_path).task == "Contrastive"


def test_augmentation_follows_from_seed_epoch_and_example():
    split = DatasetSplit(Points(noise=1.0))
    at = np.array([[3, 3 + 50, 7]])
    drawn = torch.get_rng_state(), np.random.get_state()[1].tolist()
    x, _ = split.batch(at, seed=1)
    again, _ = split.batch(at[:, ::-1].copy(), seed=1)
    other, _ = split.batch(at, seed=2)
    assert torch.equal(x, again.flip(1)) and not torch.equal(x, other)
    assert not torch.equal(x[0, 0], x[0, 1])
    with generators_apart():
        seed_generators((1, 2))
        torch.randn(3), np.random.rand(3)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert np.random.get_state()[1].tolist() == drawn[1]


def test_what_few_examples_draw_does_not_depend_on_the_others_of_a_batch():
    alone, together = DatasetSplit(Sometimes()), DatasetSplit(Sometimes())
    expected = torch.cat([alone.batch(np.array([[index]]), seed=4)[0] for index in range(18)], 1)
    x, _ = together.batch(np.arange(18)[None], seed=4)
    assert torch.equal(x, expected)
    drawn = x[0, 2::3, 0]
    assert len({*drawn.tolist()}) == 6 and 0 <= drawn.min() <= drawn.max() < 1
    plain = Sometimes()
    DatasetSplit(plain).batch(np.array([[0, 1, 3, 4]]))
    assert plain.num_made == 4
    split = DatasetSplit(one := Sometimes())
    split.batch(np.array([[2]]))
    split.batch(np.array([[0, 2]]))
    assert one.num_made == 2 + 2


def test_tuning_takes_examples_of_a_dataset_that_is_read_at_any_place():
    numbered = Signs(110)
    numbered.x, numbered.sources = torch.arange(110.0).view(110, 1), np.arange(110) % 3
    numbered.targets = list(range(110))
    whole, unseen = DatasetSplit(numbered), DatasetSplit(Signs(4))
    own = tuning_data(TaskData(whole, unseen, unseen))
    places = []
    for split in (own.train, own.validation, own.test):
        x, y = split.batch(np.arange(len(split))[None])
        assert x[0, :, 0].tolist() == y[0].tolist() == split.y.tolist()
        assert split.sources is not None and (split.sources == split.y % 3).all()
        places.append(split.y.tolist())
    assert [len(part) for part in places] == [90, 10, 10]
    assert sorted(place for part in places for place in part) == list(range(110))
    again = own.validation.batch(np.array([[3, 10 + 3]]))[1]  # of two epochs
    assert again.tolist() == [[places[1][3]] * 2]
    assert own.train.take(slice(2, 4)).y.tolist() == places[0][2:4]


def test_a_dataset_is_trained_by_examples_of_its_training_set_alone(tmp_path):
    words = ["task=dataset", f"task.train._target_={MADE}.Points", "task.loss=mse_loss", *LINEAR]
    words += [f"task.validation._target_={MADE}.Stream", "max_steps=9", "optim.lr=0.01"]
    first, *_, last = trained(tmp_path, *words, "data.for_tuning=true", "batch_size=2")
    assert last < first


def test_classes_of_a_dataset_can_be_parted(tmp_path):
    words = [
        *("task=dataset", f"task.train._target_={MADE}.Signs", "task.train.size=60"),
        *(f"task.validation._target_={MADE}.Signs", "data.partition=by_class"),
        *("model._target_=torch.nn.Linear", "model.in_features=4", "model.out_features=2"),
    ]
    trained(tmp_path, *words, "target.f1=0.1")
    summary = read_summary(tmp_path)
    assert np.array(summary.shares["counts"]).sum() == 60
    assert summary.metric == "f1" and summary.final_accuracy is not None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["task=dataset"], "^task.train is missing: give task.train=..."),
        ([*POINTS, "task.loss=cross_entropy"], "does not tell how many classes"),
        ([*POINTS, "task.loss=rouge"], "torch.nn.functional has no rouge"),
        ([*POINTS, "target_accuracy=0.9"], "has no classes, so that there is no accuracy"),
        ([*POINTS, "task.validation.size=0"], "task.validation has no example"),
        ([*POINTS, "data.partition=by_class"], "Points does not name its examples' classes"),
        ([*POINTS, "data.sampler=balanced"], "does not tell how long its examples are"),
        ([*POINTS, f"task.train._target_={MADE}.Dictionaries", "~task.train.noise"],
         "model=Linear does not take .* input_ids float32 \\[2, 4\\]"),
        ([*POINTS, "model.in_features=5"], "model=Linear does not take examples of task=dataset"),
        (["task.root=x", "task=cifar10"], "unpack cifar-10-binary.tar.gz there"),
        (["task.path=nowhere", "task=text"], "there is no text at task.path=nowhere"),
        (["task=own"], "^task._target_ is missing"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(words, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        load_data(planned(tmp_path, *LINEAR, *RUN, *words))


@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_labels_that_the_loss_would_pair_with_all_outputs_are_refused(loss, tmp_path):
    words = [*LINEAR, *RUN, *POINTS, f"task.train._target_={MADE}.Numbers", f"task.loss={loss}"]
    with pytest.raises(
        UserError, match=r"the loss of task=dataset .* labels of the outputs' shape"
    ):
        load_data(planned(tmp_path, *words))


def test_a_collate_function_makes_pairs(tmp_path):
    words = [f"task.train._target_={MADE}.Dictionaries", "~task.train.noise"]
    words += [f"task.validation._target_={MADE}.Dictionaries"]
    words += ["task.collate._target_=hydra.utils.get_method", f"task.collate.path={MADE}.pair"]
    load_data(planned(tmp_path, *LINEAR, *RUN, *POINTS, *words))


def test_a_model_of_a_library_has_no_keys_of_the_default_model(tmp_path):
    pytest.importorskip("transformers", reason="the extra text is not installed")
    words = [
        "model._target_=transformers.ResNetForImageClassification",
        *("model.config._target_=transformers.ResNetConfig", "model.config.num_channels=1"),
        *("model.config.hidden_sizes=[8,16]", "model.config.depths=[1,1]"),
        *("model.config.embedding_size=8", "model.config.layer_type=basic"),
        *("model.config.num_labels=10", "workers=2"),
    ]
    plan = planned(tmp_path, *words)
    assert plan.names["model"] == "ResNetForImageClassification"
    check_model(plan, plan.task.load())


def test_bytes_of_text_and_those_that_follow(tmp_path):
    texts = {"b.txt": b"abcdefghij" * 100, "a.txt": bytes(range(256)) * 4, "few": b"x"}
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    data = Text(path=str(tmp_path), context=16).load()
    parts = (data.train, data.validation, data.test)
    assert [len(part) for part in parts] == [51 + 50, 6 + 6, 6 + 6]
    for part in parts:
        np.testing.assert_array_equal(part.x[:, 1:], part.y[:, :-1])
        assert part.x.flags.writeable and set(part.sources) == {0, 1}
    whole = [
        np.concatenate([p.x[p.sources == s] for p in (data.train, data.validation, data.test)])
        for s in (0, 1)
    ]
    for text, x in zip((texts["a.txt"], texts["b.txt"]), whole, strict=True):
        assert text.startswith(x.tobytes()[: 16 * 51])
    with pytest.raises(UserError, match="has 1 examples of 900 bytes"):
        Text(path=str(tmp_path / "b.txt"), context=900).load()


def test_files_too_short_for_anything_to_be_held_out_are_refused(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_bytes(bytes(2 * 16 + 1))
    with pytest.raises(UserError, match=r"has no file of 3 examples of 16 places, .* join the"):
        Text(path=str(tmp_path), context=16).load()
    (tmp_path / "long.txt").write_bytes(bytes(3 * 16 + 1))
    data = Text(path=str(tmp_path), context=16).load()
    assert (len(data.train), len(data.validation), len(data.test)) == (61, 1, 1)


def test_tokens_of_text_by_a_file_or_by_name(tmp_path, monkeypatch):
    """By name from the cache of Hugging Face's library, since there is no network here."""
    folder = formats.tokenizer(tmp_path / "cache" / "models--me--words" / "snapshots" / "1")
    refs = tmp_path / "cache" / "models--me--words" / "refs"
    refs.mkdir()
    (refs / "main").write_text("1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = tmp_path / "corpus.txt"
    text.write_text("where does ann live ? " * 200)
    for name in (str(folder), "me/words"):
        task = Text(path=str(text), context=10, tokenizer=name)
        data = task.load()
        assert (task.metric, task.labels_are_characters) == ("loss", False)
        assert [len(part) for part in (data.train, data.validation, data.test)] == [81, 9, 9]
        np.testing.assert_array_equal(data.train.x[:, 1:], data.train.y[:, :-1])
        assert data.train.x[0].tolist() == [*data.train.x[0, :5]] * 2
        assert len({*data.train.x[0]}) > 1 and data.train.x.max() < task.num_classes
    with pytest.raises(UserError, match="no model of that name could be fetched"):
        Text(path=str(text), tokenizer="me/nothing")
    text.write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"corpus.txt is no UTF-8 text .* 3\): convert it"):
        Text(path=str(text), tokenizer=str(folder)).load()


def test_a_model_learns_tokens(tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text("where does ann live ? " * 200)
    words = ["task=text", f"task.path={text}", "task.context=10", "model=char_transformer"]
    words += [f"task.tokenizer={formats.tokenizer(tmp_path / 'words')}", "target.loss=0.1"]
    with pytest.raises(UserError, match="256"):
        check_model(plan := planned(tmp_path, *words, "+model.num_classes=256"), plan.task.load())
    size = plan.task.num_classes
    values = trained(tmp_path / "run", *words, f"+model.num_classes={size}", "workers=2")
    assert values[-1] < values[0]


@pytest.mark.parametrize("num_classes", [10, 100])
def test_the_files_of_cifar(num_classes, tmp_path):
    task = Cifar(root=str(cifar(tmp_path, num_classes, size=10)), num_classes=num_classes)
    data = task.load()
    files = 5 if num_classes == 10 else 1
    sizes = [len(part) for part in (data.train, data.validation, data.test)]
    assert sizes == [n * num_classes for n in (9 * files, files, 10)]
    for part in (data.train, data.test):
        assert (part.x[:, 0] == part.y[:, None, None]).all()  # the red plane
    inputs = task.inputs(torch.from_numpy(data.train.x))
    red = (data.train.y / 255 - task.mean[0]) / task.std[0]
    np.testing.assert_allclose(inputs[:, 0, 0, 0], red, rtol=1e-4)
    file = next(tmp_path.rglob("test*.bin"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"is damaged: its .* bytes are no whole images"):
        task.load()


def test_folders_of_pictures(tmp_path):
    task = ImageFolder(root=str(pictures(tmp_path, parts=("train", "val"))), size=8)
    data = task.load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12] * 3
    assert task.num_classes == 2 and task.metric == "accuracy"
    x, y = data.validation.batch(np.arange(12)[None])
    assert x.shape == (1, 12, 3, 8, 8) and x.dtype == torch.uint8
    assert (x.float().mean((2, 3, 4)) > 100).tolist() == (y == 0).tolist()  # bright comes first
    first, later = (data.train.batch(np.array([[at]]))[0] for at in (4, 4 + 12))
    assert not torch.equal(first, later)
    (tmp_path / "val" / "dark" / "0.jpg").write_bytes(b"none")
    with pytest.raises(UserError, match="is no picture that can be read"):
        data.validation.batch(np.arange(12)[None])
    (tmp_path / "val" / "green").mkdir()
    (tmp_path / "val" / "dark" / "1.jpg").rename(tmp_path / "val" / "green" / "1.jpg")
    with pytest.raises(UserError, match="pictures of green that are not for training"):
        ImageFolder(root=str(tmp_path))


def test_pictures_without_parts_are_shared_out(tmp_path):
    task = ImageFolder(root=str(pictures(tmp_path)), size=8, augment=False)
    names = [{file for file in part.files} for part in (task.train, task.validation, task.test)]
    assert [len(own) for own in names] == [10, 1, 1] and len(set.union(*names)) == 12


@pytest.mark.parametrize("backend", ["sim", pytest.param("gloo", marks=pytest.mark.slow)])
def test_pictures_train(backend, tmp_path):
    words = [
        *("task=image_folder", f"task.root={pictures(tmp_path / 'data', parts=('train', 'val'))}"),
        *("task.size=32", "model=resnet18", "model.width=4", "model.num_classes=2"),
        *("workers=2", "batch_size=3"),
    ]
    values = trained(tmp_path / "run", *words, backend=backend)
    assert len(values) == 2 and all(0 <= value <= 1 for value in values)


def test_a_task_says_its_metric(tmp_path):
    assert planned(tmp_path, *POINTS, *LINEAR).target == Target(metric="loss")
    words = ["task=text", "task.path=x", "model=mlp"]
    assert planned(tmp_path, *words).target == Target(metric="bits_per_byte")
    assert planned(tmp_path, *words, "target.loss=3.2").target == Target(metric="loss", value=3.2)
    assert DatasetTask(train=Signs(), validation=Signs()).num_classes == 2
    named = Points()
    named.labels = ["cat", "dog"] * 25
    with pytest.raises(UserError, match="Points does not tell how many classes"):
        DatasetTask(train=named, validation=named)
    named.classes = ["cat", "dog", "cow"]
    assert DatasetTask(train=named, validation=named).num_classes == 3


def test_a_run_takes_moved_images_of_cifar(tmp_path):
    words = ["task=cifar10", f"task.root={cifar(tmp_path, size=4)}", "task.augment=true"]
    plan = planned(tmp_path, *words, "model=resnet18", "model.width=4", "workers=2", "batch_size=3")
    data = plan.load_data()
    assert plan.batches(data, (0,)).indices(0).shape == (1, 3)
    assert plan.task.lengths(data.train).tolist() == [1] * len(data.train)


def test_images_of_cifar_are_moved_and_mirrored_anew_in_each_epoch(tmp_path):
    root = str(cifar(tmp_path, size=4))
    plain, moved = (Cifar(root=root, augment=augment).load().train for augment in (False, True))
    size = len(plain)
    assert np.array_equal(moved.y, plain.y)
    seen = set()
    for epoch in range(3):
        at = np.array([[7 + epoch * size]])
        x, y = moved.batch(at, seed=1)
        assert torch.equal(x, moved.batch(at, seed=1)[0]) and y.item() == plain.y[7]
        framed = np.pad(plain.x[7], ((0, 0), (4, 4), (4, 4)))
        windows = np.lib.stride_tricks.sliding_window_view(framed, (3, 32, 32))[0]
        found = [(windows == x[0, 0].flip(2).numpy()), (windows == x[0, 0].numpy())]
        assert sum(same.all((2, 3, 4)).sum() for same in found) == 1
        seen.add(x.numpy().tobytes())
    assert len(seen) == 3


SIGNS = (
    *("task=dataset", f"task.train._target_={MADE}.Signs", "task.num_classes=2"),
    *(f"task.validation._target_={MADE}.Signs", "target_accuracy=0.9", "workers=2"),
)
CLASSES = (*LINEAR[:2], "model.out_features=2")


@pytest.mark.parametrize("number", ["0", "-3", "2.5"])
def test_a_number_of_classes_that_is_none_is_refused(number, tmp_path):
    with pytest.raises(UserError, match=rf"task.num_classes={number}: give a whole number"):
        planned(tmp_path, *SIGNS, *CLASSES, f"task.num_classes={number}")


def test_validation_examples_without_a_label_are_no_accuracy(tmp_path):
    words = (*SIGNS, *CLASSES, f"task.validation._target_={MADE}.Unlabelled")
    config = compose_config(["algo=allreduce", "backend=sim", *RUN, *words])
    with pytest.raises(UserError, match="none of the 50 validation examples of task=dataset"):
        run(config, tmp_path / "run")


def test_training_examples_without_a_label_are_refused(tmp_path):
    words = (*SIGNS, *CLASSES, f"task.train._target_={MADE}.Unlabelled", "max_steps=20")
    config = compose_config(["algo=allreduce", "backend=sim", *RUN, *words])
    with pytest.raises(UserError, match=r"none of the first 5\d examples of Unlabelled"):
        run(config, tmp_path / "run")


def test_labels_may_be_few():
    none, one = torch.full((2, 3), PADDING), torch.tensor([[PADDING] * 3, [PADDING, 0, PADDING]])
    few, without = Labels("Mine", most=12), Labels("Mine", most=12)
    for batch in (none, one, none, none):
        few.check(batch)
    without.check(none)
    with pytest.raises(UserError, match="first 12 examples of Mine"):
        without.check(none)


@pytest.mark.parametrize("stacking", ["vmap", "loop", "parts"])
def test_a_loss_that_nothing_can_be_learned_from_is_refused(stacking, tmp_path):
    words = (*SIGNS, f"model._target_={MADE}.Detached", f"cluster.stacking={stacking}")
    config = compose_config(["algo=allreduce", "backend=sim", *RUN, *words])
    with pytest.raises(UserError, match="depends on no parameter of model=Detached"):
        run(config, tmp_path / "run")

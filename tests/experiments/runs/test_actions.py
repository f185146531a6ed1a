import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from experiments.runs.actions import Command, Copy, Pack, SideBySide, Unpack
from host.errors import Failure


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder, the current one, whose modules `python -m` finds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "write.py").write_text("import sys; open(sys.argv[1], 'w').write(sys.argv[2])")
    (tmp_path / "fail.py").write_text("raise SystemExit(3)")
    (tmp_path / "rest.py").write_text(
        "import time; open('began', 'w').close(); time.sleep(60); open('ended', 'w').close()"
    )
    return tmp_path


def test_a_command_is_run_as_it_is_said(modules):
    command = Command(arguments=("write", "file", "two words"))
    assert command.lines() == ["python -m write file 'two words'"]
    command.run()
    assert (modules / "file").read_text() == "two words"


def test_a_command_that_fails_is_named_with_its_exit_code(modules):
    with pytest.raises(Failure, match=r"python -m fail now ended with exit code 3"):
        Command(arguments=("fail", "now")).run()


def test_one_that_fails_does_not_keep_the_others_from_running(modules):
    writers = [Command(arguments=("write", f"{n}", "x")) for n in range(3)]
    group = SideBySide(commands=(writers[0], Command(arguments=("fail",)), *writers[1:]), at_once=2)
    assert group.lines()[0] == "# 2 at a time:"
    with pytest.raises(Failure, match="python -m fail ended with exit code 3"):
        group.run()
    assert [(modules / f"{n}").exists() for n in range(3)] == [True] * 3


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_children_too(modules, stop):
    script = (
        "from experiments.runs.actions import Command, SideBySide\n"
        "from host import commands\n"
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "commands.raise_at_sigterm()\n"
        "commands.run(SideBySide(commands=(Command(arguments=('rest',)),), at_once=1).run)\n"
    )
    path = os.pathsep.join([str(modules), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (modules / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (modules / "began").exists()
    process.send_signal(stop)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + stop
    assert told == ("stopped by Ctrl-C\n" if stop == signal.SIGINT else "")
    assert not (modules / "ended").exists()


def test_copies_go_over_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, text in (("from/a_1", "new"), ("from/a_2", "new"), ("from/b_1", "new")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text(text)
    (tmp_path / "to/a_1").mkdir(parents=True)
    (tmp_path / "to/a_1/file").write_text("old")
    (tmp_path / "to/a_1/other").write_text("kept")
    copy = Copy(source="from/a_*", to="to")
    assert copy.lines() == ["mkdir -p to && cp -r from/a_* to/"]
    copy.run()
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["a_1", "a_2"]
    assert (tmp_path / "to/a_1/file").read_text() == "new"
    assert (tmp_path / "to/a_1/other").read_text() == "kept"


def test_what_is_not_there_is_not_copied(tmp_path):
    with pytest.raises(Failure, match="to copy: run the part that makes it"):
        Copy(source=f"{tmp_path}/none_*", to=f"{tmp_path}/to").run()


def test_an_archive_gives_back_all_but_what_a_sweep_keeps_for_itself(tmp_path):
    kept = (".trainings/x/weights", ".ways/1.txt", ".profiles/2.yaml", ".quiet/host.turn")
    hidden = [f"runs/one/{file}" for file in (*kept, ".run.lock")]
    for file in ("runs/one/run/summary.json", *hidden, "runs/two/file"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)
    archive, root = f"{tmp_path}/a.tar.xz", f"{tmp_path}/runs"
    pack = Pack(folders=("one",), root=root, archive=archive)
    pack.run()
    [line] = pack.lines()
    subprocess.run(line.replace("a.tar.xz", "a.by_tar.tar.xz"), shell=True, check=True)
    for number, file in enumerate((archive, f"{tmp_path}/a.by_tar.tar.xz")):
        back = tmp_path / f"back_{number}"
        Unpack(archive=file, to=str(back)).run()
        assert [p for p in back.rglob("*") if p.is_file()] == [back / "one/run/summary.json"]
    with pytest.raises(Failure, match="three to pack"):
        Pack(folders=("three",), root=root, archive=archive).run()


def test_a_broken_archive_is_one_sentence(tmp_path):
    (tmp_path / "a.tar.xz").write_text("no archive")
    with pytest.raises(Failure, match=r"a\.tar\.xz cannot be unpacked"):
        Unpack(archive=f"{tmp_path}/a.tar.xz", to=f"{tmp_path}/to").run()
    assert not tarfile.is_tarfile(tmp_path / "a.tar.xz")


@pytest.mark.parametrize(
    ("settings", "size"),
    [("a: [x=1, x=2]\nb: [x=3 net=wan y=1]\n", (2 * 2 + 1) * 3), (None, 2 * 3), ("- [", 2 * 3)],
)
def test_equal_tuning_is_as_large_as_the_runs_of_its_settings(settings, size, tmp_path):
    """Each on all networks, unless it names its own; before there is a file, one is counted."""
    file = tmp_path / "trials.yaml"
    if settings is not None:
        file.write_text(settings)
    words = ("--nets", "none,wan", "--seeds", "0,1,2", "--runs", "x", str(file), "task=a,b")
    run = Command(arguments=("experiments.equal_tuning", "run", *words))
    more = Command(arguments=(*run.arguments, "workers=32"))
    draw = Command(arguments=("experiments.equal_tuning", "draw", "reference", "--trials", "6"))
    assert run.size == size > draw.size
    assert more.size == 32 * size

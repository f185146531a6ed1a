"""Where the library is, how it is built, and that sanitizers find nothing in it."""

import os
import subprocess
import sys

import pytest

from bagua_net import library as module
from bagua_net.library import build
from host.errors import UserError
from tests.paths import ROOT

SYMBOLS = [f"ncclNetPlugin_v{version}" for version in (8, 9, 10, 11, 12)]


def run(command, **variables):
    return subprocess.run(
        [str(word) for word in command],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_the_command_prints_the_path(library):
    printed = run([sys.executable, "-m", "bagua_net"])
    assert printed.stdout == f"{library}\n"
    assert library.name == "libnccl-net-bagua.so"


def test_without_a_compiler_the_command_says_what_to_do(tmp_path):
    printed = run([sys.executable, "-m", "bagua_net"], PATH=str(tmp_path), CXX="")
    assert (printed.returncode, printed.stdout) == (2, "")
    assert printed.stderr.count("\n") == 1
    assert "apt-get install make g++" in printed.stderr


def test_a_failed_build_says_what_the_compiler_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(UserError, match="was not built"):
        build()


def test_changed_sources_are_built_anew(tmp_path, monkeypatch):
    before = module._digest("g++")
    (tmp_path / "src").mkdir()
    (tmp_path / "Makefile").write_text("all:\n")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    first = module._digest("g++")
    (tmp_path / "src" / "one.cpp").write_text("int x;\n")
    assert len({before, first, module._digest("g++"), module._digest("clang++")}) == 4


def test_the_tables_are_all_that_it_exports(library):
    listed = run(["nm", "--dynamic", "--defined-only", "--extern-only", library]).stdout
    own = [line.split()[2] for line in listed.splitlines()]
    assert sorted(name for name in own if not name.startswith("_Z")) == sorted(SYMBOLS)


def test_it_needs_nothing_but_the_compiler_s_own_libraries(library):
    listed = run(["readelf", "-d", library]).stdout
    needed = {
        line.split("[")[1].split(".so")[0] for line in listed.splitlines() if "NEEDED" in line
    }
    assert needed <= {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sanitizer", "program", "arguments"),
    [("asan", "exercise", []), ("asan", "fuzz", [100_000]), ("tsan", "exercise", [])],
)
def test_sanitizers_find_nothing(sanitizer, program, arguments):
    finished = run([build(sanitizer, program), *arguments])
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout in ("all well\n", "100000 cases\n")

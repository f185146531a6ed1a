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


def fake_compiler(folder, last="true"):
    """It makes its output empty, does what comes last, and keeps its arguments in `words`."""
    path = folder / "compiler"
    path.write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/words
while [ "$1" != -o ]; do shift; done
out=$2
touch "$out"
{last}
"""
    )
    path.chmod(0o755)
    return path


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


def test_what_the_environment_says_to_make_is_not_meant_for_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BUILD", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("CXXFLAGS", "-std=c++98")
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    assert build().is_file()
    assert "-std=c++98" not in (tmp_path / "words").read_text().split()


def test_a_build_that_makes_no_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    monkeypatch.setenv("MAKEFLAGS", f"BUILD={tmp_path / 'elsewhere'}")
    with pytest.raises(UserError, match="was not built"):
        build()


def test_a_library_that_was_half_written_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(
        "CXX", str(fake_compiler(tmp_path, "case $out in *.so*) kill -9 $PPID; esac"))
    )
    with pytest.raises(UserError, match="was not built"):
        build()
    fake_compiler(tmp_path)
    (tmp_path / "words").unlink()
    assert build().is_file()
    assert "-shared" in (tmp_path / "words").read_text()


def test_a_build_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "sleep 1")))
    monkeypatch.setattr(module, "_LIMIT_S", 0.2)
    with pytest.raises(UserError, match=r"was not built within 0\.2 s: call make -C"):
        build()


def test_hosts_of_several_kinds_have_libraries_of_their_own(monkeypatch):
    before = module._digest("g++")
    monkeypatch.setattr(module.platform, "machine", lambda: "another")
    assert module._digest("g++") != before


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

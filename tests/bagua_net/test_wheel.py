"""`pip install relaxlab[net]` brings the plugin's sources, which build without the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.paths import ROOT

PARTS = (
    *("bagua_algos", "bagua_net", "experiments", "host", "hydra_plugins", "kernels", "netsim"),
    *("conf", "LICENSE", "README.md", "pyproject.toml"),
)


MADE = ("build", "__pycache__", "*.nbi", "*.nbc")
"""What git ignores."""


def make(kind: str, source, target):
    """The sdist or wheel of `source`, made as pip makes it."""
    line = f"from hatchling.build import build_{kind} as make; print(make(r'{target}'))"
    command = [sys.executable, "-W", "ignore", "-c", line]
    made = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    return target / made.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of an sdist of the checkout's packages that the plugin needs."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns(*MADE))
        else:
            shutil.copy(ROOT / part, tree / part)
    with tarfile.open(make("sdist", tree, made)) as sdist:
        sdist.extractall(made, filter="data")
    (unpacked,) = made.glob("*/")
    return make("wheel", unpacked, made)


def test_it_finds_the_library_of_the_same_sources(wheel, library, tmp_path):
    # The path has a digest of all sources in it: one that the wheel lacks would make another.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-m", "bagua_net"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert printed.stdout == f"{library}\n", printed.stderr


def test_it_names_the_extra_and_the_licences(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        said = archive.read(name).decode().splitlines()
    assert "Provides-Extra: net" in said
    assert "License-File: bagua_net/nccl/LICENSE.txt" in said

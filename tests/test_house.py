"""The house: few modules in a room, and each outside package at the one door that it has."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGES = (
    *("experiments", "bagua_algos", "bagua_net", "netsim", "kernels", "host", "hydra_plugins"),
)
MOST_MODULES = 15
MOST_ROOMS = 12

MODULES = sorted(
    file.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*.py")
)

# Who imports what: one module for each package that others must not need.
DOORS = {
    "torch.distributed": {
        "bagua_algos/communication/connections/groups.py",
        "bagua_algos/communication/process_group.py",
        "bagua_algos/communication/rendezvous.py",
        "bagua_algos/communication/stripes.py",  # one operation over several groups
        "bagua_algos/fsdp2/shards.py",  # its sharded models and distributed tensors
        "netsim/validation/gloo.py",  # measures gloo itself
    },
    "pyroute2": {"netsim/links/netlink.py"},
    "optuna": {
        "experiments/advise/tuning/search.py",
        "experiments/advise/tuning/study.py",  # its file; search.py alone imports it
    },
    "cupy": {"kernels/cuda_module.py"},
    "rich.console": {"host/command_line/console.py"},  # whose reader may have gone
    "pytorch_lightning": {"bagua_algos/trainers/lightning.py"},
    "accelerate": {
        "bagua_algos/trainers/accelerate.py",
        "bagua_algos/trainers/transformers.py",  # the Trainer stands on it
    },
}


@cache
def imported(file: Path) -> set[str]:
    """The modules that `file` imports, also by `import_module("...")`."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def test_a_room_has_few_modules():
    rooms: dict[Path, int] = {}
    for file in MODULES:
        if file.stem not in ("__init__", "__main__"):
            rooms[file.parent] = rooms.get(file.parent, 0) + 1
    assert {str(room): num for room, num in rooms.items() if num > MOST_MODULES} == {}


def test_experiments_has_few_rooms():
    names = {file.parts[1] for file in MODULES if file.parts[0] == "experiments"}
    assert len(names - {"__init__.py", "__main__.py"}) <= MOST_ROOMS


@pytest.mark.parametrize("package", DOORS)
def test_one_module_imports(package):
    doors = {
        str(file)
        for file in MODULES
        if any(f"{name}.".startswith(f"{package}.") for name in imported(file))
    }
    assert doors == DOORS[package]


def test_workers_of_the_app_share_no_memory():
    """They stand for machines apart, so all of it has to cross their links. One bench has it, whose
    workers stand for those of a script on one host.
    """
    sharing, with_defaults = set(), set()
    for file in MODULES:
        if file.parts[0] not in ("experiments", "hydra_plugins", "netsim"):
            continue
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shared_memory":
                sharing.add(str(file))
            is_call = isinstance(node, ast.Call)
            if is_call and ast.unparse(node.func) == "bagua_algos.distribute" and not node.args[3:]:
                with_defaults.add(str(file))  # without a communicator
    assert sharing == {"experiments/validation/bench_gpt.py"}
    assert with_defaults == set()


def test_a_script_without_sharded_models_imports_nothing_of_them():
    others = ("torch.distributed.fsdp", "torch.distributed.tensor", "bagua_algos.fsdp2")
    assert imported_with(["bagua_algos"], others) == ""


def test_training_is_imported_without_hydra_and_without_a_simulator():
    modules = [
        ".".join(file.with_suffix("").parts)
        for file in MODULES
        if file.parts[:2] == ("experiments", "training") and file.stem != "__init__"
    ]
    others = (
        *("hydra", "omegaconf", "netsim.timeline", "netsim.links", "netsim.proof"),
        *("experiments.simulated", "experiments.real", "experiments.runs"),
    )
    assert imported_with(modules, others) == ""


def imported_with(modules: Sequence[str], others: Sequence[str]) -> str:
    """Which of `others` are imported where `modules` are."""
    program = (
        f"import sys, {', '.join(modules)}\n"
        f"print(', '.join(name for name in {others} if name in sys.modules), end='')\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout

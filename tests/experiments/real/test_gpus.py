"""Where GPUs come into a plan, tested without one, and what needs one (marked gpu)."""

import os
from pathlib import Path

import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Backend
from experiments.real.nccl import nccl_environment, plugin_environment
from host import gpus as host_gpus
from host.errors import UserError
from host.gpus import Gpu, Placement, find_gpus
from tests.app import run

NO_GPU_HERE = not torch.cuda.is_available()
FOLDER = Path("a run's folder, which a plan does not touch")


def plan_of(*overrides):
    return make_plan(compose_config(["algo=bytegrad", *overrides]), FOLDER)


def gpus(number):
    return tuple(Gpu(name=f"GPU {i % 2}", memory_bytes=1 << 30) for i in range(number))


@pytest.fixture
def pretended(monkeypatch):
    """Let CUDA answer what a test says."""

    def pretend(describe):
        monkeypatch.setattr(host_gpus, "_is_built", lambda: True)
        monkeypatch.setattr(host_gpus, "_ask_cuda", describe)
        find_gpus.cache_clear()

    yield pretend
    find_gpus.cache_clear()


@pytest.mark.parametrize(
    ("num_workers", "num_gpus", "indices", "is_shared"),
    [
        (1, 1, [0], False),
        (4, 4, [0, 1, 2, 3], False),
        (2, 8, [0, 1], False),
        (4, 2, [0, 1, 0, 1], True),
        (3, 2, [0, 1, 0], True),
        (2, 1, [0, 0], True),
    ],
)
def test_workers_take_gpus_in_turn(num_workers, num_gpus, indices, is_shared):
    placement = Placement(num_workers=num_workers, gpus=gpus(num_gpus))
    assert [placement.index(rank) for rank in range(num_workers)] == indices
    assert placement.is_shared == is_shared


def test_only_gpus_that_are_used_are_named():
    assert Placement(num_workers=1, gpus=gpus(4)).models == "GPU 0"
    assert Placement(num_workers=9, gpus=gpus(4)).models == "GPU 0, GPU 1"


def test_workers_that_share_a_gpu_are_hosts_of_their_own_to_nccl():
    shared = [nccl_environment(rank, is_shared=True, interface="eth0") for rank in range(3)]
    assert len({environment["NCCL_HOSTID"] for environment in shared}) == 3
    alone = nccl_environment(0, is_shared=False, interface="eth0")
    assert "NCCL_HOSTID" not in alone
    for environment in [*shared, alone]:
        assert environment["NCCL_P2P_DISABLE"] == environment["NCCL_SHM_DISABLE"] == "1"
        assert (environment["NCCL_NET"], environment["NCCL_SOCKET_IFNAME"]) == ("Socket", "eth0")


def test_a_plugin_is_named_to_nccl_by_its_path_and_its_name():
    own = nccl_environment(0, is_shared=False, interface="eth0")
    chosen = own | plugin_environment("bagua")
    assert Path(chosen["NCCL_NET_PLUGIN"]).name == "libnccl-net-bagua.so"
    assert Path(chosen["NCCL_NET_PLUGIN"]).is_file()
    assert (chosen["NCCL_NET"], chosen["NCCL_SOCKET_IFNAME"]) == ("bagua", "eth0")
    assert own | plugin_environment(None) == own


def test_a_child_asks_cuda_and_once(pretended, tmp_path):
    def describe():
        with (tmp_path / "asked").open("a") as file:
            file.write("x")
        return (Gpu(name=f"{os.getpid()}", memory_bytes=1),)

    pretended(describe)
    [found] = find_gpus()
    assert found.name != f"{os.getpid()}"
    assert find_gpus() == (found,)
    assert (tmp_path / "asked").read_text() == "x"


def test_a_driver_that_does_not_answer_is_said(pretended):
    def describe():
        os._exit(1)

    pretended(describe)
    with pytest.raises(UserError, match="does nvidia-smi answer"):
        find_gpus()


def test_auto_is_nccl_where_there_is_a_gpu_and_gloo_elsewhere(pretended):
    pretended(lambda: (Gpu(name="one", memory_bytes=1),))
    plan = plan_of("backend=auto")
    assert plan.backend == Backend(process_group="nccl", device="cuda")
    assert plan.names["backend"] == "nccl"
    pretended(lambda: ())
    plan = plan_of("backend=auto")
    assert plan.backend == Backend(process_group="gloo", device="cpu")
    assert plan.names["backend"] == "gloo"


def test_simulated_workers_are_on_either_device():
    assert plan_of("backend=sim").backend.device == "cpu"
    plan = plan_of("backend=sim", "device=cuda")
    assert plan.backend.device == "cuda"
    assert plan.backend.is_simulated
    assert not plan.backend.has_gpu_workers
    assert plan_of("backend=nccl").backend.has_gpu_workers


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["device=cuda"], "device=cuda is not where gloo moves tensors"),
        (["backend=nccl", "device=cpu"], "device=cpu is not where nccl moves tensors"),
        (["backend=sim", "device=tpu"], "device must be one of cpu, cuda, null, got tpu"),
    ],
)
def test_a_device_that_a_backend_does_not_serve_is_refused(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        plan_of(*overrides)


@pytest.mark.skipif(not NO_GPU_HERE, reason="there is a GPU here")
@pytest.mark.parametrize("overrides", [["backend=nccl"], ["backend=sim", "device=cuda"]])
def test_a_run_on_a_gpu_that_is_not_there_is_refused_in_one_sentence(overrides, tmp_path):
    folder = tmp_path / "run"
    app = run("algo=bytegrad", *overrides, f"hydra.run.dir={folder}")
    assert app.returncode == 2
    assert "there is no NVIDIA GPU here that torch can use" in app.stderr
    assert len(app.stderr.strip().splitlines()) == 1
    assert not folder.exists()

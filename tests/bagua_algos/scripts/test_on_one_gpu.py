"""Scripts on a GPU that two workers share, by NCCL: see `on_one_gpu`."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.bagua_algos.gloo import results
from tests.bagua_algos.scripts.on_one_gpu import EVERY_ALGORITHM, FEW
from tests.bagua_algos.scripts.training import Results
from tests.once import made_once
from tests.paths import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

BACKENDS = ["nccl", "none", "cpu:gloo,cuda:nccl", "gloo"]
MIXED = BACKENDS[2]


@pytest.fixture(scope="module", params=BACKENDS)
def by_backend(request, tmp_path_factory) -> tuple[str, list[dict[str, Results]]]:
    return request.param, results_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> list[dict[str, Results]]:
    return results_of("nccl", tmp_path_factory)


def results_of(backend: str, tmp_path_factory) -> list[dict[str, Results]]:
    folder = made_once(tmp_path_factory, f"on_one_gpu_{backend}", lambda to: run(backend, to))
    return results(folder, 2)


def run(backend: str, folder: Path) -> None:
    """In a process of its own: `tests.app`'s needs all that any command does."""
    module = "tests.bagua_algos.scripts.on_one_gpu"
    words = [sys.executable, "-m", module, str(folder), "2", backend]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_every_algorithm_trains_by_nccl_as_by_gloo(workers, name):
    assert_as_on_cpu(workers, name)


@pytest.mark.parametrize("backend", ["none", MIXED])
@pytest.mark.parametrize("name", FEW)
def test_a_group_of_several_backends_is_nccls_for_a_model_on_a_gpu(tmp_path_factory, backend, name):
    assert_as_on_cpu(results_of(backend, tmp_path_factory), name)


def assert_as_on_cpu(workers, name):
    for worker in workers:
        found = worker["algorithms"]
        on_gpu, on_cpu = found[f"{name} cuda"], found[f"{name} cpu"]
        assert on_gpu.isfinite().all()
        if name == "async_model_average":  # whose values depend on when a mean is done
            continue
        torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", ["AllReduce", "ByteGrad", "Decentralized"])
def test_a_compiled_model_trains_as_one_that_is_not(workers, name):
    """Parameters begin anywhere in a bucket, where inductor's kernels must not read vectors."""
    for worker in workers:
        found = worker["compiled"]
        torch.testing.assert_close(
            found[f"{name} compiled"], found[f"{name} eager"], rtol=0, atol=5e-3
        )


def test_tuning_changes_no_bit(workers):
    for worker in workers:
        assert torch.equal(worker["tuned"]["tuned"], worker["tuned"]["plain"])


def test_a_training_goes_on_from_its_state_to_the_same_bits(workers):
    for worker in workers:
        assert torch.equal(worker["continued"]["cut"], worker["continued"]["whole"])


def test_what_the_workers_cannot_exchange_is_refused(by_backend):
    backend, workers = by_backend
    for worker in workers:
        said = worker["refusals"]
        if backend == "gloo":
            assert "by gloo: call init_process_group('nccl')" in said["on the GPU"]
            assert said["on the CPU"] is None
            continue
        assert said["on the GPU"] is None
        if backend == MIXED:
            assert said["on the CPU"] is None
        else:
            assert "exchange tensors of GPUs by nccl" in said["on the CPU"]
        assert said["a buffer on the CPU"].startswith("1.running_mean is on cpu")
        assert "only gloo's operations are striped" in said["two streams"]

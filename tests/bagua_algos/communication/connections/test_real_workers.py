"""Shared memory among gloo workers, each a process of its own."""

import torch

from tests import app
from tests.bagua_algos.cases import NODES
from tests.bagua_algos.communication.connections.killed_workers import LOADER_S


def test_means_through_shared_memory_are_those_over_gloo(real):
    """To the bit those of the pattern with the same order, and equal on all workers."""
    results = real["shared_memory"]
    for way in ("", ", with gaps", ", by nodes"):
        ours = results[f"memory{way}"]
        assert torch.equal(ours, results[f"direct{way}"])
        assert torch.equal(ours, ours[:1].expand_as(ours))
        torch.testing.assert_close(ours, results[f"ring{way}"], rtol=0, atol=1e-6)
    for pattern in ("memory", "direct", "ring"):
        assert torch.equal(results[pattern], results[f"{pattern}, with gaps"])
        assert not results[f"{pattern}, the gaps"].any()


def test_a_node_shares_memory_as_its_whole_does(real):
    """Worker 3 is alone in its node."""
    results = real["shared_memory"]
    assert NODES[4] == ((0, 1, 2), (3,))
    assert results["memory shares"].tolist() == [*[[True, True]] * 3, [True, False]]
    assert results["direct shares"].tolist() == results["ring shares"].tolist()
    assert not results["ring shares"].any()


def test_a_killed_worker_is_named_at_once(tmp_path):
    """Real workers, of whom one leaves a process behind that has inherited all that it had."""
    module = "tests.bagua_algos.communication.connections.killed_workers"
    ended = app.run(tmp_path, 3, module=module)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank, others in ((0, "1, 2"), (2, "0, 1")):
        seconds, sentence = (tmp_path / f"{rank}.txt").read_text().split("\n")
        assert float(seconds) < LOADER_S / 2
        begin, _, end = sentence.partition(" failed after ")
        assert begin == f"worker {rank}: all_reduce_mean with workers {others}"
        assert end.partition(": ")[2] == "worker 1 has ended or closed the connection"

"""Every algorithm that can train shards: sharded replicas train as whole ones do.

A code has one scale a chunk, and the bounds of chunks are those of shards here, and of buckets
there; top-k chooses from a shard, not from a bucket. Cut in the same way they are equal.
"""

from collections.abc import Callable

import pytest
import torch

import bagua_algos.algorithms
from bagua_algos import Algorithm, AllReduce, Decentralized, LocalSGD
from bagua_algos.outer_optimizer import Nesterov
from tests.bagua_algos.fsdp2.net import SHARDED_ROWS
from tests.bagua_algos.fsdp2.oracle import Weights, in_pieces, unsharded

EXACT = 1e-6

# What an algorithm is without its code. The others have none.
UNCOMPRESSED: dict[str, Callable[[], Algorithm]] = {
    **dict.fromkeys(("all_reduce_bf16", "allreduce_fp8", "byte_grad"), AllReduce),
    **dict.fromkeys(("byte_grad_hierarchical", "qsgd", "ef_signsgd"), AllReduce),
    **dict.fromkeys(("top_k", "momentum_correction", "qadam", "one_bit_adam"), AllReduce),
    **dict.fromkeys(("low_precision_decentralized", "choco_sgd"), Decentralized),
    "diloco_int8": lambda: LocalSGD(interval=3, outer=Nesterov()),
}


def distance(a: Weights, b: Weights) -> float:
    """The Euclidean norm of the difference of all weights; they have a norm of 5.5."""
    return torch.cat([(a[name] - b[name]).flatten() for name in a]).norm().item()


@pytest.mark.parametrize("name", SHARDED_ROWS)
def test_shards_are_trained_as_pieces_of_whole_weights(processes, name):
    torch.testing.assert_close(processes[0]["rows"][name], in_pieces(name), rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", SHARDED_ROWS)
def test_a_sharded_replica_trains_as_a_whole_one_but_for_the_rounding_of_codes(processes, name):
    ours, whole = processes[0]["rows"][name], unsharded(name)
    if name not in UNCOMPRESSED:
        torch.testing.assert_close(ours, whole, rtol=0, atol=EXACT)
    else:
        # Codes with other bounds err otherwise, but by as much.
        assert distance(ours, whole) <= 2 * distance(whole, unsharded(name, UNCOMPRESSED[name]()))


@pytest.mark.parametrize("name", SHARDED_ROWS)
def test_the_consensus_is_one_model_on_all_processes(processes, name):
    for other in processes[1:]:
        for key, weights in processes[0]["rows"][name].items():
            assert torch.equal(other["rows"][name][key], weights), key


def test_every_algorithm_trains_shards_or_refuses_them():
    tried = {type(make()) for make in SHARDED_ROWS.values()}
    classes = {cls for cls in vars(bagua_algos.algorithms).values() if isinstance(cls, type)}
    assert len(classes) > 9
    for cls in classes - tried:
        with pytest.raises(ValueError, match=cls.__name__):
            cls().check_shards()

"""Scripts around a sharded model: accumulation, clipping, consensus, checkpoints, odd models."""

import pytest
import torch

from tests.bagua_algos.fsdp2.net import NUM_REPLICAS
from tests.bagua_algos.fsdp2.scripts import CLIP_NORM, RESUMED


@pytest.fixture
def scripts(processes):
    """Results by process and case."""
    return [process["scripts"] for process in processes]


@pytest.mark.parametrize("torchs_own", ["ddp", "hsdp"])
def test_all_reduce_is_torchs_own_with_accumulation_clipping_and_schedule(scripts, torchs_own):
    assert (scripts[0]["ours"]["norms"] > CLIP_NORM).any()
    torch.testing.assert_close(scripts[0]["ours"], scripts[0][torchs_own], rtol=0, atol=1e-7)


def test_all_reduce_is_native_hsdp_in_mixed_precision(scripts):
    ours, native = scripts[0]["ours in bf16"], scripts[0]["hsdp in bf16"]
    torch.testing.assert_close(ours, native, rtol=0, atol=1e-7)


def test_the_consensus_is_the_mean_and_leaves_no_trace(scripts):
    results = scripts[0]["consensus"]
    own = [scripts[rank]["consensus"]["before"] for rank in (0, 2)]
    squares, norms = 0.0, 0.0
    for name, within in results["within"].items():
        mean = (own[0][name] + own[1][name]) / NUM_REPLICAS
        torch.testing.assert_close(within, mean, rtol=0, atol=1e-7)
        assert torch.equal(results["saved"][name], within)
        squares += sum((x[name] - mean).double().square().sum() for x in own) / NUM_REPLICAS
        norms += mean.double().square().sum()
    torch.testing.assert_close(
        results["spread"].double(), (squares / norms).sqrt(), rtol=1e-5, atol=0
    )
    for process in scripts:
        found = process["consensus"]
        assert torch.equal(found["outputs"], results["outputs"])
        for name in results["within"]:
            assert torch.equal(found["after"][name], found["before"][name])
            assert torch.equal(found["went on"][name], found["never stopped"][name])


def test_buffers_and_frozen_weights_begin_equal_and_are_averaged(scripts):
    found = [process["untrained"] for process in scripts]
    before = torch.stack([process["before"] for process in found])
    assert len(before.unique(dim=0)) == len(found)
    for process in found:
        assert torch.equal(process["first"], torch.zeros(5))
        assert torch.equal(process["frozen"], found[0]["frozen"])
        torch.testing.assert_close(process["within"], before.mean(0))
        teacher = process["frozen"] + (NUM_REPLICAS - 1) / 2
        torch.testing.assert_close(process["frozen within"], teacher)


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_continues_bit_for_bit(scripts, name):
    for process in scripts:
        found = process[f"resume {name}"]
        for key, weights in found["went on"].items():
            assert torch.equal(found["resumed"][key], weights), key


def test_a_release_gives_the_optimizer_its_moments_back_and_ends_averaging(scripts):
    found = [process["release"] for process in scripts]
    # Frozen at the switch, and given back as Adam will correct it: a third step's, by five steps.
    assert found[0]["released"].shape == found[0]["in warm-up"].shape
    assert (found[0]["released"] > 0).all()
    assert found[0]["steps"] == 4
    assert not torch.equal(found[0]["gradient"], found[2]["gradient"])
    assert torch.equal(found[0]["gradient"], found[1]["gradient"])


def test_what_a_replica_does_not_use_counts_as_zero_there(scripts):
    for process in scripts:
        found = process["branches"]
        for number in range(2):
            assert torch.equal(found[f"never {number}"], torch.zeros(4))
            assert torch.equal(found[f"sometimes {number}"], torch.full((4,), 0.5))


@pytest.mark.parametrize("units", ["single unit", "grouped"])
def test_units_make_no_difference(scripts, units):
    torch.testing.assert_close(scripts[0][units], scripts[0]["many units"], rtol=0, atol=1e-7)


def test_a_tied_weight_is_trained_as_by_ddp(scripts):
    found = scripts[0]
    torch.testing.assert_close(found["tied"], found["tied by ddp"], rtol=0, atol=1e-7)


def test_a_loss_that_is_not_forward_starts_what_travels_beside_it(scripts):
    for process in scripts:
        assert process["another method"].keys() == process["forward"].keys()
        for name, weights in process["forward"].items():
            assert torch.equal(process["another method"][name], weights)


def test_a_closure_is_a_step(scripts):
    for process in scripts:
        found = process["closures"]
        for name, weights in found["closure False"].items():
            assert torch.equal(found["closure True"][name], weights)


@pytest.mark.parametrize("case", ["thrown away", "thrown away with momentum"])
def test_gradients_thrown_away_are_warned_of_once_where_no_process_sees_all_of_them(scripts, case):
    for rank, process in enumerate(scripts):
        said = process[case]["said"]
        is_first_shard = rank % 2 == 0  # which alone sees that a gradient has overflowed
        assert [len(few) for few in said] == ([0, 0, 1, 0] if is_first_shard else [0, 1, 0, 0])
        [sentence] = [sentence for few in said for sentence in few]
        assert sentence.startswith("the gradients of the last backward pass were thrown away")
        assert all(process[case]["finite"])

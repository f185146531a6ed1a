"""What a sharded model cannot do is said in one sentence, by every process of the replica."""

import re

import pytest

RATES = r"worker 1's optimizer differs from worker 0's, which .* lr=0.1, .* lr=0.2, .*: make it"
SENTENCES = {
    "everybody": r'holds other parts of the same replica: .*mesh\["replicate"\].get_group\(\)\)',
    "parts only": r"fully_shard was not called with the model itself: call fully_shard\(",
    "tensor parallel": r"fully_shard was not called with the model itself: call fully_shard\(",
    "native": r"'stem.weight' is laid out over DeviceMesh\(\(replicate=2, shard=2\).*: shard over",
    "ignored": r"'mid.bias' is trainable and not sharded \(ignored_params\).*: freeze it, or",
    "two meshes": r"sharded over 2 meshes.*: call fully_shard\(.* with one mesh for all units",
    "hooked": r"average its gradients a second time: leave set_all_reduce_hook out",
    "divided": r"divides its gradients by 1 .*: afterwards replicas are averaged, .*; leave it out",
    "offloaded": r"offloaded to the CPU.*: call fully_shard without CPUOffloadPolicy",
    "meta": r"'weight' is on the meta device.*: call model.to_empty",
    "compiled": r"compiled before it is distributed: call distribute with the plain model first",
    "tiny": r"2 processes share a replica, and one of them holds no .*: shard it by fewer",
    "unlike": r"the replicas differ in their models.*: build the same on every process",
    "a replica's rate": RATES,
    "a shard's rate": RATES,
    "a process's rate": rf"{RATES}|^other workers' optimizers differ: make",
    "power_sgd": r"PowerSGD factorizes whole gradient matrices.*: choose .* such as ByteGrad",
    "top_k": r"TopK\(clip_norm=...\) would clip by the norm of .* shard: .*clip_grad_norm_",
    "async": r"AsyncModelAverage would take up .* at different steps: choose LocalSGD",
    "bucket_bytes": r"bucket_bytes is not for .*: a unit is a bucket, so call fully_shard with",
    "unused": r"find_unused_parameters is not supported with fully_shard: .* counts as zero",
    "scaler": r"a GradScaler is not supported with fully_shard: train in bfloat16",
    "scaler of a step": r"a GradScaler is not supported with fully_shard: train in bfloat16",
    "frozen later": r"'stem.weight' .* was frozen after .*: release\(\) the model",
    "replaced later": r"was replaced after .* \(load_state_dict\(assign=True\).*: release\(\)",
    "narrowed later": r"is torch.bfloat16 now and was torch.float32 .*: release\(\) the model",
    "divided later": r"divides its gradients by 1 .*: afterwards replicas are averaged",
    "another optimizer": r"'stem.weight' .* another optimizer is about to change it",
    "no hooks": r"has a gradient that no replica has heard of: .* torch 2.13 does",
    "another's state": r"this state is of another shard: \[\d, 2\], and here it is \[\d, 2\]",
    "distributed twice": r"this model is distributed already: release\(\) that one first",
    "no backward without no_sync": r"all accumulated within no_sync\(\)",
    "no_sync by itself": r"never reduced over the shards.*: let the last micro-batch's backward",
    "never reduced": r"never reduced over the shards.*: let the last micro-batch's backward",
    "never reduced, local SGD": r"never reduced over the shards.*: let the last micro-batch's",
    "never reduced, in bfloat16": r"never reduced over the shards.*: let the last micro-batch's",
    "one unit never reduced": r"never reduced over the shards.*: let the last micro-batch's",
    "grown buffer": r"'table' of shape \(2,\) .* shape \(3,\)|^other workers' parameters or",
    "empty_backward": r"empty_backward is not for .*: run any batch, with its loss times 0",
}


def test_what_can_be_done_is_not_refused(processes):
    assert [process["refusals"]["nothing"] for process in processes] == [""] * len(processes)


def test_every_refusal_has_a_sentence(processes):
    assert processes[0]["refusals"].keys() - {"nothing"} == SENTENCES.keys()


@pytest.mark.parametrize("name", SENTENCES)
def test_it_is_refused(processes, name):
    for process in processes:
        found = process["refusals"][name]
        assert re.search(SENTENCES[name], found), found
        assert "\n" not in found

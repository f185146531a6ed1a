"""BERT-Base by PyTorch on 1 to 4 nodes of 8 V100: Oneflow-Inc/DLPerf at c89430b.

Gradients travel after backward, in one piece: so does that code with allreduce_post_accumulation,
and so say its figures. What two and four nodes take longer than one, 63 and 77 ms in float32 with
batches of 32, would be less with batches of 48 if backward hid any of it, and is 71 and 91.

One number is fitted: what a NIC carries, to the row of 4 nodes in float32 with batches of 32.
"""

from functools import cache, partial

from torch.optim import Adam

from bagua_algos.algorithms.all_reduce import AllReduce
from experiments.predict.device import Device
from experiments.predict.load_model import trace_model
from experiments.predict.predict import Case, StepPrediction, predict
from experiments.predict.published.table import ONE_BUCKET, Comparison, PublishedTable, fit
from experiments.predict.step_trace import StepTrace
from netsim.conditions.condition import NetworkCondition

NODE_SIZE = 8
_DELAY_MS = 0.02

SEQUENCES_PER_S = {
    ("float32", 32): {1: 921.32, 2: 1499.4, 4: 2885.81},
    ("float32", 48): {1: 928.01, 2: 1584.32, 4: 3039.3},
    ("float16", 64): {1: 3251.7, 2: 4936.92, 4: 9331.72},
    ("float16", 96): {1: 3287.12, 2: 5426.07, 4: 10349.12},
}
"""By precision and batch, then by number of nodes."""
FITTED = ("float32", 32, 4)


def predict_row(precision: str, batch_size: int, num_nodes: int, nic_gbit: float) -> StepPrediction:
    """With so much through every NIC."""
    between = {"rate_mbit": 1000 * nic_gbit, "delay_ms": _DELAY_MS}
    case = Case(
        trace=_step(batch_size),
        device=Device.load("v100"),
        # With --fp16 that code sums gradients in float16 (allreduce_post_accumulation_fp16).
        algorithm=AllReduce(wire="fp16" if precision == "float16" else None),
        net=NetworkCondition(nodes={"size": NODE_SIZE, "between": between}),
        make_optimizer=partial(Adam, lr=1e-4),
        num_workers=num_nodes * NODE_SIZE,
        bucket_bytes=ONE_BUCKET,
        precision=precision,
        num_steps=4,
    )
    return predict(case)


@cache
def nic_gbit() -> float:
    """What one NIC carries, fitted."""
    precision, batch_size, num_nodes = FITTED
    published = SEQUENCES_PER_S[precision, batch_size][num_nodes]
    return fit(
        lambda gbit: predict_row(precision, batch_size, num_nodes, gbit).examples_per_s,
        published,
        1,
        100,
    )


def table() -> PublishedTable:
    """All rows of eight GPUs and more."""
    rows = [
        Comparison(
            row=f"torch DDP, {num_nodes * NODE_SIZE} GPUs",
            setting=f"{precision}, batches of {batch_size}",
            published=published,
            batch=num_nodes * NODE_SIZE * batch_size,
            predicted=predict_row(precision, batch_size, num_nodes, nic_gbit()),
            is_fitted=(precision, batch_size, num_nodes) == FITTED,
            explanation=_explanation(precision),
        )
        for (precision, batch_size), by_nodes in SEQUENCES_PER_S.items()
        for num_nodes, published in by_nodes.items()
    ]
    return PublishedTable(
        title="BERT-Base by torch DDP, V100, InfiniBand by sockets",
        source=(
            "Published: Oneflow-Inc/DLPerf at c89430b, NVIDIADeepLearningExamples/PyTorch/BERT: "
            "pre-training with 128 tokens, 1 to 4 nodes of 8 V100 SXM2, NVLink, InfiniBand of "
            "100 Gbit/s whose verbs NCCL did not find. Gradients travel after backward, in one "
            "piece: what more nodes take longer than one is not less where batches are larger."
        ),
        fitted=(
            f"Fitted: what a NIC carries, {nic_gbit():.1f} Gbit/s, to the row of 32 GPUs in "
            "float32 with batches of 32. Compute is the V100's; the table's rows of one GPU are "
            "among its figures."
        ),
        rows=rows,
    )


def _explanation(precision: str) -> str | None:
    if precision == "float16":
        return (
            "Most of it is compute. One GPU takes 144 ms for a batch of 64, as this table "
            "publishes it, and the model 125: the figures of BERT-Base and BERT-Large in float16 "
            "that the V100's shares are fitted to contradict each other, and the fit is between "
            "them (`python -m experiments.devices v100`). The rest is what a node's 8 GPUs take "
            "longer than one, 13 ms, of which the model has 4: it lacks the kernels that put "
            "gradients into one piece of float16 and back."
        )
    return None


@cache
def _step(batch_size: int) -> StepTrace:
    return trace_model({"model": "bert_base", "tokens": "128"}, batch_size, fused_attention=False)

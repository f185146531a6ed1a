"""BERT-Large by Adam on two clusters of V100: Tang et al., "1-bit Adam", arXiv 2102.02888, Table 1.

A step there is forward, backward, an all-reduce of float16 gradients that begins when backward has
ended, and the optimizer. What a NIC carries is published beside it, by iperf and InfiniBand's
perftest (DeepSpeed's blog post on 1-bit Adam, docs/_posts/2020-09-09-onebit-adam-blog-post.md in
its repository); what was fitted is the link inside the nodes of the Ethernet cluster, to its row of
one node. The rows with four accumulated batches are left out.

The table's numbers were read in a summary of the paper (rajatbisht.net/paper_summaries, 0043), not
in the paper itself. The summary names 100 Gbit/s InfiniBand, the blog post 40: another cluster may
be meant.
"""

from dataclasses import dataclass, replace
from functools import cache, partial

from torch.optim import Adam

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.compressors import SignScale
from bagua_algos.engine.algorithm import Algorithm
from experiments.predict.device import Device
from experiments.predict.load_model import trace_model
from experiments.predict.predict import Case, StepPrediction, predict
from experiments.predict.published.table import ONE_BUCKET, Comparison, PublishedTable, fit
from experiments.predict.step_trace import StepTrace
from netsim.conditions.condition import NetworkCondition

_DELAY_MS = 0.02


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`link_gb_per_s` is that of a worker inside its node, None: the V100's NVLink."""

    name: str
    node_size: int
    nic_gbit: float
    link_gb_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A row of Table 1: milliseconds of forward, all-reduce, the rest of backward, and the step."""

    num_nodes: int
    batch_size: int
    forward_ms: float
    all_reduce_ms: float
    backward_ms: float
    optimizer_ms: float

    @property
    def step_ms(self) -> float:
        """Of all parts, one after the other."""
        return self.forward_ms + self.all_reduce_ms + self.backward_ms + self.optimizer_ms


def _profile(num_nodes: int, batch_size: int, *parts_ms: float) -> Profile:
    forward_ms, all_reduce_ms, backward_ms, optimizer_ms = parts_ms
    return Profile(
        num_nodes=num_nodes,
        batch_size=batch_size,
        forward_ms=forward_ms,
        all_reduce_ms=all_reduce_ms,
        backward_ms=backward_ms,
        optimizer_ms=optimizer_ms,
    )


ETHERNET = Cluster(name="Ethernet", node_size=4, nic_gbit=4.1)
INFINIBAND = Cluster(name="InfiniBand", node_size=8, nic_gbit=32)
ETHERNET_ROWS = (
    _profile(16, 1, 36.65, 2205.86, 33.63, 74.96),
    _profile(16, 16, 35.71, 2275.43, 60.81, 75.59),
    _profile(8, 16, 37.91, 2173.35, 60.71, 75.63),
    _profile(4, 16, 36.94, 2133.24, 62.82, 76.85),
    _profile(2, 16, 34.95, 1897.21, 61.23, 75.26),
    _profile(1, 16, 35.99, 239.76, 59.95, 74.21),
)
INFINIBAND_ROWS = (
    _profile(8, 1, 25.36, 316.18, 23.25, 58.49),
    _profile(8, 16, 32.81, 336.40, 59.99, 57.79),
    _profile(4, 16, 33.45, 297.28, 56.81, 57.98),
    _profile(2, 16, 32.86, 183.74, 56.49, 58.60),
    _profile(1, 16, 32.74, 28.18, 59.73, 57.29),
)


def predict_row(
    cluster: Cluster, num_nodes: int, batch_size: int, algorithm: Algorithm | None = None
) -> StepPrediction:
    """A step of a row, by `algorithm`; None: the all-reduce of the table."""
    device = Device.load("v100")
    if cluster.link_gb_per_s is not None:
        device = replace(device, nvlink_gb_per_s=cluster.link_gb_per_s)
    between = {"rate_mbit": 1000 * cluster.nic_gbit, "delay_ms": _DELAY_MS}
    case = Case(
        trace=_step(batch_size),
        device=device,
        algorithm=algorithm or AllReduce(wire="fp16"),
        net=NetworkCondition(nodes={"size": cluster.node_size, "between": between}),
        make_optimizer=partial(Adam, lr=1e-4),
        num_workers=num_nodes * cluster.node_size,
        bucket_bytes=ONE_BUCKET,
        precision="float16",
        num_steps=4,
    )
    return predict(case)


@cache
def ethernet() -> Cluster:
    """With the link inside a node fitted to the row of one node."""
    row = ETHERNET_ROWS[-1]

    def examples_per_s(link: float) -> float:
        cluster = replace(ETHERNET, link_gb_per_s=link)
        return predict_row(cluster, row.num_nodes, row.batch_size).examples_per_s

    published = 1e3 * row.batch_size * row.num_nodes * ETHERNET.node_size / row.step_ms
    return replace(ETHERNET, link_gb_per_s=fit(examples_per_s, published, 1, 150))


def table() -> PublishedTable:
    """Both clusters, and what the model has of 1-bit Adam itself."""
    comparisons = [
        _compare(cluster, row)
        for cluster, rows in ((ethernet(), ETHERNET_ROWS), (INFINIBAND, INFINIBAND_ROWS))
        for row in rows
    ]
    return PublishedTable(
        title="BERT-Large by Adam, V100, Ethernet and InfiniBand",
        source=(
            'Published: Tang et al., "1-bit Adam", arXiv 2102.02888, Table 1: 336 M parameters, '
            "128 tokens, float16, nodes of 4 V100 with 40 Gbit/s Ethernet and of 8 V100 with "
            "InfiniBand. Gradients travel after backward, in one piece. Examples/s follow from its "
            "milliseconds. Rows of accumulated batches are left out. The numbers were read in a "
            "summary of the paper (rajatbisht.net/paper_summaries, 0043), not in the paper."
        ),
        fitted=(
            f"Fitted: the link inside a node of the Ethernet cluster, "
            f"{ethernet().link_gb_per_s:.1f} GB/s, to its row of one node. What a NIC carries is "
            f"published by its authors: {ETHERNET.nic_gbit} Gbit/s by iperf and "
            f"{INFINIBAND.nic_gbit:g} Gbit/s by InfiniBand's perftest (DeepSpeed's blog post of "
            "2020-09-09; the summary names 100 Gbit/s InfiniBand, so that another cluster may be "
            "meant). Compute is the V100's in float16, whose figures are others'."
        ),
        rows=comparisons,
        remark=_one_bit_adam(),
    )


def _compare(cluster: Cluster, row: Profile) -> Comparison:
    num_workers = row.num_nodes * cluster.node_size
    batch = num_workers * row.batch_size
    predicted = predict_row(cluster, row.num_nodes, row.batch_size)
    compute_ms = row.step_ms - row.all_reduce_ms
    return Comparison(
        row=f"{cluster.name}, {num_workers} GPUs",
        setting=f"batches of {row.batch_size}",
        published=1e3 * batch / row.step_ms,
        batch=batch,
        predicted=predicted,
        is_fitted=cluster.name == ETHERNET.name and row.num_nodes == 1,
        explanation=(
            f"Compute is {compute_ms:.0f} ms as published and {1e3 * predicted.compute_s:.0f} "
            f"predicted, all else {row.all_reduce_ms:.0f} and "
            f"{1e3 * (predicted.step_s - predicted.compute_s):.0f} ms. {_cause(cluster, row)}"
        ),
    )


def _cause(cluster: Cluster, row: Profile) -> str:
    parts = []
    if row.num_nodes > 1:
        num_workers = row.num_nodes * cluster.node_size
        sent_bytes = 2 * (1 - 1 / num_workers) * 2 * _step(row.batch_size).num_parameters
        gbit = 8 * sent_bytes / (1e6 * row.all_reduce_ms)
        parts.append(
            f"A ring sends {sent_bytes / 1e6:,.0f} MB through a NIC, so the published all-reduce "
            f"moved {gbit:.1f} Gbit/s, where its authors' benchmark of one connection says "
            f"{cluster.nic_gbit:g}."
        )
    else:
        parts.append("Inside a node the model takes NVLink's peak.")
    parts.append(
        f"The published step of the optimizer takes {row.optimizer_ms:.0f} ms, the model's as long "
        "as its bytes take at the memory's peak rate."
    )
    if row.batch_size == 1:
        parts.append("With a batch of 1 the launches of kernels count, which the model lacks.")
    return " ".join(parts)


def _one_bit_adam() -> str:
    codes = QAdam(warmup_steps=1, compressor=SignScale(), error_feedback=True, precondition=False)
    ratios = [
        predict_row(cluster, nodes, 16, codes).examples_per_s
        / predict_row(cluster, nodes, 16).examples_per_s
        for cluster, nodes in ((ethernet(), 64), (INFINIBAND, 8))
    ]
    return (
        '1-bit Adam itself, after its warm-up, is published as "up to" 6.6 times as fast as Adam '
        "on Ethernet and 2 times on InfiniBand, without the case. The model has "
        f"{ratios[0]:.1f} times with 256 GPUs on Ethernet and {ratios[1]:.1f} with 64 on "
        "InfiniBand, batches of 16."
    )


@cache
def _step(batch_size: int) -> StepTrace:
    return trace_model({"model": "bert_large", "tokens": "128"}, batch_size, fused_attention=False)

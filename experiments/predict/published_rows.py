"""Step times that others have published, and the model's of the same cases.

VGG16 on 16 machines of 8 V100 (Gan et al., "BAGUA", arXiv 2107.01499; images/s read off a chart,
give or take 62). Two numbers are fitted: compute, to the row of asynchronous averaging, which
hardly waits (`experiments/predict/devices/v100.yaml`), and what one NIC carries at 100 Gbit/s, to
the row of torch DDP there. All else is predicted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from torch.optim import SGD, Adam, Optimizer

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.algorithms.async_model_average import AsyncModelAverage
from bagua_algos.algorithms.compressed_all_reduce import CompressedAllReduce
from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Algorithm
from experiments.predict.device import Device
from experiments.predict.predict import Case, StepPrediction, predict
from experiments.predict.shapes import vgg16
from experiments.training.torch_ddp import DEFAULT_BUCKET_MB
from netsim.conditions.condition import NetworkCondition

NUM_WORKERS, NODE_SIZE, BATCH_SIZE = 128, 8, 32
NUM_NODES = NUM_WORKERS // NODE_SIZE
DELAY_MS = 0.02
"""Of a switched Ethernet, one way: an assumption; an all-reduce of 25 MB takes far longer."""

RATES_GBIT = (100, 10)
_MIB = 2**20
_SGD = partial(SGD, lr=0.1, momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of the table: `images_per_s` at each of `RATES_GBIT`."""

    name: str
    algorithm: Algorithm
    images_per_s: tuple[float, float]
    bucket_bytes: int = 10 * _MIB
    make_optimizer: Callable[..., Optimizer] = _SGD
    num_steps: int = 6

    def predict(self, nic_gbit: float) -> StepPrediction:
        """With so much through every NIC."""
        between = {"rate_mbit": 1000 * nic_gbit, "delay_ms": DELAY_MS}
        ranks = range(NUM_WORKERS)
        case = Case(
            model=vgg16(),
            device=Device.load("v100"),
            algorithm=self.algorithm,
            net=NetworkCondition(nodes={"size": NODE_SIZE, "between": between}),
            make_optimizer=self.make_optimizer,
            num_workers=NUM_WORKERS,
            batch_size=BATCH_SIZE,
            bucket_bytes=self.bucket_bytes,
            num_steps=self.num_steps,
            nodes=tuple(tuple(ranks[i : i + NODE_SIZE]) for i in ranks[::NODE_SIZE]),
        )
        return predict(case)

    def fit_nic_gbit(self) -> float:
        """What a NIC must carry for the prediction to be the published figure at 100 Gbit/s."""
        low, high = 1.0, float(RATES_GBIT[0])
        while high / low > 1 + 1e-4:
            middle = (low * high) ** 0.5
            too_slow = self.predict(middle).examples_per_s < self.images_per_s[0]
            low, high = (middle, high) if too_slow else (low, middle)
        return high


DDP = PublishedRow(
    name="torch DDP",
    algorithm=AllReduce(),
    images_per_s=(8_880, 4_530),
    bucket_bytes=DEFAULT_BUCKET_MB * _MIB,
)
HOROVOD = PublishedRow(
    name="Horovod",
    algorithm=AllReduce(),
    images_per_s=(9_690, 4_470),
    bucket_bytes=64 * _MIB,  # its fusion buffer
)
ALL_REDUCE = PublishedRow(
    name="BAGUA all-reduce",
    algorithm=AllReduce(hierarchical=True),
    images_per_s=(12_300, 4_470),
)
QADAM = PublishedRow(
    name="BAGUA QAdam",
    algorithm=QAdam(warmup_steps=1, hierarchical=True),
    images_per_s=(18_880, 17_830),
    make_optimizer=partial(Adam, lr=1e-3),
)
BYTEGRAD = PublishedRow(
    name="BAGUA ByteGrad",
    algorithm=CompressedAllReduce(compressor=MinMaxUInt8(), hierarchical=True),
    images_per_s=(21_800, 19_690),
)
ASYNC = PublishedRow(
    name="BAGUA async",
    algorithm=AsyncModelAverage(),
    images_per_s=(28_880, 28_940),
    num_steps=40,  # several rounds of half a second
)
ROWS = (DDP, HOROVOD, ALL_REDUCE, QADAM, BYTEGRAD, ASYNC)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row at one rate, predicted beside published."""

    row: PublishedRow
    gbit: int
    published: float
    predicted: StepPrediction

    @property
    def is_fitted(self) -> bool:
        """Whether a parameter was chosen for it."""
        return self.gbit == RATES_GBIT[0] and self.row in (DDP, ASYNC)

    @property
    def error(self) -> float:
        """Of images/s."""
        return self.predicted.examples_per_s / self.published - 1


@cache
def nic_gbit() -> float:
    """What one NIC carries at 100 Gbit/s, fitted to torch DDP."""
    return DDP.fit_nic_gbit()


@cache
def plugin_gbit() -> float:
    """The same with BAGUA's plugin, fitted to its all-reduce: for explanations alone."""
    return ALL_REDUCE.fit_nic_gbit()


def compare() -> list[Comparison]:
    """All rows at both rates."""
    return [
        Comparison(
            row=row,
            gbit=gbit,
            published=published,
            predicted=row.predict(min(gbit, nic_gbit())),
        )
        for row in ROWS
        for gbit, published in zip(RATES_GBIT, row.images_per_s, strict=True)
    ]


def step_s(images_per_s: float) -> float:
    """Of all workers together."""
    return NUM_WORKERS * BATCH_SIZE / images_per_s

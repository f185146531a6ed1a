"""Rows of the shared suite: algorithms that compress gradients."""

from collections.abc import Callable

from bagua_algos import Algorithm, AllReduce, CompressedAllReduce
from bagua_algos.algorithms.power_sgd import PowerSGD
from bagua_algos.algorithms.top_k import TopK
from bagua_algos.compressors import QSGD, Cast, SignScale

ROWS: dict[str, Callable[[], Algorithm]] = {
    "all_reduce_bf16": lambda: AllReduce(wire="bf16"),
    "all_reduce_fp16": lambda: AllReduce(wire="fp16"),
    "allreduce_fp8": lambda: CompressedAllReduce(compressor=Cast(wire="fp8_e4m3")),
    "qsgd": lambda: CompressedAllReduce(compressor=QSGD()),
    "qsgd_2_bits": lambda: CompressedAllReduce(compressor=QSGD(bits=2, group_size=64)),
    "ef_signsgd": lambda: CompressedAllReduce(compressor=SignScale(), error_feedback=True),
    "power_sgd": PowerSGD,
    "power_sgd_after_warm_up": lambda: PowerSGD(rank=1, warmup_steps=3),
    "top_k": TopK,
    "top_k_warm_up_and_clipping": lambda: TopK(ratio=0.05, clip_norm=1.0, warmup_steps=5),
}

ROWS_WITHOUT_MOMENTUM: dict[str, Callable[[], Algorithm]] = {
    "dgc": lambda: TopK(ratio=0.05, momentum=0.9, clip_norm=1.0, warmup_steps=5),
}
"""To be trained by an optimizer whose own momentum is zero: they refuse another."""

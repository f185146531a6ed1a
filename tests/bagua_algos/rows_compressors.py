"""One row a compressor, or more: what the suite over all compressors runs."""

from bagua_algos.compressors import QSGD, Cast, Largest, MinMaxUInt8, SignScale
from bagua_algos.compressors.compressor import Compressor

ROWS: list[Compressor] = [
    SignScale(),
    *(QSGD(bits=bits, group_size=48) for bits in (2, 4, 8)),
    *(Cast(wire=wire) for wire in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")),
    Largest(ratio=0.1),
]

EVERY = [MinMaxUInt8(), *ROWS]
"""MinMaxUInt8's greatest may lie half a step above what it was, so it runs a part of the suite."""

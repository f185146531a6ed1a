"""Compressors, one a file; `bagua_algos.compressors.compressor` says what a compressor is."""

from bagua_algos.compressors.cast import Cast
from bagua_algos.compressors.largest import Largest, Sparse
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.compressors.qsgd import QSGD
from bagua_algos.compressors.sign_scale import SignScale

__all__ = ["QSGD", "Cast", "Largest", "MinMaxUInt8", "SignScale", "Sparse"]

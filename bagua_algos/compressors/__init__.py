"""Compressors beside MinMaxUInt8, one a file; `bagua_algos.compression` says what one is."""

from bagua_algos.compressors.cast import Cast
from bagua_algos.compressors.largest import Largest, Sparse
from bagua_algos.compressors.qsgd import QSGD
from bagua_algos.compressors.sign_scale import SignScale

__all__ = ["QSGD", "Cast", "Largest", "SignScale", "Sparse"]

"""One algorithm a file."""

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.algorithms.compressed_all_reduce import ByteGrad, CompressedAllReduce

__all__ = ["AllReduce", "ByteGrad", "CompressedAllReduce"]

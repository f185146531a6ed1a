"""Loading data: examples of like cost for all workers, and data sets that are computed once."""

from bagua_algos.data.cached_dataset import CachedDataset
from bagua_algos.data.complexity import measure_complexity
from bagua_algos.data.disk_store import DiskStore
from bagua_algos.data.redis_store import RedisStore
from bagua_algos.data.sampler import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)
from bagua_algos.data.store import Store, StoreError, StoreFullError

__all__ = [
    "CachedDataset",
    "DiskStore",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "RedisStore",
    "Store",
    "StoreError",
    "StoreFullError",
    "measure_complexity",
]

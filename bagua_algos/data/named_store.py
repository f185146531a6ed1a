"""Stores by name: "disk", or the address of a Redis server."""

from bagua_algos.data.disk_store import DiskStore
from bagua_algos.data.redis_store import RedisStore
from bagua_algos.data.store import Store


def opened(cache: str | Store) -> Store:
    """The store that `cache` says, which is not reached for yet.

    "disk" is this host's, in the user's cache folder, for all processes; "redis://host:port" a
    server for all hosts, also as "rediss://" and "unix://".

    Raises:
        ValueError: another word.
        ImportError: the library that it needs is not installed.
    """
    if not isinstance(cache, str):
        return cache
    if cache == "disk":
        return DiskStore()
    if cache.startswith(("redis://", "rediss://", "unix://")):
        return RedisStore(address=cache)
    raise ValueError(
        f'cache must be "disk", "redis://host:port" or a store such as DiskStore(...), '
        f"got {cache!r}"
    )

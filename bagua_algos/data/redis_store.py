"""The store on a Redis server, for the workers of all hosts.

How much it may hold, and what it forgets first, is the server's to say: `maxmemory 20gb` and
`maxmemory-policy allkeys-lru` in its configuration. An entry is one value of its own, under
"relaxlab:", the data set and the key, so that a server may forget any of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bagua_algos.data.store import StoreError, StoreFullError

PREFIX = b"relaxlab:"


@dataclass(frozen=True, kw_only=True)
class RedisStore:
    """Entries on the server at `address`: "redis://user:password@host:port/database", "rediss://"
    over TLS, or "unix://path".

    Args:
        address: of the server.
        timeout_s: the longest wait for an answer.

    Raises:
        ValueError: no such address.
        ImportError: Redis' client is not installed.
    """

    address: str
    timeout_s: float = 2.0
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0, got {self.timeout_s}")
        self._client()

    def read(self, dataset: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of `keys`, None where there is none. Raises `StoreError`."""
        with self._errors():
            return self._client().mget([PREFIX + dataset + key for key in keys])

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep `entries`. Raises `StoreError`, `StoreFullError` where the server has no room."""
        with self._errors():
            self._client().mset({PREFIX + dataset + key: entry for key, entry in entries.items()})

    def close(self) -> None:
        """End the connections of this process."""
        client = self._clients.pop("client", None)
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without connections: a process makes its own."""
        return self.__dict__ | {"_clients": {}}

    def _client(self) -> Any:
        if "client" not in self._clients:
            self._clients["client"] = _connect(self.address, self.timeout_s)
        return self._clients["client"]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        redis = _redis()
        try:
            yield
        except redis.exceptions.OutOfMemoryError as error:
            raise StoreFullError(
                f"the cache at {self._place()} is full: give the server more maxmemory, or "
                "maxmemory-policy allkeys-lru"
            ) from error
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreError(f"the cache at {self._place()} cannot be used ({error})") from error

    def _place(self) -> str:
        """The address without a password."""
        scheme, _, rest = self.address.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def _connect(address: str, timeout_s: float) -> Any:
    redis = _redis()
    try:
        return redis.Redis.from_url(
            address,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Once: the server may have closed a connection that was not used for long.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 1),
            protocol=2,
        )
    except ValueError as error:
        raise ValueError(
            f"{address!r} is no address of a Redis server ({error}): give redis://host:port"
        ) from error


def _redis() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        raise ImportError(
            'a cache on a server needs Redis\' client: pip install "relaxlab[data]", or give '
            'cache="disk"'
        ) from error
    return redis

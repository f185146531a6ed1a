"""A data set whose examples are computed once: the first epoch stores them, later ones read them.

example i  <- decode(store[fingerprint, i])       if that is whole
              data set[i], which is then stored   otherwise
"""

import hashlib
import operator
from collections.abc import Sequence, Sized
from typing import Any, cast

from torch.utils.data import Dataset, IterableDataset

from bagua_algos.data import fingerprint as fingerprints
from bagua_algos.data.named_store import opened
from bagua_algos.data.store import Guarded, Store
from bagua_algos.data.values import MISSING, decode, encode
from bagua_algos.settings import check_flag


class CachedDataset(Dataset[Any]):
    """A data set with the same examples, read from a cache that all workers of a host share, or of
    all hosts.

    Only what gives the same example every time may be cached: random augmentation comes behind it.
    The fingerprint is taken when this is made: do not change the data set, or its transform,
    afterwards.
    A worker reads and writes the examples of a batch at once. Where the store cannot be reached or
    is full, examples are computed, and a warning says so once in each process.

    Args:
        dataset: with a length, and examples of tensors, arrays, numbers, strings, bytes, and lists,
            tuples and dicts of these (`bagua_algos.data.values`).
        cache: "disk", "redis://host:port", or a store such as `DiskStore(capacity_bytes=...)`.
        fingerprint: stands for data and transform, where `bagua_algos.data.fingerprint` cannot
            know them or takes too long: another text whenever one of them changes.
        allow_pickle: keeps examples of any type by pickle. Reading one runs whatever code its
            writer has put there: only for stores that nobody else can write to.

    Raises:
        ValueError: a data set without indices or fingerprint, or no such cache; at an example, a
            type that needs pickle.
        ImportError: the store's library is not installed.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        cache: str | Store = "disk",
        *,
        fingerprint: str | None = None,
        allow_pickle: bool = False,
    ) -> None:
        check_flag("allow_pickle", allow_pickle)
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be cached, since its examples have no index "
                "and it has no length: cache the data set that it reads from"
            )
        self.dataset = dataset
        self.store = Guarded(opened(cache))
        self._name = (
            fingerprints.fingerprint(dataset)
            if fingerprint is None
            else hashlib.blake2b(fingerprint.encode(), digest_size=16).digest()
        )
        self._allow_pickle = allow_pickle
        self.num_computed = 0
        """How many examples it has computed, in this process."""

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def __getitem__(self, index: int | str) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | str]) -> list[Any]:
        """The examples of a batch, as a `DataLoader` asks for them."""
        keys = [self._key(index) for index in indices]
        entries = self.store.read(self._name, keys)
        examples = [self._decoded(key, entry) for key, entry in zip(keys, entries, strict=True)]
        missing = [place for place, example in enumerate(examples) if example is MISSING]
        if missing:
            computed = self._computed([indices[place] for place in missing])
            self.store.write(
                self._name,
                {
                    keys[place]: self._encoded(keys[place], indices[place], example)
                    for place, example in zip(missing, computed, strict=True)
                },
            )
            for place, example in zip(missing, computed, strict=True):
                examples[place] = example
        return examples

    def _computed(self, indices: list[int | str]) -> list[Any]:
        self.num_computed += len(indices)
        at_once = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in indices] if at_once is None else at_once(indices)

    def _key(self, index: int | str) -> bytes:
        """Every number and string is one of its own: -1 need not be the data set's last one."""
        if isinstance(index, str):
            return b"s" + hashlib.blake2b(index.encode(), digest_size=16).digest()
        number = operator.index(index)  # raises TypeError, as lists do
        return b"i" + number.to_bytes(8, "big", signed=True)

    def _encoded(self, key: bytes, index: int | str, example: Any) -> bytes:
        try:
            return encode(self._name + key, example, allow_pickle=self._allow_pickle)
        except ValueError as error:
            raise ValueError(f"example {index} cannot be cached: {error}") from error

    def _decoded(self, key: bytes, entry: bytes | None) -> Any:
        if entry is None:
            return MISSING
        return decode(self._name + key, entry, allow_pickle=self._allow_pickle)

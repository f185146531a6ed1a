"""Counts the bytes that tensors take at a time."""

import weakref
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations of this thread make within, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes."""
        self.most = 0
        """At a time, bytes."""
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what is asked for, and look at what came of it."""
        given = {_address(x) for x in tree_leaves((args, kwargs)) if _has_storage(x)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if _has_storage(x) and _address(x) not in given | self._known:
                self._note(x.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = storage.data_ptr(), storage.nbytes()
        if not num_bytes:
            return
        self._known.add(address)
        self.now += num_bytes
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, address, num_bytes)

    def _forget(self, address: int, num_bytes: int) -> None:
        self._known.discard(address)
        self.now -= num_bytes


def _has_storage(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.layout is torch.strided


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()

"""What each example costs: given as a column, or measured once by a function, in parallel.

All workers must balance by equal costs, or they would take different orders, and lose examples
without a word. So workers that can talk measure a share each and exchange it.
"""

import hashlib
from collections.abc import Callable, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.data.fingerprint import fingerprint
from bagua_algos.data.named_store import opened
from bagua_algos.data.store import Guarded, Store
from bagua_algos.data.values import decode, encode

Complexity = Callable[[Any], float] | Sequence[float] | NDArray | Tensor
"""A number for each example, or the function of an example that gives it."""

_KEY = b"complexity"


def measure_complexity(
    dataset: Dataset[Any],
    complexity: Callable[[Any], float],
    *,
    num_processes: int = 0,
    cache: str | Store | None = None,
    communicator: ProcessGroupCommunicator | None = None,
) -> NDArray[np.float64]:
    """The complexity of every example, `[n]`; each example is read once.

    Args:
        dataset: with a length.
        complexity: of one example: a finite number, at least 0.
        num_processes: that measure on this worker, as a `DataLoader`'s; 0: this one does.
        cache: where results are kept for later runs, under the fingerprint of data set and
            function: "disk", "redis://host:port" or a store. None: nowhere.
        communicator: of workers that measure a share each; a collective call. None: this one
            measures all.

    Returns:
        the complexities, float64 `[n]`, the same on all workers of `communicator`.

    Raises:
        ValueError: a complexity that is negative or not finite, or a data set that has no
            fingerprint.
    """
    n = len(cast(Sized, dataset))
    store = None if cache is None else Guarded(opened(cache))
    name = b"" if store is None else fingerprint((dataset, complexity))
    known = None if store is None else _read(store, name, n)
    if _agree(known is not None, n, communicator):
        return checked(known, n, communicator)
    shares = 1 if communicator is None else communicator.world_size
    own = range(0 if communicator is None else communicator.ranks[0], n, shares)
    costs_s = _measured(dataset, complexity, own, num_processes)
    costs = costs_s if communicator is None else _gathered(costs_s, n, communicator)
    if store is not None:
        store.write(name, {_KEY: encode(name + _KEY, costs)})
    return checked(costs, n, communicator)


def column(
    complexity: Complexity, dataset: Any, communicator: ProcessGroupCommunicator | None
) -> NDArray:
    """The costs `[n]` that `complexity` says, measured where it is a function.

    Raises:
        ValueError: not one number at least 0 for each example, or other numbers elsewhere.
    """
    if callable(complexity):
        return measure_complexity(dataset, complexity, communicator=communicator)
    return checked(complexity, len(dataset), communicator)


def checked(
    costs: Any, n: int, communicator: ProcessGroupCommunicator | None
) -> NDArray[np.float64]:
    """`costs` as float64 `[n]`, the same on all workers. Raises `ValueError` otherwise."""
    costs = costs.detach().cpu().double().numpy() if isinstance(costs, Tensor) else costs
    costs = np.array(costs, dtype=np.float64)
    if communicator is not None:  # first, so that no worker waits for one that raised
        own = torch.frombuffer(bytearray(digest(costs)), dtype=torch.uint8)
        digests = communicator.all_gather(own[None].to(communicator.device)).cpu()[0]
        if not (digests == own).all():
            raise ValueError(
                "workers have different complexities, by which they would take different orders: "
                "give all of them the same data set and the same numbers"
            )
    if costs.shape != (n,):
        raise ValueError(
            f"complexity has the shape {costs.shape}, and the data set {n} examples: "
            "give one number for each"
        )
    bad = np.flatnonzero(~np.isfinite(costs) | (costs < 0))
    if bad.size:
        raise ValueError(
            f"the complexity of example {bad[0]} is {costs[bad[0]]}: "
            "give finite numbers, at least 0"
        )
    return costs


def digest(costs: NDArray[np.float64]) -> bytes:
    """16 bytes that stand for all costs."""
    return hashlib.blake2b(costs.tobytes(), digest_size=16).digest()


class _Costs(Dataset[float]):
    """The complexities of a data set's examples as a data set, for a `DataLoader`."""

    def __init__(self, dataset: Dataset[Any], complexity: Callable[[Any], float]) -> None:
        self._dataset, self._complexity = dataset, complexity

    def __getitem__(self, index: int) -> float:
        return float(self._complexity(self._dataset[index]))


def _measured(
    dataset: Dataset[Any], complexity: Callable[[Any], float], own: range, num_processes: int
) -> NDArray[np.float64]:
    loader = DataLoader(
        _Costs(dataset, complexity),
        batch_size=64,
        sampler=own,
        num_workers=num_processes,
        collate_fn=list,
        generator=torch.Generator(),  # else it draws from torch's own, which a cache does not
    )
    return np.array([cost for batch in loader for cost in batch], np.float64)


def _gathered(
    costs_s: NDArray, n: int, communicator: ProcessGroupCommunicator
) -> NDArray[np.float64]:
    """Every worker's share `[s]` as all costs `[n]`: worker r has every N-th from its r-th on."""
    num_places = -(-n // communicator.world_size)
    padded = np.pad(costs_s, (0, num_places - len(costs_s)))
    own = torch.from_numpy(padded)[None].to(communicator.device)
    return communicator.all_gather(own).cpu().numpy()[0].T.ravel()[:n]


def _agree(is_known: bool, n: int, communicator: ProcessGroupCommunicator | None) -> bool:
    """Whether all workers know them. Raises `ValueError` where they have not all n examples."""
    if communicator is None:
        return is_known
    own = torch.tensor([[int(is_known), n]], device=communicator.device)
    known_w, n_w = communicator.all_gather(own)[0].T
    if not (n_w == n).all():
        raise ValueError(
            f"the workers' data sets have {n_w.tolist()} examples: give all of them the same one"
        )
    return bool(known_w.all())


def _read(store: Guarded, name: bytes, n: int) -> NDArray | None:
    [entry] = store.read(name, [_KEY])
    value = None if entry is None else decode(name + _KEY, entry)
    return value if isinstance(value, np.ndarray) and value.shape == (n,) else None

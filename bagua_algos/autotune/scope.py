"""What may be tuned without another value, and why not the rest."""

from dataclasses import dataclass, replace

import torch

from bagua_algos.autotune.order import Order
from bagua_algos.autotune.search import NUM_LAST_WINDOWS
from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.algorithm import Algorithm

MOST_STEPS = 200
NUM_MEASURED = 8
"""Steps of a window, or one round of the algorithm where that is longer."""
NUM_SETTLING = 2
"""Steps before them: new connections are made when they are first used."""
FEWEST_WINDOWS = 3 + NUM_LAST_WINDOWS


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What may be tuned without another value, and why not the rest. Without lanes: nothing."""

    tunes_lanes: bool
    tunes_transport: bool
    tunes_buckets: bool
    left_out: tuple[str, ...]

    def by(self, order: Order) -> "Scope":
        """The same for sums in this order."""
        if order.is_fixed or order.trial is None:
            return self
        given_ms, fixed_ms = 1e3 * order.trial.given_s, 1e3 * order.trial.best_fixed_s
        why = (
            f"the pattern of all-reduces is faster as it is, {given_ms:.3g} ms against "
            f"{fixed_ms:.3g} by sums in a fixed order: it stays, and so do buckets and streams, "
            "on which its sums depend"
        )
        return replace(self, tunes_transport=False, tunes_buckets=False, left_out=(why,))


def scope(algorithm: Algorithm, workers: Communicator, dtypes: set[torch.dtype]) -> Scope:
    """Of an algorithm on `workers`, for parameters of `dtypes`."""
    name = type(algorithm).__name__
    num_windows = MOST_STEPS // (NUM_SETTLING + max(NUM_MEASURED, algorithm.steps_per_round))
    nothing = None
    if workers.world_size == 1:
        nothing = "a worker alone has nobody to talk to: nothing is tuned"
    elif algorithm.depends_on_timing or algorithm.uses_background:
        nothing = f"{name}'s values depend on when averages arrive: nothing is tuned"
    elif num_windows < FEWEST_WINDOWS:
        nothing = (
            f"{name} repeats its work after {algorithm.steps_per_round} steps, too many to try "
            f"anything in {MOST_STEPS}: nothing is tuned"
        )
    elif dtypes and not is_gloos(workers) and workers.world_size > 2:
        nothing = "NCCL adds up in an order that depends on buckets: nothing is tuned"
    if nothing is not None:
        return Scope(
            tunes_lanes=False, tunes_transport=False, tunes_buckets=False, left_out=(nothing,)
        )
    fixed = None
    if algorithm.depends_on_buckets:
        fixed = f"what {name} computes depends on buckets: they stay as they are"
    elif any(dtype.itemsize < 4 for dtype in dtypes):
        fixed = "torch rounds 16-bit numbers by their place in a tensor: buckets stay as they are"
    left_out = () if fixed is None else (fixed,)
    return Scope(
        tunes_lanes=True, tunes_transport=True, tunes_buckets=fixed is None, left_out=left_out
    )


def is_gloos(workers: Communicator) -> bool:
    """Whether they talk by gloo, and not by NCCL."""
    return getattr(workers, "device", torch.device("cpu")).type == "cpu"

"""What a training comes to, for one worker."""

from dataclasses import dataclass

from experiments.training.evaluation import Evaluation


class DivergedError(RuntimeError):
    """The loss is NaN or infinite: the run is over, and a miss."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one worker's training came to, over `steps` steps; evaluations take no time and no
    bytes. `validation` is the last on the way, `test` that of the end. `bytes_sent` is None where
    nothing counts them.
    """

    steps: int
    time_s: float
    bytes_sent: int | None
    exposed_communication_s: float
    validation: Evaluation
    test: Evaluation

"""What a training comes to, for one worker."""

from dataclasses import dataclass
from typing import Any

from bagua_algos.autotune.tuner import Tuning
from bagua_algos.communication.patterns import PatternTrial
from bagua_algos.communication.streams import StreamTrial
from experiments.training.evaluation import Evaluation


class DivergedError(RuntimeError):
    """The loss is NaN or infinite: the run is over, and a miss."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one worker's training came to, over `steps` steps; evaluations take no time and no
    bytes. `validation` is the last on the way, `test` that of the end. `bytes_sent` is None where
    nothing counts them. `data_wait_s` is what training has waited for examples,
    None for simulated workers. `streams` is how many connections it had to each other worker,
    `pieces` whether these took pieces of large messages,
    `halving_doubling_bytes` up to which size all-reduces had that pattern, and the trials how these
    were decided, if they were measured; `tuning` is what autotuning has come to. `stacking` is how
    simulated workers were computed.
    """

    steps: int
    time_s: float
    bytes_sent: int | None
    exposed_communication_s: float
    data_wait_s: float | None = None
    validation: Evaluation
    test: Evaluation
    streams: int = 1
    stream_trial: StreamTrial | None = None
    pieces: bool = False
    halving_doubling_bytes: int = 0
    pattern_trial: PatternTrial | None = None
    tuning: Tuning | None = None
    stacking: dict[str, Any] | None = None

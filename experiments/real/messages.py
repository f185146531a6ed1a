"""What the processes of a run say to one another."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from host.errors import UserError
from host.memory import ADVICE, is_lack_of_memory
from netsim.links.tcp import TcpSettings
from netsim.proof.proof import LinkReport

if TYPE_CHECKING:  # the processes of a network import no torch
    from experiments.training.result import Result

PROBE, TRAIN, RELEASE = "probe", "train", "release"
"""What the hub says to who holds a link, any number of times; what the launcher says to workers;
what it says to the hub once they have entered.
"""


@dataclass(frozen=True)
class TrainingGoesOn:
    """Worker 0 is about to take steps, at `at_s` on the training clock; the launcher tells the hub,
    which sets the network's time to that.
    """

    at_s: float


@dataclass(frozen=True)
class Probed:
    """What a worker's link turned out to be, None for a single worker, and its TCP; or why the
    probe broke off.
    """

    link: LinkReport | None
    tcp: TcpSettings
    broken: str = ""


@dataclass(frozen=True)
class Joined:
    """The worker is behind its link."""


@dataclass(frozen=True)
class Alive:
    """The worker trains, and has had nothing else to say for a while."""


@dataclass(frozen=True)
class Finished:
    """The worker is done."""

    result: Result


@dataclass(frozen=True)
class Diverged:
    """The worker's loss is not finite."""

    reason: str


@dataclass(frozen=True)
class Stopped:
    """The worker cannot go on, for a reason that lies outside of the program."""

    error: UserError


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on. `is_consequence`: only because of what became of another worker.

    `unreachable` are the ranks whose network does not answer this worker's.
    """

    reason: str
    is_consequence: bool = True
    details: str = ""
    unreachable: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exited:
    """Word about a worker: its exit code, minus the signal that killed it."""

    rank: int
    code: int


def failed_by(error: Exception, rank: int) -> Failed:
    """What worker `rank` says of an error that it is in the midst of, and that nobody expected."""
    if is_lack_of_memory(error):
        return Failed(f"worker {rank} has failed, {ADVICE}", is_consequence=False)
    first = next(iter(str(error).strip().splitlines()), "")
    reason = f"worker {rank}: {type(error).__name__}: {first}"
    return Failed(reason, is_consequence=False, details=traceback.format_exc())

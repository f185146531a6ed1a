"""Hears the processes of a run, and says which of them is to blame when it cannot go on."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from experiments.real.failures import RunFailedError
from experiments.real.messages import Alive, Exited, Failed
from host.memory import ADVICE, num_oom_kills

GRACE_S = 3.0
"""How long a first sign of failure waits for others: the cause is often not the first seen."""


class Supervisor:
    """What is heard of the workers, or of the processes that stand for them.

    Args:
        workers: their channels, by rank.
        others: channels of other processes; each with the sentence that its end means.
        take: is given what is heard and the rank, None of another process; failures are not,
            nor is `Alive`.
        end_of: what the end of a worker's channel means; None: another process tells of it.
    """

    def __init__(
        self,
        workers: Sequence[Connection],
        others: Mapping[Connection, str],
        take: Callable[[int | None, object], None],
        end_of: Callable[[int], Failed] | None = None,
    ) -> None:
        self._workers = workers
        self._others = others
        self._take = take
        self._end_of = end_of
        self._open: dict[Connection, int | None] = {c: r for r, c in enumerate(workers)}
        self._open |= dict.fromkeys(others)
        self._answers: Mapping[int, object] = {}
        self._failures: list[Failed] = []
        self._heard_of: set[int] = set()
        self._num_oom_kills = num_oom_kills()

    def say(self, word: str) -> None:
        """Tell all workers."""
        for channel in self._workers:
            with suppress(BrokenPipeError):  # its death is reported
                channel.send(word)

    def await_all(self, answers: Mapping[int, object], limit_s: float, deed: str) -> None:
        """Hear all until `answers`, which `take` fills, has every rank.

        Raises:
            RunFailedError: a process has failed, or nothing is heard for `limit_s`.
        """
        self._answers = answers
        self._heard_of.clear()
        while len(answers) < len(self._workers):
            ready = self._receive(limit_s)
            if self._failures:
                deadline = time.monotonic() + GRACE_S
                while self._open and len(self._heard_of) < len(self._workers):
                    if not self._receive(max(0.0, deadline - time.monotonic())):
                        break
                raise self._diagnosis()
            if not ready:
                silent = [str(rank) for rank in range(len(self._workers)) if rank not in answers]
                raise RunFailedError(
                    f"nothing was heard of any worker for {limit_s:g} s; "
                    f"not yet {deed}: worker {', '.join(silent)}"
                )

    def forget(self, channel: Connection) -> None:
        """Hear no more of it."""
        self._open.pop(channel, None)

    def drain(self, limit_s: float) -> None:
        """Hear all until every process is gone or the time is over."""
        deadline = time.monotonic() + limit_s
        while self._open and (left_s := deadline - time.monotonic()) > 0:
            self._receive(left_s)

    def hear_of(self, rank: int) -> None:
        """This worker is not silent, although it has no answer."""
        self._heard_of.add(rank)

    def _receive(self, limit_s: float) -> bool:
        """Whether anything was heard. What a worker has said comes before what another process
        tells of its end: to a launcher that had to wait for a processor all of it may come at once.
        """
        ready = wait(list(self._open), limit_s)
        for channel in self._workers:
            while channel in self._open and channel.poll():
                self._hear_one(channel)
        for channel in self._others:  # one word each, which was there before the workers were heard
            if channel in ready and channel in self._open:
                self._hear_one(channel)
        return bool(ready)

    def _hear_one(self, channel: Connection) -> None:
        try:
            self._hear(self._open[channel], channel.recv())
        except (EOFError, ConnectionError):
            self._end(channel)

    def _end(self, channel: Connection) -> None:
        rank = self._open.pop(channel)
        if len(self._answers) == len(self._workers):
            return
        if rank is None:
            self._fail(Failed(self._others[channel], is_consequence=False))
        elif self._end_of is not None:
            self._fail(self._end_of(rank), rank)

    def _hear(self, rank: int | None, message: object) -> None:
        match message:
            case Alive():
                pass  # that something is heard is all it is for
            case Failed():
                self._fail(message, rank)
            case Exited(exited, code) if code < 0:
                reason = f"worker {exited} was killed by {signal.Signals(-code).name}"
                if code == -signal.SIGKILL and num_oom_kills() > self._num_oom_kills:
                    reason += f", {ADVICE}"
                self._fail(Failed(reason, is_consequence=False), exited)
            case Exited(exited, code):
                if exited not in self._answers:
                    self._fail(Failed(f"worker {exited} exited with code {code}"), exited)
            case _:
                self._take(rank, message)

    def _fail(self, failure: Failed, rank: int | None = None) -> None:
        self._failures.append(failure)
        if rank is not None:
            self._heard_of.add(rank)

    def _diagnosis(self) -> RunFailedError:
        """The first failure that is no other's consequence; else who has kept silent."""
        first = self._failures[0]
        cause = next((f for f in self._failures if not f.is_consequence), None)
        if cause is not None:
            return RunFailedError(cause.reason, cause.details)
        silent = self._silent()
        if silent:
            return RunFailedError(f"worker {', '.join(map(str, silent))} is silent; {first.reason}")
        return RunFailedError(first.reason, first.details)

    def _silent(self) -> list[int]:
        """Who has said nothing; if all have, whom more than half of the others cannot reach."""
        ranks = range(len(self._workers))
        unheard = [rank for rank in ranks if rank not in self._heard_of]
        if unheard:
            return unheard if self._heard_of else []
        votes = Counter(rank for failure in self._failures for rank in failure.unreachable)
        return [rank for rank in ranks if votes[rank] > (len(self._workers) - 1) / 2]

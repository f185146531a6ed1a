"""The network of a run's workers, made and proven by processes that import no torch: while the
launcher imports what trains, the proof waits for packets.

    launcher  --fork-->  hub (owns the bridge)  --fork-->  keeper 0, keeper 1, ...

A keeper holds the namespace of a worker until that has entered, and stands for it in the proof.
"""

import os
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from experiments.real.failures import RunFailedError
from experiments.real.messages import (
    PROBE,
    RELEASE,
    Failed,
    Probed,
    TrainingGoesOn,
    failed_by,
)
from experiments.real.supervisor import GRACE_S, Supervisor
from host.forks.channel import ParentChannel
from host.processes import allow_open_files, end_of, fork
from netsim.conditions.condition import NetworkCondition
from netsim.errors import BrokenProbeError, NamespaceError, ProbeError
from netsim.links import tcp
from netsim.links.namespaces import Hub, address
from netsim.links.tcp import TcpSettings
from netsim.links.unshare import join_network_namespace
from netsim.proof import proof
from netsim.proof.proof import LinkReport
from netsim.proof.reachability import unreachable

NUM_PROBES = 8
"""The first ones run beside imports of the launcher."""

START_LIMIT_S = 60
PROBE_ROUND_TRIPS = 30
"""That a probe may take besides."""

FILES, FILES_A_WORKER = 32, 8
"""That real workers and their launcher open."""

DIED = "the hub of the workers' network died"


@dataclass(frozen=True)
class ShapedNetwork:
    """The network of a run: what shapes it, its links (none for one worker), the workers' TCP."""

    backend: str
    links: list[LinkReport]
    tcp: TcpSettings

    def __str__(self) -> str:
        """Such as "network by tbf, 4 links: asked 100 Mbit/s, RTT 0 ms; achieved 99.7 to 99.9
        Mbit/s, RTT 0.1 to 0.2 ms".
        """
        asked = self.links[0]
        limit = asked.asked_rate_mbit
        rate = "no limit" if limit is None else f"{limit:g} Mbit/s"
        rates = measured_rates(self.links)
        achieved = f"{min(rates):.1f} to {max(rates):.1f} Mbit/s" if rates else "no rate measured"
        rtts = [link.achieved_rtt_ms for link in self.links]
        return (
            f"network by {self.backend}, {len(self.links)} links: "
            f"asked {rate}, RTT {asked.asked_rtt_ms:g} ms; "
            f"achieved {achieved}, "
            f"RTT {min(rtts):.1f} to {max(rtts):.1f} ms"
        )


def measured_rates(links: Sequence[LinkReport]) -> list[float]:
    """Those achieved, in Mbit/s, of the links that were not too busy for a measurement."""
    return [link.achieved_rate_mbit for link in links if link.achieved_rate_mbit is not None]


class WorkersNetwork:
    """A network in the making, as its launcher sees it. It ends with the launcher, or by `end`.

    Args:
        condition: of the workers' links.
        num_workers: of the run.

    Raises:
        UserError: so many workers open more files than this process may.
    """

    def __init__(self, condition: NetworkCondition, num_workers: int) -> None:
        allow_open_files(FILES + FILES_A_WORKER * num_workers)
        self.num_workers = num_workers
        self._condition = condition
        self.channel, theirs = Pipe()
        """The hub's word once workers train: that it has failed, or by its end that it died."""
        self._keepers: list[int] | None = None

        def run_hub() -> int:
            # Ctrl-C reaches all processes of a terminal; the launcher answers, and ends the rest.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self.channel.close()
            return _run_hub(condition, num_workers, ParentChannel(theirs))

        self._hub_pid: int | None = fork(run_hub)
        theirs.close()

    def await_made(self) -> None:
        """Wait until the links are there.

        Raises:
            ValueError, NamespaceError: as `Hub`, `Hub.fork_workers` and `proof.round_trip_s`.
        """
        if self._keepers is not None:
            return
        try:
            if not self.channel.poll(START_LIMIT_S):
                raise NamespaceError(
                    f"The workers' network was not there within {START_LIMIT_S} s: is the host "
                    "overloaded?"
                )
            answer = self.channel.recv()
        except (EOFError, ConnectionError):
            raise NamespaceError(DIED) from None
        if isinstance(answer, Exception):
            raise answer
        self._keepers = answer

    def await_proof(self) -> ShapedNetwork:
        """Wait until the links are proven to be what was asked for.

        Raises:
            RunFailedError: they are not, or cannot be made.
        """
        try:
            self.await_made()
        except (NamespaceError, ValueError) as error:
            raise RunFailedError(str(error)) from error
        limit_s = NUM_PROBES * (_probe_limit_s(self._condition, self.num_workers) + GRACE_S)
        try:
            if not self.channel.poll(limit_s):
                raise RunFailedError(f"the workers' links were not proven within {limit_s:g} s")
            answer = self.channel.recv()
        except (EOFError, ConnectionError):
            raise RunFailedError(DIED) from None
        if isinstance(answer, Failed):
            raise RunFailedError(answer.reason)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def enter(self, rank: int) -> None:
        """Move the calling process, of one thread, behind the link of worker `rank`.

        Raises:
            NamespaceError: who holds it is gone.
        """
        assert self._keepers is not None, "await_made comes first"
        join_network_namespace(self._keepers[rank])

    def release(self) -> None:
        """All workers have entered: their links last as long as they do."""
        self._say(RELEASE)

    def set_clock(self, word: TrainingGoesOn) -> None:
        """Begin the links' time, or set it, to that of the training clock."""
        self._say(word)

    def _say(self, word: object) -> None:
        with suppress(BrokenPipeError):  # its death is heard
            self.channel.send(word)

    def end(self) -> None:
        """Take it down: the hub is gone when this returns, and the kernel ends its keepers."""
        if self._hub_pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._hub_pid, signal.SIGKILL)  # what it has forked dies with it
        os.waitpid(self._hub_pid, 0)
        self._hub_pid = None
        self.channel.close()


def _run_hub(condition: NetworkCondition, num_workers: int, launcher: ParentChannel) -> int:
    """The hub's process: make the network, have it proven, and hold it."""
    channels = [Pipe() for _ in range(num_workers)]

    def keep(rank: int) -> int:
        for other, (ours, theirs) in enumerate(channels):
            ours.close()
            if other != rank:
                theirs.close()
        return _keep(condition, rank, num_workers, ParentChannel(channels[rank][1]))

    try:
        limit_s = _probe_limit_s(condition, num_workers)
        hub = Hub(condition, num_workers)
        ranks = hub.fork_workers(keep)
    except (NamespaceError, ValueError) as error:
        launcher.send(error)
        return 1
    keepers = {rank: pid for pid, rank in ranks.items()}
    for _, theirs in channels:
        theirs.close()
    launcher.send([keepers[rank] for rank in range(num_workers)])
    try:
        ours = [ours for ours, _ in channels]
        launcher.send(_proven(condition, hub.backend, ours, keepers, limit_s))
        assert launcher.recv() == RELEASE, "there is one word"
        for channel in ours:
            channel.close()  # which ends the keepers
        for pid in ranks:
            os.waitpid(pid, 0)
        while True:
            word = launcher.recv()  # without a limit: the launcher's end is this process's
            assert isinstance(word, TrainingGoesOn), "there is no other word"
            hub.start_clock(word.at_s)
    except NamespaceError as error:  # a switch in user space has died
        launcher.send(Failed(str(error), is_consequence=False))
    return 1


def _proven(
    condition: NetworkCondition,
    backend: str,
    channels: list[Connection],
    keepers: dict[int, int],
    limit_s: float,
) -> ShapedNetwork | RunFailedError:
    """Have the keepers probe their links until these are what was asked for.

    A busy host can disturb a probe, or have a connection of it break off, and nothing makes a
    link look better than it is: so a network is refused only after `NUM_PROBES`. Each may be
    silent for `limit_s`.
    """
    probed: dict[int, Probed] = {}

    def take(rank: int | None, message: object) -> None:
        assert rank is not None and isinstance(message, Probed), "keepers say nothing else"
        probed[rank] = message
        if message.broken:
            supervisor.hear_of(rank)

    def ended(rank: int) -> Failed:
        reason = f"the process that held the link of worker {rank} {end_of(keepers[rank])}"
        return Failed(reason, is_consequence=False)

    supervisor = Supervisor(channels, {}, take, ended)
    refusal = ""
    for _ in range(NUM_PROBES):
        probed.clear()
        supervisor.say(PROBE)
        try:
            supervisor.await_all(probed, limit_s, "probed its link")
            refusal = next((p.broken for p in probed.values() if p.broken), "")
            if refusal:
                continue
            links = [p.link for _, p in sorted(probed.items()) if p.link is not None]
            proof.check(condition, links)
            return ShapedNetwork(backend, links, probed[0].tcp)
        except ProbeError as error:
            refusal = str(error)
        except RunFailedError as error:
            return error
    return RunFailedError(refusal)


def _probe_limit_s(condition: NetworkCondition, num_workers: int) -> float:
    """How long a probe may be silent. Raises as `proof.round_trip_s`."""
    return START_LIMIT_S + PROBE_ROUND_TRIPS * proof.round_trip_s(condition, num_workers)


def _keep(condition: NetworkCondition, rank: int, num_workers: int, hub: ParentChannel) -> int:
    """A keeper's process, which the end of `hub` ends: probe the link as often as it says."""
    addresses = [address(r) for r in range(num_workers)]
    probe = partial(proof.probe, condition, rank, addresses)
    while True:
        assert hub.recv() == PROBE, "there is one word"
        try:
            hub.send(Probed(probe(), tcp.read()))
        except BrokenProbeError as error:
            hub.send(Probed(None, tcp.read(), str(error)))
        except ProbeError as error:
            silent = unreachable(rank, addresses)
            details = traceback.format_exc()
            hub.send(Failed(str(error), details=details, unreachable=tuple(silent)))
        except Exception as error:
            hub.send(failed_by(error, rank))

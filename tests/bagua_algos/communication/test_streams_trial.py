"""How many streams pay, by times that are given."""

import os
from types import SimpleNamespace

import pytest

from bagua_algos.communication import streams as module
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.streams import (
    IDLE_S,
    SENT_BYTES,
    Hop,
    StreamTrial,
    connected_when_used,
    of_all,
    try_streams,
    with_streams,
)


class Turns:
    """A network on which a message takes as long as the test says, by one stream and by eight; of
    two workers, of whom the other always has time for another turn.
    """

    def __init__(self, monkeypatch, one_s: float, several_s: float) -> None:
        self.now_s, self.one_s, self.several_s = 100.0, one_s, several_s
        self.connected, self.is_closed = [], False
        self.stripes = SimpleNamespace(several=False)
        self.duplicate_of = {}
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(
            module, "of_all", lambda workers, mine: [*([s, s] for s in mine[:2]), [mine[2], -9.0]]
        )
        monkeypatch.setattr(module, "Hop", self.hop)

    def with_transport(self, **options: int) -> "Turns":
        self.duplicate_of = options
        return self

    def duplicate(self) -> SimpleNamespace:
        return SimpleNamespace(stripes=SimpleNamespace(several=True), close=self.close)

    def close(self) -> None:
        self.is_closed = True

    def hop(self, workers: object, stripes: SimpleNamespace) -> SimpleNamespace:
        def seconds_after_rest() -> float:
            taken_s = self.several_s if stripes.several else self.one_s
            self.now_s += taken_s
            return taken_s

        return SimpleNamespace(
            seconds_after_rest=seconds_after_rest,
            greet=lambda stream: self.connected.append((stripes.several, stream)),
        )


@pytest.mark.parametrize(
    ("one_s", "several_s", "budget_s", "num_turns", "chosen"),
    [
        (1.0, 0.5, 9.0, 1, 8),  # several pay at once
        (0.25, 0.25, 1.5, 3, 1),  # another turn of half a second would just have fitted
        (0.25, 0.25, 1.6, 3, 1),
        (0.25, 0.25, 2.1, 4, 1),
        (8.0, 8.0, 1.0, 1, 1),  # however slow the network
        (0.001, 0.001, 9.0, 9, 1),
    ],
)
def test_turns_follow_while_they_fit(monkeypatch, one_s, several_s, budget_s, num_turns, chosen):
    network = Turns(monkeypatch, one_s, several_s)
    trial = try_streams(network, budget_s)  # pyright: ignore[reportArgumentType]
    assert (trial.num_turns, trial.streams) == (num_turns, chosen)
    assert trial.seconds == {1: one_s, 8: several_s}
    assert network.duplicate_of == {"streams": 8} and network.is_closed
    assert sorted(network.connected) == [(True, stream) for stream in range(8)]


@pytest.mark.parametrize(
    ("world_size", "right", "left", "neighbours"), [(3, 1, 2, [2, 1]), (2, 1, 1, [1])]
)
def test_a_hop_is_to_the_right_and_from_the_left_after_a_rest(
    monkeypatch, world_size, right, left, neighbours
):
    now_s, sent, slept_s = 100.0, [], []

    class Network:
        def __init__(self, groups, smallest_part_bytes=None):
            self.groups, self.smallest = groups, smallest_part_bytes

        def send_and_receive(self, outgoing, incoming):
            nonlocal now_s
            now_s += 0.25
            sizes = {peer: x.numel() for peer, x in outgoing.items()}
            sent.append((self.groups, self.smallest, sizes, list(incoming)))

    monkeypatch.setattr(module, "Stripes", Network)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(module.time, "sleep", slept_s.append)
    workers = SimpleNamespace(ranks=(0,), world_size=world_size)
    hop = Hop(workers, Network(["a", "b"]))  # pyright: ignore[reportArgumentType]
    assert hop.seconds_after_rest() == 0.25
    now_s += 0.1
    assert hop.seconds_after_rest() == 0.25
    assert slept_s == [0.0, pytest.approx(IDLE_S - 0.1)]
    greeting = (["a"], None, dict.fromkeys(neighbours, 1), neighbours)
    message = (["a", "b"], 1, {right: SENT_BYTES}, [left])
    assert sent == [greeting, message] * 2


def test_numbers_of_all_workers_come_by_number():
    assert of_all(LoopbackCommunicator(3), [1.5, 2.5]) == [[1.5] * 3, [2.5] * 3]  # pyright: ignore


@pytest.mark.parametrize("before", [None, "0"])
def test_connections_are_made_at_first_use_within_alone(monkeypatch, before):
    name = "TORCH_GLOO_LAZY_INIT"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    if before is not None:
        monkeypatch.setenv(name, before)
    with pytest.raises(ArithmeticError), connected_when_used():
        assert os.environ[name] == "1"
        raise ArithmeticError
    assert os.environ.get(name) == before


def test_how_many_streams_is_measured_where_there_is_a_choice(monkeypatch, tmp_path):
    trial = StreamTrial(streams=8, num_bytes=1, seconds={}, num_turns=1)
    monkeypatch.setattr(module, "try_streams", lambda workers: trial)
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as workers:
        for asked, world_size, expected in ((3, 1, (3, None)), ("auto", 1, (1, None))):
            chosen, found = with_streams(workers, asked)
            assert (chosen.streams, found) == expected, (asked, world_size)
        workers.world_size = 2
        chosen, found = with_streams(workers, "auto")
        assert (chosen.streams, found) == (8, trial)
    with pytest.raises(ValueError, match="streams=3 are of real workers"):
        with_streams(StackedCommunicator(2), 3)

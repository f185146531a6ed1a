"""How the pattern of all-reduces is chosen, by times that are given."""

import pytest
import torch

from bagua_algos.communication import patterns as module
from bagua_algos.communication.patterns import (
    EVERY_SIZE,
    TRIED_BYTES,
    PatternTrial,
    all_reduce_s,
    try_patterns,
    with_pattern,
)
from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.recorder import Recorder
from tests.torch_defaults import OTHER_DTYPES, default_dtype

RING, OTHER = 0, EVERY_SIZE


@pytest.fixture
def alone(tmp_path):
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as communicator:
        yield communicator


@pytest.mark.parametrize(
    ("pattern", "limit", "fixed_order"),
    [("ring", 0, False), ("halving_doubling", EVERY_SIZE, False), ("direct", 0, True)],
)
def test_a_pattern_is_a_limit_and_an_order(alone, pattern, limit, fixed_order):
    before = alone.with_transport(halving_doubling_bytes=9, fixed_order=not fixed_order)
    chosen, trial = with_pattern(before, pattern)
    assert (chosen.halving_doubling_bytes, chosen.fixed_order, trial) == (limit, fixed_order, None)


@pytest.mark.parametrize(("num_workers", "limit"), [(1, 0), (2, 0), (3, 4096)])
def test_what_pays_is_measured_from_three_workers_on(monkeypatch, alone, num_workers, limit):
    trial = PatternTrial(halving_doubling_bytes=4096, ring_seconds={}, halving_doubling_seconds={})
    monkeypatch.setattr(module, "try_patterns", lambda workers: trial)
    before = alone.with_transport(halving_doubling_bytes=9, fixed_order=True)
    before.world_size = num_workers
    chosen, found = with_pattern(before, "auto")
    assert (chosen.halving_doubling_bytes, chosen.fixed_order) == (limit, False)
    assert found is (trial if limit else None)


@pytest.mark.parametrize("pattern", ["ring", "auto"])
def test_stacked_workers_have_no_pattern_but_the_ring(pattern):
    workers = StackedCommunicator(3)
    assert with_pattern(workers, pattern) == (workers, None)
    for other in ("halving_doubling", "direct"):
        with pytest.raises(ValueError, match=f"pattern={other} is of real workers.*Stacked"):
            with_pattern(workers, other)


def test_what_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match=r"one of ring, .*, auto, got 'tree'"):
        with_pattern(StackedCommunicator(3), "tree")  # pyright: ignore[reportArgumentType]


class Workers:
    """Two, whose all-reduces take what a table says; the second one takes three times as long.

    The first all-reduce of every kind, which connects, takes far longer.
    """

    def __init__(self, ratios: list[float], limit: int = -1, log: list | None = None) -> None:
        self.ratios, self.limit, self.log = ratios, limit, [] if log is None else log
        self._used: set[int] = set()

    def with_transport(self, *, halving_doubling_bytes: int, fixed_order: bool) -> "Workers":
        assert not fixed_order, "both patterns have orders of their own"
        return Workers(self.ratios, halving_doubling_bytes, self.log)

    def duplicate(self) -> "Workers":
        return self

    def close(self) -> None:
        self.log.append(("closed", self.limit))

    def seconds(self, num_bytes: int) -> float:
        self.log.append((self.limit, num_bytes))
        if num_bytes not in self._used:
            self._used.add(num_bytes)
            return 100.0
        ratio = self.ratios[TRIED_BYTES.index(num_bytes)]
        return num_bytes * (1.0 if self.limit == RING else ratio)


@pytest.fixture
def trial_of(monkeypatch):
    monkeypatch.setattr(module, "all_reduce_s", lambda way, num_bytes: way.seconds(num_bytes))
    monkeypatch.setattr(module, "of_all", lambda workers, mine: [[s, 3 * s] for s in mine])
    return lambda *ratios: try_patterns(Workers([*ratios]))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("ratios", "num_paying", "num_tried"),
    [
        ((0.5, 0.8, 0.81, 0.1), 2, 3),  # what comes after the first that does not pay is not tried
        ((0.9, 0.1, 0.1, 0.1), 0, 1),
        ((0.5, 0.5, 0.5, 0.5), 4, 4),
    ],
)
def test_sizes_go_by_halves_up_to_the_first_that_does_not_pay(
    trial_of, ratios, num_paying, num_tried
):
    trial = trial_of(*ratios)
    assert trial.halving_doubling_bytes == (TRIED_BYTES[num_paying - 1] if num_paying else 0)
    tried = TRIED_BYTES[:num_tried]
    # Medians over both workers: as often 1 as 3 times the table's.
    assert trial.ring_seconds == {size: 2 * size for size in tried}
    theirs = {size: 2 * size * ratio for size, ratio in zip(tried, ratios, strict=False)}
    assert trial.halving_doubling_seconds == pytest.approx(theirs)


def test_either_pattern_has_its_turn_and_connections_are_given_back(trial_of):
    workers = Workers([1.0] * 4)
    try_patterns(workers)  # pyright: ignore[reportArgumentType]
    size = TRIED_BYTES[0]
    assert workers.log == [*4 * [(RING, size), (OTHER, size)], ("closed", RING), ("closed", OTHER)]


def test_sizes_grow_from_a_few_kilobytes_to_megabytes():
    assert TRIED_BYTES == (4_096, 32_768, 262_144, 2_097_152)


@pytest.mark.parametrize("dtype", [torch.float32, *OTHER_DTYPES], ids=str)
def test_an_all_reduce_of_so_many_bytes_is_timed(monkeypatch, dtype):
    seconds = iter([3.0, 3.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(seconds))
    recorder = Recorder()
    with default_dtype(dtype):
        assert all_reduce_s(StackedCommunicator(1, recorder, clock=lambda: 0.0), 4_096) == 0.5
    assert recorder.messages == [("all_reduce_mean", 4_096)]

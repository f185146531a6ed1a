"""The search over settings whose times a formula gives."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bagua_algos.autotune.search import WORTH_IT, Settings, Space, search

START = Settings(bucket_bytes=1 << 22, lanes=2, streams=1, halving_doubling_bytes=0)
SPACE = Space(
    tunes_buckets=True,
    streams=(4, 8, 16),
    halving_doubling_bytes=(1 << 62,),
    lanes=(1,),
    pieces=(True,),
)
BY_TWO = replace(SPACE, streams=(2,))


def found(
    seconds: Callable[[Settings], float],
    space: Space = SPACE,
    num_windows: int = 20,
    start: Settings = START,
) -> tuple[Settings, list[Settings]]:
    """What stays, and all that was tried."""
    tried, proposals = [], search(start, space, num_windows)
    settings = next(proposals)
    while True:
        tried.append(settings)
        try:
            settings = proposals.send(seconds(settings))
        except StopIteration as ended:
            return ended.value, tried


def _far(settings: Settings, best: int) -> float:
    ratio = max(settings.bucket_bytes / best, best / settings.bucket_bytes)
    return 0.2 * (ratio - 1) ** 0.5


@pytest.mark.parametrize("best", [1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 25])
def test_it_finds_the_best_size(best):
    settings, tried = found(lambda s: 1.0 + _far(s, best))
    assert settings.bucket_bytes == best and len(tried) <= 20
    assert len({s.bucket_bytes for s in tried}) < 12


def test_it_takes_whatever_else_is_faster():
    gains = {
        "by_arrival": True,
        "streams": 8,
        "halving_doubling_bytes": 1 << 62,
        "lanes": 1,
        "pieces": True,
    }

    def seconds(settings: Settings) -> float:
        num_gained = sum(getattr(settings, name) == value for name, value in gains.items())
        return 0.8 ** (num_gained + 0.5 * (settings.streams == 4))

    settings, tried = found(seconds)
    assert settings == replace(START, **gains)
    assert len(tried) <= 20


def test_it_keeps_what_it_began_with_where_nothing_is_faster():
    settings, tried = found(lambda _: 1.0)
    assert settings == START and tried[0] == START
    assert len(set(tried)) == len(tried), "what is not better is not measured twice"


def sizes(tried: list[Settings]) -> list[int]:
    """Those of buckets, up to the last turns, which begin with what came first."""
    start, *others = tried
    num_searched = others.index(start) if start in others else len(others)
    return [s.bucket_bytes for s in (start, *others[:num_searched]) if not s.by_arrival]


@pytest.mark.parametrize(
    ("bucket_bytes", "seconds", "expected"),
    [
        (256, {}, [256, 64, 1024, 128, 512]),
        (256, {64: 0.5, 16: 0.4}, [256, 64, 16, 4, 8, 32]),
        (256, {1024: 0.5}, [256, 64, 1024, 4096, 512, 2048]),
        (256, {128: 0.5}, [256, 64, 1024, 128]),
        (6, {}, [6, 2, 24, 3, 12]),  # whole bytes
        (4, {1: 0.5}, [4, 1, 2]),  # at least one
    ],
)
def test_sizes_are_quartered_then_quadrupled_then_halved_and_doubled(
    bucket_bytes, seconds, expected
):
    """Each of the first two as long as that is faster; nothing twice."""
    _, tried = found(
        lambda s: seconds.get(s.bucket_bytes, 1.0),
        Space(tunes_buckets=True),
        start=replace(START, bucket_bytes=bucket_bytes),
    )
    assert sizes(tried) == expected


@pytest.mark.parametrize("seconds", [WORTH_IT, WORTH_IT - 1e-9])
def test_a_change_must_take_less_than_chance_may_leave(seconds):
    settings, _ = found(lambda s: seconds if s.streams == 4 else 1.0)
    assert settings == (START if seconds == WORTH_IT else replace(START, streams=4))


@pytest.mark.parametrize("in_truth_s", [1.0, 1.1])
def test_a_gain_that_was_chance_is_found_out_in_the_end(in_truth_s):
    """Everything was slow while the first window lasted."""
    calls: list[Settings] = []

    def seconds(settings: Settings) -> float:
        calls.append(settings)
        return 3.0 if len(calls) == 1 else 1.0 if settings == START else in_truth_s

    assert found(seconds)[0] == START
    assert calls[-4] == START and calls[-2] == START and START not in (calls[-3], calls[-1])


def test_what_is_clearly_faster_needs_one_last_turn():
    _, clear = found(lambda s: 1 / s.streams)
    assert clear[-2:] == [START, replace(clear[-1], streams=16)] and clear[-4] != START
    _, narrow = found(lambda s: 1.0 - 0.1 * (s.streams == 4))
    assert narrow[-4:] == 2 * [START, replace(START, streams=4)]


@pytest.mark.parametrize(("start_s", "num_turns"), [(1.49, 2), (1.5, 1)])
def test_half_as_fast_again_is_clear(start_s, num_turns):
    _, tried = found(lambda s: 1.0 if s.streams == 4 else start_s)
    assert tried.count(START) == 1 + num_turns


def test_how_messages_travel_is_tried_before_the_size_of_buckets():
    """Where a network is slow, the search for a size is made of fast steps."""
    _, tried = found(lambda s: 1 / s.streams + 1e-3 * s.bucket_bytes / (1 << 22))
    others = [s for s in tried if s.bucket_bytes != START.bucket_bytes]
    assert others and {s.streams for s in others} == {16}


@pytest.mark.parametrize("num_windows", range(6, 40))
def test_it_keeps_to_its_budget(num_windows):
    calls: list[Settings] = []

    def faster_and_faster(settings: Settings) -> float:
        calls.append(settings)
        return 0.9 ** len(calls)

    _, tried = found(faster_and_faster, num_windows=num_windows)
    assert len(tried) == min(num_windows, 24), "all of it, until there is nothing new"


def test_settings_that_come_to_the_same_are_tried_once():
    def kind(settings: Settings) -> int:
        return max(settings.bucket_bytes, 1 << 20)

    _, tried = found(lambda s: s.bucket_bytes, replace(SPACE, kind=kind))
    assert [s.bucket_bytes for s in tried[:3]] == [1 << 22, 1 << 20, 1 << 21]
    assert set(tried[3:]) == {START, replace(START, bucket_bytes=1 << 20)}, "the last turn"


@pytest.mark.parametrize(
    ("by_four", "by_eight", "stays", "tries_sixteen"),
    [
        (0.5, 0.49, 16, True),  # nearly as fast: a packet was lost, or more do not help
        (0.5, 0.5 / WORTH_IT, 16, True),
        (0.5, 0.52, 4, False),
        (1.0, 1.0, 16, True),
        (1.04, 0.1, 1, False),
    ],
)
def test_more_streams_are_tried_until_they_are_slower(by_four, by_eight, stays, tries_sixteen):
    times = {1: 1.0, 4: by_four, 8: by_eight, 16: 0.4}
    settings, tried = found(lambda s: times[s.streams])
    assert settings.streams == stays
    assert (16 in {s.streams for s in tried}) == tries_sixteen


def test_pieces_are_tried_by_several_streams_alone():
    by_two, _ = found(lambda s: 1.0 - 0.1 * (s.streams == 2) - 0.5 * s.pieces, BY_TWO)
    assert by_two.streams == 2 and by_two.pieces
    by_one, tried_by_one = found(lambda s: 1.0 + (s.streams > 1) - 0.5 * s.pieces)
    assert by_one.streams == 1 and not any(s.pieces for s in tried_by_one)
    by_several, _ = found(lambda s: 1.0 - 0.1 * (s.streams == 4) - 0.5 * s.pieces)
    assert by_several.streams == 4 and by_several.pieces


def test_where_buckets_matter_they_stay():
    space = replace(SPACE, tunes_buckets=False)
    settings, tried = found(lambda s: 1 / s.streams, space)
    assert settings.streams == 16
    assert {s.bucket_bytes for s in tried} == {START.bucket_bytes}

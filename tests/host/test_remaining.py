"""What is left is told in time, and right, on a clock of the test's own."""

import heapq

import numpy as np
import pytest

from host.remaining import Work, duration

FACTOR = 1.5


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class Naive:
    """As long for each piece to come as for those that are done."""

    def __init__(self, expected_s, clock, num_pieces):
        self.clock, self.left = clock, num_pieces
        self.begun_s, self.count = clock(), num_pieces

    def begin(self, *_):
        pass

    def done(self, size):
        self.left -= 1

    @property
    def left_s(self):
        done = self.count - self.left
        return (self.clock() - self.begun_s) * self.left / done


def worked(work, clock, parts):
    """Do it all; what was told to be left at each piece's end, and at which time."""
    told = []
    for name, sizes, seconds, at_once in parts:
        work.begin(name, sizes, at_once)
        waiting, running = list(zip(sizes, seconds, strict=True)), []
        while waiting or running:
            while waiting and len(running) < at_once:
                size, own_s = waiting.pop(0)
                heapq.heappush(running, (clock.now_s + own_s, size))
            clock.now_s, size = heapq.heappop(running)
            work.done(size)
            told.append((clock.now_s, work.left_s))
    return told


def drawn(chance):
    """Three parts of unequal pieces, expected too short or too long alike but for an eighth."""
    host = chance.lognormal(0, 1)
    parts, expected_s = [], {}
    for name, mean_s, at_once in (("first", 2, 1), ("second", 20, 2), ("third", 5, 1)):
        sizes = chance.lognormal(0, 0.6, chance.integers(20, 60))
        seconds = mean_s * sizes * chance.lognormal(0, 0.3, len(sizes))
        parts.append((name, sizes.tolist(), seconds.tolist(), at_once))
        expected_s[name] = seconds.sum() / at_once / host * chance.lognormal(0, 0.12)
    return parts, expected_s


def errors(make, seeds=range(200)):
    """By which factor the first word after a tenth of the work was off, for each seed."""
    found = []
    for seed in seeds:
        parts, expected_s = drawn(np.random.default_rng([26, seed]))
        clock = Clock()
        work = make(expected_s, clock, sum(len(sizes) for _, sizes, _, _ in parts))
        begun_s = clock()
        told = worked(work, clock, parts)
        end_s = told[-1][0]
        at_s, left_s = next(one for one in told if one[0] - begun_s >= 0.1 * (end_s - begun_s))
        found.append(max(left_s / (end_s - at_s), (end_s - at_s) / left_s))
    return np.array(found)


def test_a_tenth_of_unequal_pieces_tells_what_is_left_within_a_factor():
    found = errors(lambda expected_s, clock, _: Work(expected_s, clock))
    assert (found <= FACTOR).mean() > 0.97
    naive = errors(Naive)
    assert (naive <= FACTOR).mean() < 0.5


def test_without_an_earlier_part_its_own_pieces_tell_all():
    clock = Clock()
    work = Work({"trials": 1.0}, clock)
    work.begin("trials", [1.0] * 10)
    clock.now_s += 60
    work.done()
    assert work.left_s == pytest.approx(540)
    assert str(work) == "10 % done, about 9 min left"


def test_a_part_that_was_left_out_is_not_waited_for():
    clock = Clock()
    work = Work({"read": 1.0, "measured": 100.0, "trained": 10.0}, clock)
    work.begin("read")
    clock.now_s += 2
    work.done()
    assert work.left_s == pytest.approx(220)
    work.expect("trained", 20.0)
    work.begin("trained", [1.0, 3.0])
    assert work.left_s == pytest.approx(40)
    clock.now_s += 10
    work.done(1.0)
    assert work.left_s == pytest.approx(30)
    clock.now_s += 30
    work.done(3.0)
    assert work.left_s == 0
    assert str(work) == "100 % done, about 0 s left"


def test_what_is_at_work_beside_others_is_half_done():
    clock = Clock()
    work = Work({"trained": 1.0}, clock)
    work.begin("trained", [1.0] * 8, at_once=3)
    clock.now_s += 30
    work.done()
    assert work.left_s == pytest.approx(30 * 6 / 2)  # one piece and two halves are done


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (119.4, "119 s"), (120, "2 min"), (5400, "90 min"), (7800, "2 h 10 min")],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


def test_a_line_is_said_with_what_is_left(capsys):
    clock = Clock()
    work = Work({"all": 1.0}, clock)
    work.begin("all", [1.0, 1.0])
    clock.now_s += 50
    work.done(1.0, "drawn one")
    assert capsys.readouterr().err == "drawn one; 50 % done, about 50 s left\n"


def test_a_first_short_piece_of_long_work_says_nothing_of_the_rest(capsys):
    clock = Clock()
    work = Work({"all": 1.0}, clock)
    work.begin("all", [1.0] * 100)
    for seconds in (0.01, 9.98, 0.01):
        clock.now_s += seconds
        work.done(1.0, "copied")
    assert capsys.readouterr().err.splitlines() == [
        "copied",
        "copied",
        "copied; 3 % done, about 5 min left",
    ]


def test_without_lines_it_is_said_now_and_then(capsys):
    clock = Clock()
    work = Work({"all": 1.0}, clock)
    work.begin("all", [1.0] * 100)
    for _ in range(50):
        clock.now_s += 1
        work.done()
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "10",
        "20",
        "30",
        "40",
        "50",
    ]


def test_short_work_is_told_of_after_a_tenth(capsys):
    clock = Clock()
    work = Work({"all": 1.0}, clock)
    work.begin("all", [1.0] * 100)
    for _ in range(100):
        clock.now_s += 0.12
        work.done()
    first, *others = capsys.readouterr().err.splitlines()
    assert first.split()[0] in ("10", "11") and first.endswith("about 11 s left")
    assert len(others) == 1  # ten seconds later


def test_work_of_a_second_is_not_told_of(capsys):
    clock = Clock()
    work = Work({"all": 1.0}, clock)
    work.begin("all", [1.0] * 10)
    for _ in range(10):
        clock.now_s += 0.09
        work.done()
    assert capsys.readouterr().err == ""


def test_what_was_measured_here_takes_no_longer_for_a_slow_host():
    clock = Clock()
    work = Work({"rehearsed": 4.0, "trained": 50.0, "checked": 10.0}, clock)
    work.begin("rehearsed", [1.0] * 10)
    for _ in range(5):
        clock.now_s += 2
        work.expect("trained", 60.0, is_measured=True)
        work.done()
    assert work.left_s == pytest.approx(10 + 60 + 5 * 10)
    clock.now_s += 10
    work.begin("trained", [1.0] * 2)
    clock.now_s += 45
    work.done()
    assert work.left_s == pytest.approx(45 + 5 * 10, rel=0.05)


def test_what_is_under_way_counts_where_it_is_known(capsys):
    """Two pieces of an hour at a time: said before the first one is done."""
    clock = Clock()
    work = Work(clock=clock)
    work.begin("runs", [3.0, 1.0, 2.0], at_once=2)
    clock.now_s += 1200
    work.under_way(3.0 / 4 + 1.0 / 4)
    assert work.left_s == pytest.approx(1200 * (6 - 1) / 1)
    clock.now_s += 1200
    work.done(1.0, "one", under_way=2.0)
    assert work.left_s == pytest.approx(2400 * (6 - 3) / 3)
    said = ["17 % done, about 100 min left", "one; 50 % done, about 40 min left"]
    assert capsys.readouterr().err.splitlines() == said

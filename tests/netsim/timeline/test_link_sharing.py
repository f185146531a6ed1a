import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim.timeline.link_sharing import shared

SECONDS = st.floats(0.01, 10)


def one_link(free_s: list[float], lane: int, begin_s: float, busy_s: float) -> list[float]:
    free = np.array(free_s)[:, None]
    return shared(free, lane, np.array([begin_s]), np.array([busy_s]))[:, 0].tolist()


def through_s(work_s: list[float]) -> list[float]:
    """Step by step: all get on equally fast until the least is through."""
    at_s, ends_s = 0.0, dict.fromkeys(range(len(work_s)), 0.0)
    left = {i: w for i, w in enumerate(work_s) if w > 0}
    while left:
        least = min(left.values())
        at_s += least * len(left)
        left = {i: w - least for i, w in left.items()}
        ends_s |= {i: at_s for i, w in left.items() if w <= 0}
        left = {i: w for i, w in left.items() if w > 0}
    return list(ends_s.values())


@given(
    first_s=SECONDS,
    second_s=SECONDS,
    third_s=SECONDS,
    share=st.floats(0, 1),
    late_s=st.floats(0, 9),
)
def test_flows_share_as_step_by_step(first_s, second_s, third_s, share, late_s):
    free_s = one_link([0.0] * 3, 0, 0.0, first_s)
    begin_s = share * first_s  # the first has the link alone until then
    free_s = one_link(free_s, 1, begin_s, second_s)
    left_s = through_s([first_s - begin_s, second_s])
    assert free_s[:2] == pytest.approx([begin_s + t for t in left_s])
    free_s = one_link(free_s, 2, begin_s, third_s)
    left_s = through_s([first_s - begin_s, second_s, third_s])
    assert free_s == pytest.approx([begin_s + t for t in left_s])
    over_s = max(free_s) + late_s
    assert one_link(free_s, 0, over_s, 1) == pytest.approx([over_s + 1, *free_s[1:]])


@given(work_s=st.lists(SECONDS, min_size=2, max_size=4), begins_s=st.lists(SECONDS, min_size=4))
def test_a_link_never_idles_while_there_is_work(work_s, begins_s):
    begins_s = sorted(begins_s)[: len(work_s)]
    free_s = [0.0] * 4
    busy_until_s = 0.0
    for lane, (work, begin_s) in enumerate(zip(work_s, begins_s, strict=True)):
        free_s = one_link(free_s, lane, begin_s, work)
        busy_until_s = max(busy_until_s, begin_s) + work
    assert max(free_s) == pytest.approx(busy_until_s)


def test_a_flow_that_is_on_one_of_two_links_shares_this_one():
    free_s = np.array([[0.0, 0.0], [0.0, 3.0]])
    after_s = shared(free_s, 0, np.array([0.0, 0.0]), np.array([1.0, 1.0]))
    assert after_s.tolist() == [[1.0, 2.0], [0.0, 4.0]]


def test_links_that_nothing_is_put_on_stay_as_they_are():
    free_s = np.array([[1.0, 5.0], [2.0, 3.0]])
    after_s = shared(free_s, 0, np.array([4.0, 4.0]), np.array([1.0, 0.0]))
    assert after_s[1].tolist() == [2.0, 3.0]
    assert after_s[0].tolist() == [5.0, 4.0]

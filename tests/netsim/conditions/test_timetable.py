import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netsim.conditions.timetable import Timetable, from_schedule, from_trace

HEADER = "time_s,rate_mbit,delay_ms\n"


def test_a_trace_begins_again_at_its_end(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("# made up\n" + HEADER + "0,10,1\n2,20,2\n5,99,99\n")
    trace = from_trace(str(path))
    rates = [trace.overrides(at_s)["rate_mbit"] for at_s in (0, 1.9, 2, 4.9, 5, 7, 11.9, 12)]
    assert rates == [10, 10, 20, 20, 10, 20, 10, 20]
    assert [trace.next_change_s(at_s) for at_s in (0, 2, 4.9, 5, 7)] == [2, 5, 5, 7, 10]


def test_every_change_is_met_when_going_from_one_to_the_next():
    trace = from_trace("cellular.csv")
    at_s, seen = 0.0, []
    while at_s < 240:
        seen.append(at_s)
        following = trace.next_change_s(at_s)
        assert following is not None
        at_s = following
    assert seen == list(range(240))


@given(
    times=st.lists(st.integers(1, 99_999), min_size=1, max_size=6, unique=True),
    unit=st.sampled_from([10, 100, 1000]),
)
@example(times=[3, 600], unit=10)  # 60 + 0.3 is less than 60.3
@example(times=[599], unit=10)
def test_every_step_of_a_trace_begins_when_it_is_said_to_and_not_before(times, unit):
    """The last time is the trace's end."""
    *starts_s, period_s = [time / unit for time in [0, *sorted(times)]]
    steps = tuple((at_s, {"delay_ms": index}) for index, at_s in enumerate(starts_s))
    trace = Timetable(steps=steps, period_s=period_s)
    now_s, num_steps = 0.0, len(steps)
    for index in range(1, 20 * num_steps):
        change_s = trace.next_change_s(now_s)
        assert change_s is not None and change_s > now_s
        period, step = divmod(index, num_steps)
        assert change_s == pytest.approx(period * period_s + starts_s[step])
        assert trace.overrides(change_s)["delay_ms"] == step
        before = trace.overrides(math.nextafter(change_s, 0))["delay_ms"]
        assert before == (index - 1) % num_steps
        now_s = change_s


def test_before_its_first_step_a_schedule_overrides_nothing():
    assert from_schedule([{"at_s": 3, "delay_ms": 1}]).overrides(2) == {}


def test_a_trace_may_change_every_millisecond(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{k / 1000},{k},1\n" for k in range(4)))
    assert from_trace(str(path)).period_s == 0.003


@pytest.mark.parametrize(
    "text",
    [
        "\N{BYTE ORDER MARK}" + HEADER + "0,1,2\n3,0,0\n",
        HEADER + "0,1,2\n\n3,0,0\n,,\n\n",
        HEADER.replace(",", ", ") + "0, 1, 2\n3, 0, 0\n",
        HEADER.replace("\n", "\r\n") + "# seconds\r\n0,1,2\r\n3,0,0\r\n",
    ],
)
def test_a_trace_may_be_as_a_spreadsheet_saves_it(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    trace = from_trace(str(path))
    assert (trace.steps, trace.period_s) == (((0, {"rate_mbit": 1, "delay_ms": 2}),), 3)


def test_a_trace_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(HEADER.encode() + b"0,1,\xff\n")
    with pytest.raises(ValueError, match=r"trace\.csv' is no text of UTF-8: save it as CSV"):
        from_trace(str(path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,r,d\n0,1,1\n1,1,1\n", "has to have the header time_s,rate_mbit,delay_ms"),
        (HEADER + "0,1,1\n", "two rows or more"),
        (HEADER + "0,1,1\n1,x,1\n", "not three numbers"),
        (HEADER + "0,1,1\n1,1\n", "not three numbers"),
        (HEADER + "1,1,1\n2,1,1\n", "begin at 0"),
        (HEADER + "0,1,1\n2,1,1\n2,1,1\n", "increase"),
        (HEADER + "0,1,1\n1e-12,2,1\n2e-12,0,0\n", "changes too often, 2 times in 2e-12 s: leave"),
        (HEADER + "0,1,1\n5,2,1\ninf,0,0\n", "time_s of the trace .* finite number .* not inf"),
        (HEADER + "0,1,1\nnan,2,1\n9,0,0\n", "time_s of the trace .* finite number .* not nan"),
    ],
)
def test_refuses_what_is_no_trace(tmp_path, text, reason):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        from_trace(str(path))

import pytest

from netsim.conditions.timetable import from_schedule, from_trace

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


def test_before_its_first_step_a_schedule_overrides_nothing():
    assert from_schedule([{"at_s": 3, "delay_ms": 1}]).overrides(2) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,r,d\n0,1,1\n1,1,1\n", "has to have the header time_s,rate_mbit,delay_ms"),
        (HEADER + "0,1,1\n", "two rows or more"),
        (HEADER + "0,1,1\n1,x,1\n", "not three numbers"),
        (HEADER + "0,1,1\n1,1\n", "not three numbers"),
        (HEADER + "1,1,1\n2,1,1\n", "begin at 0"),
        (HEADER + "0,1,1\n2,1,1\n2,1,1\n", "increase"),
    ],
)
def test_refuses_what_is_no_trace(tmp_path, text, reason):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        from_trace(str(path))

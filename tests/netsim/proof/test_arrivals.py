import pytest

from netsim.errors import BrokenProbeError
from netsim.proof.arrivals import ByteSample, steady_rate_mbit


def samples_at(rates_mbit: list[float]) -> list[ByteSample]:
    """Fifty samples in each second, which has a rate of its own."""
    samples, num_bytes = [ByteSample(5, 0)], 0.0
    for second, rate_mbit in enumerate(rates_mbit):
        for tick in range(1, 51):
            num_bytes += rate_mbit * 125_000 / 50
            samples.append(ByteSample(5 + second + tick / 50, num_bytes))
    return samples


def test_the_rate_is_that_of_the_slots_which_agree():
    assert steady_rate_mbit(samples_at([100] * 15), 1) == pytest.approx(100)
    disturbed = [100, 30, 60, 100, 190, 5, 100, 85, 100, 40, 130, 100, 20, 70, 100]
    assert steady_rate_mbit(samples_at(disturbed), 1) == pytest.approx(100, rel=0.02)


def test_a_process_that_looks_seldom_sees_the_same_rate():
    samples = samples_at([100] * 15)
    assert steady_rate_mbit(samples[::40] + samples[-1:], 1) == pytest.approx(100)


def test_looks_at_which_nothing_new_has_come_do_not_count():
    samples = samples_at([100] * 15)
    idle = [ByteSample(sample.at_s - 20, 0) for sample in samples]
    assert steady_rate_mbit([*idle, *samples], 1) == pytest.approx(100)


@pytest.mark.parametrize("num_looks", [0, 1, 2, 4])
def test_too_few_arrivals_are_no_rate(num_looks):
    with pytest.raises(BrokenProbeError, match="What came from worker 3 is too little"):
        steady_rate_mbit(samples_at([100])[:num_looks], 3)

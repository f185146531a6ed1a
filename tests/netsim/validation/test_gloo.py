import json
import subprocess
import sys

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.validation.gloo import OPERATIONS
from netsim.validation.ring import seconds_in_theory

MEASURE = """
import json
from netsim.validation import gloo
from netsim.conditions.condition import NetworkCondition
cases = [[[(name, 200_000)]] for name in gloo.OPERATIONS]
cases += [[[("all_reduce_mean", 200_000)], [("all_reduce_mean", 200_000)]]]
condition = NetworkCondition(rate_mbit=20, backend="switch")
print(json.dumps(gloo.seconds(condition, 2, cases, num_repeats=2, limit_s=100)))
"""


@pytest.mark.root
@pytest.mark.slow
def test_no_operation_is_faster_than_its_links(scenario):
    command = [sys.executable, "-c", MEASURE]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stderr
    backend, times_s = json.loads(finished.stdout)
    assert backend == "switch"
    assert [len(repeats) for repeats in times_s] == [2] * (len(OPERATIONS) + 1)
    path = NetworkCondition(rate_mbit=20).path(0, 1)
    theory_s = seconds_in_theory(path, 2, 200_000)  # of two workers' halves, twice
    half_s = theory_s / 2
    least_s = dict(zip(OPERATIONS, (theory_s, half_s, theory_s, theory_s, theory_s), strict=True))
    for name, repeats in zip(OPERATIONS, times_s, strict=False):
        assert min(repeats) > 0.9 * least_s[name], name
    assert min(times_s[-1]) > 0.9 * 2 * theory_s  # two lanes share the links

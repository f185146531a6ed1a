"""What buffers are ample for."""

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.links.tcp import bandwidth_delay_bytes

BETWEEN = {"rate_mbit": 500, "delay_ms": 25}
OF_BETWEEN = 500e6 / 8 * 0.05
FAST = {"rate_mbit": 1000, "delay_ms": 50}


@pytest.mark.parametrize(
    ("size", "num_workers", "named"),
    [
        (5, 10, ()),
        (8, 16, ()),
        (9, 10, ()),
        (64, 65, ()),
        (9, 27, range(9)),  # of which paths to the others have less
    ],
)
def test_the_links_between_nodes_count_however_many_workers_a_node_has(size, num_workers, named):
    slow = {rank: {"rate_mbit": 1} for rank in named}
    condition = NetworkCondition(nodes={"size": size, "between": BETWEEN}, workers=slow)
    assert bandwidth_delay_bytes(condition, num_workers) == OF_BETWEEN


def test_a_node_that_no_worker_is_on_does_not_count():
    condition = NetworkCondition(nodes={"size": 9, "between": BETWEEN})
    assert bandwidth_delay_bytes(condition, 9) == 0


def test_of_a_node_behind_named_workers_two_count():
    """Workers 0 to 7 are slow, and worker 8 is the last one of the first node."""
    slow = {rank: {"rate_mbit": 1} for rank in range(8)}
    nodes = {"size": 9, "between": {"rate_mbit": 1}}
    condition = NetworkCondition(**FAST, nodes=nodes, workers=slow)
    assert bandwidth_delay_bytes(condition, 18) == 1000e6 / 8 * 0.1

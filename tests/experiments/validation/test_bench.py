import threading
from pathlib import Path

import pytest

from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.validation.bench import CASES
from tests.bagua_algos.cases import make_model, make_optimizer, take_step


class Lanes:
    """Hears of every operation, on the thread of its lane."""

    def __init__(self) -> None:
        self.threads = set()

    def on_operation(self, operation) -> None:
        self.threads.add(threading.get_ident())


@pytest.mark.parametrize(("case", "num_lanes"), [("all-reduce", 2), ("all-reduce, one lane", 1)])
def test_a_case_has_as_many_lanes_as_it_says(case, num_lanes):
    plan = make_plan(compose_config(CASES[case]), Path("unused"))
    lanes = Lanes()
    communicator = LoopbackCommunicator(4, lanes)
    model = SingleModel(make_model())
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, plan.algorithm, communicator, bucket_bytes=4096)
    lanes.threads.clear()
    take_step(model, optimizer, 0, communicator.ranks)
    engine.close()
    assert len(lanes.threads) == num_lanes

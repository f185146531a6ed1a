"""What an algorithm says of its steps, beside what one of four workers sends in them."""

from functools import cache

import pytest
import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from bagua_algos import Algorithm, QAdam
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.outer_optimizer import Nesterov, SlowMo
from host.conf import PACKAGED
from tests.bagua_algos.cases import make_model, on_worker_axis, take_step
from tests.bagua_algos.recorder import Recorder
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_STEPS = 23
FLAT = [
    name for name, make in ROWS.items() if not make().needs_nodes and not make().depends_on_timing
]
every_flat_row = pytest.mark.parametrize("name", FLAT)


@cache
def steps_of(name: str) -> tuple[Algorithm, list[list[tuple[str, int]]]]:
    """The names and bytes of each step's operations."""
    return steps_between(name, 0, NUM_STEPS)


def steps_between(name: str, begin: int, end: int) -> tuple[Algorithm, list[list[tuple[str, int]]]]:
    """The same of some steps, before which none is taken."""
    communicator = LoopbackCommunicator(4, Recorder())
    model = on_worker_axis(make_model(), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    engine = Engine(model, optimizer, ROWS[name](), communicator)
    engine.skip_to(begin)
    steps = []
    for step in range(begin, end):
        communicator.observer = recorder = Recorder()
        take_step(model, optimizer, step, communicator.ranks)
        steps.append(sorted(recorder.messages))
    engine.close()
    return engine.algorithm, steps


def repeats(steps: list, after: int) -> bool:
    return all(a == b for a, b in zip(steps, steps[after:], strict=False))


@every_flat_row
def test_its_work_repeats_after_a_round_and_not_earlier(name):
    algorithm, steps = steps_of(name)
    later = steps[algorithm.num_early_steps :]
    assert len(later) >= 2 * algorithm.steps_per_round
    assert repeats(later, algorithm.steps_per_round)
    assert not any(repeats(later, after) for after in range(1, algorithm.steps_per_round))


@every_flat_row
def test_early_steps_are_those_that_do_other_work(name):
    algorithm, steps = steps_of(name)
    last = algorithm.num_early_steps - 1
    if name == "post_local_sgd":
        last -= 1  # its last gradients come a round before the first weights, which are as long
    assert last < 0 or not repeats(steps[last:], algorithm.steps_per_round)


@every_flat_row
@pytest.mark.parametrize("num_skipped", [3, 4])
def test_steps_that_are_skipped_count(name, num_skipped):
    """As predictions skip them: what follows is sent as if they had been taken."""
    _, steps = steps_of(name)
    _, later = steps_between(name, num_skipped, num_skipped + 3)
    assert later == steps[num_skipped : num_skipped + 3]


@every_flat_row
def test_it_all_reduces_later_or_says_that_it_does_not(name):
    algorithm, steps = steps_of(name)
    later = steps[algorithm.num_early_steps :]
    assert len(later) >= algorithm.steps_per_round
    operations = {operation for step in later for operation, _ in step}
    assert algorithm.all_reduces == ("all_reduce_mean" in operations)


@every_flat_row
def test_workers_agree_after_each_step_or_it_does_not_say_so(name):
    """In their weights, and in the gradients of which they are made."""
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    engine = Engine(model, optimizer, ROWS[name](), communicator)
    agreed, gradients_agreed = [], []
    for step in range(NUM_STEPS):
        take_step(model, optimizer, step, communicator.ranks)
        agreed.append(all(torch.equal(row, p[0]) for p in model.parameters() for row in p))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        gradients_agreed.append(all(torch.equal(row, g[0]) for g in gradients for row in g))
    engine.close()
    assert engine.algorithm.workers_agree == all(agreed)
    says_so = engine.algorithm.gradients_agree or isinstance(engine.algorithm, QAdam)
    assert says_so == all(gradients_agreed)  # QAdam keeps each worker's moments apart


@pytest.mark.parametrize("name", [name for name, make in ROWS.items() if make().needs_nodes])
def test_without_nodes_what_needs_them_is_refused_before_any_step(name):
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    with pytest.raises(ValueError, match=r"^hierarchical=True needs to know which workers share a"):
        Engine(model, optimizer, ROWS[name](), communicator)


def written(name: str) -> DictConfig:
    """The algorithm's part of its YAML."""
    config = OmegaConf.load(PACKAGED / "algo" / f"{name}.yaml")
    return config.get("algo", config)


@pytest.mark.parametrize(
    "name",
    [
        *("allreduce", "async", "choco_sgd", "decentralized", "local_sgd", "power_sgd", "qadam"),
        *("low_precision_decentralized", "sgp", "top_k"),
    ],
)
def test_a_field_has_one_default_in_library_and_command_line(name):
    config = written(name)
    algorithm = get_class(config.pop("_target_"))()
    derived = [key for key in config if OmegaConf.is_interpolation(config, key)]
    chosen = [key for key in config if OmegaConf.is_missing(config, key)]
    plain = [key for key in config if key not in ("defaults", *chosen, *derived)]
    assert plain and {key: config[key] for key in plain} == {
        key: getattr(algorithm, str(key)) for key in plain
    }


@pytest.mark.parametrize(("name", "outer"), [("slowmo", SlowMo()), ("diloco", Nesterov())])
def test_an_outer_optimizer_has_its_papers_numbers_in_both(name, outer):
    config = written(name).outer
    assert (config.lr, config.momentum) == (outer.lr, outer.momentum)

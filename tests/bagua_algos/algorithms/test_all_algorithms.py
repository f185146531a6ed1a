"""What holds for every algorithm. A new one needs a row in `rows.py`, and a YAML."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
import torch
from torch import nn

import bagua_algos.algorithms
from bagua_algos import Algorithm, LocalSGD
from bagua_algos.autotune.make_engine import make_engine
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.rows import ModelOfRows
from bagua_algos.worker_axis.stacking import Stacking
from host.conf import PACKAGED
from tests.bagua_algos.cases import (
    CASES,
    NODES,
    NUM_STEPS,
    WORLD_SIZE,
    batch,
    losses,
    make_model,
    on_worker_axis,
)
from tests.bagua_algos.checkpoint import carry_over
from tests.bagua_algos.gloo import run_program
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

EXACT = 1e-5

# Codes differ where a sum that was added in another order lies at a rounding tie, or has another
# sign; momentum keeps the difference. Weights are about 0.3.
TIES = {
    **dict.fromkeys(("byte_grad", "byte_grad_with_error_feedback", "allreduce_fp8"), 5e-3),
    **dict.fromkeys(("qsgd", "qsgd_2_bits", "top_k", "top_k_warm_up_and_clipping", "dgc"), 5e-3),
    **dict.fromkeys(("low_precision_decentralized", "choco_sgd", "choco_sgd_complete"), 5e-3),
    **dict.fromkeys(("diloco_int8", "qadam", "qadam_hierarchical"), 5e-3),
    **dict.fromkeys(("byte_grad_hierarchical", "qsgd_hierarchical"), 5e-3),
    "low_precision_decentralized_hierarchical": 5e-3,
    "all_reduce_bf16": 1e-2,  # gloo adds up in another order, and rounds each time
    "all_reduce_fp16": 5e-3,
    "ef_signsgd_hierarchical": 2e-2,
    **dict.fromkeys(("ef_signsgd", "one_bit_adam", "one_bit_adam_preconditioned"), 2e-2),
}
# What a single worker has nobody to relax with.
PLAIN_ALONE = (
    *("all_reduce", "decentralized", "decentralized_random", "sgp", "sgp_overlapped"),
    *("local_sgd", "post_local_sgd", "async_model_average"),
    *("all_reduce_hierarchical", "decentralized_hierarchical"),
)
# What 3 real workers run, for numbers that do not divide; 4 of them run everything.
OF_THREE = (
    *("all_reduce", "all_reduce_hierarchical", "byte_grad", "byte_grad_hierarchical"),
    *("low_precision_decentralized", "decentralized_hierarchical", "sgp", "top_k", "power_sgd"),
)
# At first they warm up, or send little.
SLOW_TO_LEARN = (
    "one_bit_adam",
    "one_bit_adam_preconditioned",
    "qadam",
    "qadam_hierarchical",
    "dgc",
)


class Training:
    """A model in training by one row, on simulated workers."""

    def __init__(
        self,
        name: str,
        world_size: int = WORLD_SIZE,
        stacking: Stacking | None = None,
        dtype: torch.dtype = torch.float32,
        how: Callable[..., Engine] = Engine,
    ) -> None:
        self.communicator = StackedCommunicator(world_size, nodes=NODES[world_size])
        self.model = on_worker_axis(make_model().to(dtype), self.communicator)
        self.dtype = dtype
        self.computes_at_once = stacking is not None
        if stacking is not None:
            self.model.stacking = stacking
        self.optimizer = OPTIMIZERS.get(name, make_optimizer)(self.model)
        self.engine = how(
            self.model, self.optimizer, ROWS[name](), self.communicator, bucket_bytes=4096
        )

    def run(self, steps: range) -> list[float]:
        """The mean loss of each step."""
        history = []
        for step in steps:
            batches = [batch(step, rank) for rank in self.communicator.ranks]
            x_wb, y_wb = (torch.stack(part) for part in zip(*batches, strict=True))
            self.optimizer.zero_grad()
            loss = self.loss(x_wb.to(self.dtype), y_wb)
            loss.backward()
            self.optimizer.step()
            history.append(loss.item() / self.communicator.world_size)
        return history

    def loss(self, x_wb: torch.Tensor, y_wb: torch.Tensor) -> torch.Tensor:
        """The sum over the workers."""
        if not self.computes_at_once:
            return losses(self.model(x_wb), y_wb)

        def of_rows(model: ModelOfRows, rows: slice) -> torch.Tensor:
            return losses(model(x_wb[rows]), y_wb[rows]).view(1)

        return self.model(x_wb, of_rows).sum()

    def weights(self) -> torch.Tensor:
        """Of all workers `[w, n]`."""
        num_held = self.communicator.world_size
        return torch.cat([p.detach().reshape(num_held, -1) for p in self.model.parameters()], 1)


@cache
def trained(name: str, world_size: int = WORLD_SIZE) -> tuple[Algorithm, torch.Tensor]:
    """The algorithm, and the weights of all workers in the end."""
    training = Training(name, world_size)
    training.run(range(NUM_STEPS))
    return training.engine.algorithm, training.weights()


def is_allowed(name: str, world_size: int) -> bool:
    """Whether the algorithm of a row can train so many workers."""
    optimizer = OPTIMIZERS.get(name, make_optimizer)(make_model())
    try:
        ROWS[name]().check(world_size, optimizer)
    except ValueError:
        return False
    return True


def every_row(sizes: Sequence[int]) -> pytest.MarkDecorator:
    """A case for each algorithm and each of these sizes that it allows."""
    return pytest.mark.parametrize(
        ("name", "world_size"),
        [(name, size) for name in ROWS for size in sizes if is_allowed(name, size)],
    )


@pytest.mark.parametrize("name", [n for n in ROWS if not ROWS[n]().depends_on_timing])
def test_real_workers_train_as_simulated_ones(real, simulated, name):
    for key, expected in simulated[name].items():
        if key != "gradients":
            atol = TIES.get(name, EXACT)
            torch.testing.assert_close(real[name][key], expected, rtol=0, atol=atol)


class WithNothing(nn.Module):
    """Two parameters, each in a bucket of its own; one has no element."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x_b: torch.Tensor) -> torch.Tensor:
        return x_b @ self.weight + self.nothing.sum()


@pytest.mark.parametrize("name", ROWS)
def test_a_parameter_without_an_element_is_in_nobodys_way(name):
    communicator = StackedCommunicator(WORLD_SIZE, nodes=NODES[WORLD_SIZE])
    model = on_worker_axis(WithNothing(), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    engine = Engine(model, optimizer, ROWS[name](), communicator, bucket_bytes=1)
    assert [bucket.numel for bucket in engine.context.buckets] == [4, 0]
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        model(torch.ones(WORLD_SIZE, 2, 4)).sum().backward()
        optimizer.step()
    with engine.consensus():
        assert model.module.weight.lt(1).all()
    engine.close()


@pytest.mark.parametrize("name", [n for n in ROWS if not ROWS[n]().depends_on_timing])
def test_workers_side_by_side_train_as_those_of_one_vmap(name):
    """In float64, where what is rounded otherwise changes no code and no sign; but for the bias
    before the BatchNorm, whose gradient is nothing but what was rounded.
    """
    by_vmap = Training(name, dtype=torch.float64)
    by_vmap.run(range(NUM_STEPS))
    weights = dict(by_vmap.model.named_parameters())
    for way in ("parts", "shares"):
        try:
            stacking = Stacking(way=way, threads=2)
            side_by_side = Training(name, stacking=stacking, dtype=torch.float64)
            side_by_side.run(range(NUM_STEPS))
        finally:
            torch.set_num_threads(1)
        for parameter, ours in side_by_side.model.named_parameters():
            if parameter != "module.0.bias":
                atol = TIES.get(name, EXACT)
                torch.testing.assert_close(ours, weights[parameter], rtol=0, atol=atol)


@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n]().gradients_agree])
def test_one_step_of_the_optimizer_does_for_workers_that_agree(name):
    """It raises where one breaks its promise."""
    weights = []
    for agree in (True, False):
        training = Training(name, how=partial(make_engine, agree=agree))
        training.run(range(NUM_STEPS))
        weights.append(training.weights())
    torch.testing.assert_close(*weights, rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n]().gradients_agree])
def test_gradients_agree_where_the_algorithm_says_so(name):
    training, num_seen = Training(name), 0

    def look(*_: object) -> None:
        nonlocal num_seen
        num_seen += 1
        for bucket in training.engine.context.buckets:
            rows = bucket.gradients[:, : bucket.numel]
            assert torch.equal(rows, rows[:1].expand_as(rows))

    training.optimizer.register_step_pre_hook(look)
    training.run(range(NUM_STEPS))
    assert num_seen == NUM_STEPS


def test_three_real_workers_train_as_three_simulated_ones(tmp_path):
    workers = run_program("tests.bagua_algos.real_workers", tmp_path, 3, *OF_THREE)
    for name in OF_THREE:
        simulated = CASES[name](StackedCommunicator(3, nodes=NODES[3]))
        for key, expected in simulated.items():
            rows = torch.cat([worker[name][key] for worker in workers])
            if key != "gradients":
                torch.testing.assert_close(rows, expected, rtol=0, atol=TIES.get(name, EXACT))


@pytest.mark.parametrize("name", ROWS)
def test_the_consensus_of_real_workers_is_one_model_bit_for_bit(real, name):
    for key, rows in real[name].items():
        if key not in ("gradients", "predicted bytes"):
            assert torch.equal(rows, rows[:1].expand_as(rows)), key


@every_row(sizes=(2, 3, 4, 8))
def test_workers_agree_where_the_algorithm_says_so(name, world_size):
    algorithm, weights = trained(name, world_size)
    agree = torch.equal(weights, weights[:1].expand_as(weights))
    if algorithm.workers_agree:
        assert agree
    elif world_size == WORLD_SIZE and not isinstance(algorithm, LocalSGD):
        assert not agree  # it has just averaged


@pytest.mark.parametrize("name", PLAIN_ALONE)
def test_one_worker_is_the_plain_optimizer(name):
    alone = Training(name, world_size=1)
    alone.run(range(NUM_STEPS))
    model = make_model()
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, 0)
        optimizer.zero_grad()
        losses(model(x_b)[None], y_b[None]).backward()
        optimizer.step()
    plain = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(alone.weights()[0], plain, rtol=0, atol=1e-6)


@every_row(sizes=(3, 4))
def test_a_checkpoint_continues_bit_for_bit(name, world_size):
    stopped, resumed = Training(name, world_size), Training(name, world_size)
    stopped.run(range(7))
    stopped.engine.pause()
    carry_over(stopped, resumed)
    for training in (stopped, resumed):
        training.run(range(7, NUM_STEPS))
    assert torch.equal(resumed.weights(), stopped.weights())


@pytest.mark.parametrize("name", ROWS)
def test_the_same_run_gives_the_same_bits_and_goes_on_to_learn(name):
    again = Training(name)
    history = again.run(range(NUM_STEPS))
    assert torch.equal(again.weights(), trained(name)[1])
    history += again.run(range(NUM_STEPS, 70 if name in SLOW_TO_LEARN else 45))
    assert sum(history[-5:]) < 0.9 * sum(history[:5])


@pytest.mark.parametrize("name", ROWS)
def test_it_needs_nodes_where_it_averages_in_two_levels_and_only_there(name):
    assert ROWS[name]().needs_nodes is name.endswith("_hierarchical")


def test_every_algorithm_has_a_row_and_a_yaml():
    package = bagua_algos.algorithms
    yamls = "\n".join(file.read_text() for file in (PACKAGED / "algo").glob("*.yaml"))
    tried = {type(make()) for make in ROWS.values()}
    for module_name in [module.name for module in pkgutil.iter_modules(package.__path__)]:
        module = importlib.import_module(f"{package.__name__}.{module_name}")
        classes = [
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and issubclass(value, Algorithm)
            and value.__module__ == module.__name__
        ]
        assert classes, module_name
        for algorithm in classes:
            assert algorithm in tried, f"{algorithm.__name__} has no row in rows.py"
            assert f"{module.__name__}.{algorithm.__name__}" in yamls, f"{module_name}: no YAML"

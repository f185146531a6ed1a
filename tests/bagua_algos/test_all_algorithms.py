"""What holds for every algorithm. A new one needs a row in `rows.py`, and a YAML."""

import importlib
import inspect
import io
import pkgutil

import pytest
import torch

import bagua_algos.algorithms
from bagua_algos import Algorithm
from bagua_algos.engine import Engine
from bagua_algos.stacked import StackedCommunicator
from experiments.config import CONFIG_DIR
from tests.bagua_algos.cases import (
    NUM_STEPS,
    WORLD_SIZE,
    batch,
    losses,
    make_model,
    on_worker_axis,
)
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

EXACT = 1e-5

# Codes differ where a sum that was added in another order lies at a rounding tie, or has another
# sign; momentum keeps the difference. Weights are about 0.3.
TIES = {
    **dict.fromkeys(("byte_grad", "byte_grad_with_error_feedback", "allreduce_fp8"), 5e-3),
    **dict.fromkeys(("qsgd", "qsgd_2_bits", "top_k", "top_k_warm_up_and_clipping", "dgc"), 5e-3),
    **dict.fromkeys(("low_precision_decentralized", "choco_sgd", "choco_sgd_complete"), 5e-3),
    **dict.fromkeys(("diloco_int8", "qadam"), 5e-3),
    "all_reduce_bf16": 1e-2,  # gloo adds up in 8 bits of mantissa, the simulator in 24
    "all_reduce_fp16": 5e-3,
    **dict.fromkeys(("ef_signsgd", "one_bit_adam", "one_bit_adam_preconditioned"), 2e-2),
}
# What a single worker has nobody to relax with.
PLAIN_ALONE = (
    *("all_reduce", "decentralized", "decentralized_random", "sgp", "sgp_overlapped"),
    *("local_sgd", "post_local_sgd"),
)


class Training:
    """A model in training by one row, on simulated workers."""

    def __init__(self, name: str, world_size: int = WORLD_SIZE) -> None:
        self.communicator = StackedCommunicator(world_size)
        self.model = on_worker_axis(make_model(), self.communicator)
        self.optimizer = OPTIMIZERS.get(name, make_optimizer)(self.model)
        self.engine = Engine(
            self.model, self.optimizer, ROWS[name](), self.communicator, bucket_bytes=4096
        )

    def run(self, steps: range) -> list[float]:
        """The mean loss of each step."""
        history = []
        for step in steps:
            batches = [batch(step, rank) for rank in self.communicator.ranks]
            x_wb, y_wb = (torch.stack(part) for part in zip(*batches, strict=True))
            self.optimizer.zero_grad()
            loss = losses(self.model(x_wb), y_wb)
            loss.backward()
            self.optimizer.step()
            history.append(loss.item() / self.communicator.world_size)
        return history

    def weights(self) -> torch.Tensor:
        """Of all workers `[w, n]`."""
        num_held = self.communicator.world_size
        return torch.cat([p.detach().reshape(num_held, -1) for p in self.model.parameters()], 1)

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        parts = (self.model.state_dict(), self.optimizer.state_dict(), self.engine.state_dict())
        torch.save(parts, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        model, optimizer, engine = torch.load(file, weights_only=False)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.engine.load_state_dict(engine)


@pytest.fixture(scope="module")
def trained() -> dict[str, Training]:
    trainings = {name: Training(name) for name in ROWS}
    for training in trainings.values():
        training.run(range(NUM_STEPS))
    return trainings


@pytest.mark.parametrize("name", ROWS)
def test_real_workers_train_as_simulated_ones(real, simulated, name):
    for key, expected in simulated[name].items():
        if key != "gradients":
            atol = TIES.get(name, EXACT)
            torch.testing.assert_close(real[name][key], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ROWS)
def test_the_consensus_of_real_workers_is_one_model_bit_for_bit(real, name):
    for key, rows in real[name].items():
        if key not in ("gradients", "predicted bytes"):
            assert torch.equal(rows, rows[:1].expand_as(rows)), key


@pytest.mark.parametrize("name", ROWS)
def test_workers_agree_where_the_algorithm_says_so(trained, name):
    weights = trained[name].weights()
    agree = torch.equal(weights, weights[:1].expand_as(weights))
    if trained[name].engine.algorithm.workers_agree:
        assert agree
    elif name not in ("post_local_sgd", "local_sgd", "slowmo", "diloco", "diloco_int8"):
        assert not agree  # those have just averaged


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


@pytest.mark.parametrize("name", ROWS)
def test_the_same_run_gives_the_same_bits(trained, name):
    again = Training(name)
    again.run(range(NUM_STEPS))
    assert torch.equal(again.weights(), trained[name].weights())


@pytest.mark.parametrize("name", ROWS)
def test_a_checkpoint_continues_bit_for_bit(trained, name):
    before, after = Training(name), Training(name)
    before.run(range(7))
    after.load(before.save())
    after.run(range(7, NUM_STEPS))
    assert torch.equal(after.weights(), trained[name].weights())


@pytest.mark.parametrize("name", ROWS)
def test_it_learns(name):
    history = Training(name).run(range(120))
    assert sum(history[-5:]) < 0.9 * sum(history[:5])


def test_every_algorithm_has_a_row_and_a_yaml():
    package = bagua_algos.algorithms
    yamls = "\n".join(file.read_text() for file in (CONFIG_DIR / "algo").glob("*.yaml"))
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

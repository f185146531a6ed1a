"""Training by real workers, tuned and never tuned."""

import copy
import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bagua_algos
from bagua_algos.autotune import order, tuner
from bagua_algos.communication.patterns import Pattern
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.distribute import _engine
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import batch, losses, make_model
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_STEPS = 12
"""One_bit_adam's warm-up is over then, and local SGD has met."""
BUCKET_BYTES = 300
SAVED_AT = 7
SAVED = ("byte_grad_with_error_feedback", "power_sgd", "slowmo", "sgp_overlapped")
STRIPED = ("all_reduce_hierarchical", "byte_grad", "decentralized")


class Script:
    """A training whose layout changes after every step, if it is tuned."""

    def __init__(
        self,
        workers: ProcessGroupCommunicator,
        name: str,
        *,
        is_tuned: bool,
        pattern: Pattern = "direct",
    ) -> None:
        self.rank = workers.ranks[0]
        self.model = make_model()
        self.optimizer = OPTIMIZERS.get(name, make_optimizer)(self.model)
        bagua_algos.distribute(
            *(self.model, self.optimizer, ROWS[name](), workers),
            bucket_bytes=BUCKET_BYTES,
            timeout_s=60,
            pattern=pattern,
            autotune=is_tuned,
        )
        engine = _engine(self.model)
        assert isinstance(engine, Engine)
        self.engine = engine
        if is_tuned:
            _hurry(engine, streams=(2,) if name in STRIPED else ())

    def train(self, steps: range) -> None:
        for step in steps:
            x_b, y_b = batch(step, self.rank)
            self.optimizer.zero_grad(set_to_none=step % 2 == 0)
            losses(self.model(x_b)[None], y_b[None]).backward()
            self.optimizer.step()

    def results(self) -> dict[str, Tensor]:
        """This worker's own weights, and what its optimizer keeps."""
        bagua_algos.release(self.model)
        state = self.optimizer.state_dict()["state"]
        kept = {f"{i} {k}": torch.as_tensor(v) for i, own in state.items() for k, v in own.items()}
        return {name: p.detach().clone() for name, p in self.model.named_parameters()} | kept


def _hurry(engine: Engine, *, streams: tuple[int, ...]) -> None:
    """Another setting after every step, by a clock on which each is better than the last one."""
    laps = itertools.accumulate(0.9**i for i in range(1000))
    own = engine.listener
    assert isinstance(own, tuner.Tuner)
    hurried = tuner.Tuner(
        *(engine, own.scope, own.order, BUCKET_BYTES),
        clock=lambda: next(laps),
        num_measured=1,
        num_settling=0,
    )
    hurried.first, hurried.round, hurried.streams = 1, 1, streams
    engine.listener = hurried


def tuned(workers: ProcessGroupCommunicator, name: str) -> dict[str, object]:
    """What a row comes to: never tuned, and tuned; some also saved and loaded in the middle."""
    never = Script(workers, name, is_tuned=False)
    never.train(range(NUM_STEPS))
    found: dict[str, object] = {"never": never.results()}
    script = Script(workers, name, is_tuned=True)
    script.train(range(SAVED_AT))
    file = Path()
    if name in SAVED:
        own_state = bagua_algos.state_dict(script.model)
        file = Path(tempfile.mkdtemp()) / "saved.pt"
        # Held on to, the model's would keep weights where they are.
        torch.save([script.model.state_dict(), script.optimizer.state_dict(), own_state], file)
    script.train(range(SAVED_AT, NUM_STEPS))
    own = bagua_algos.tuning(script.model)
    assert own is not None
    found["settings"] = [(w.num_buckets, w.settings.streams) for w in own.windows]
    found["left_out"] = list(own.left_out)
    found["tuned"] = script.results()
    if name in SAVED:
        found["resumed"] = _resumed(workers, name, torch.load(file, weights_only=True))
        shutil.rmtree(file.parent)
    return found


@contextmanager
def order_is_fixed(is_it: bool) -> Iterator[None]:
    """Within, whatever the trial of orders measures comes to this, as soon as it may."""
    before = order.WORTH_IT, order.MOST_TURNS, order.CLEAR
    order.WORTH_IT, order.MOST_TURNS = 0.0 if is_it else math.inf, order.FEWEST_TURNS
    order.CLEAR = math.inf
    try:
        yield
    finally:
        order.WORTH_IT, order.MOST_TURNS, order.CLEAR = before


def tuned_by_the_ring(workers: ProcessGroupCommunicator) -> dict[str, object]:
    """All-reduce where gloo's ring is the faster one; the worker that resumes has measured the
    opposite.
    """
    found: dict[str, object] = {}
    for pattern in ("ring", "direct"):
        never = Script(workers, "all_reduce", is_tuned=False, pattern=pattern)
        never.train(range(NUM_STEPS))
        found[f"never {pattern}"] = never.results()
    for is_fixed, name in ((False, "ring"), (True, "direct")):
        with order_is_fixed(is_fixed):
            script = Script(workers, "all_reduce", is_tuned=True, pattern="ring")
        script.train(range(SAVED_AT))
        own_state = bagua_algos.state_dict(script.model)
        states = [script.model.state_dict(), script.optimizer.state_dict(), own_state]
        states = copy.deepcopy(states)
        script.train(range(SAVED_AT, NUM_STEPS))
        own = bagua_algos.tuning(script.model)
        assert own is not None
        found[f"tuning {name}"] = own.table()
        found[f"tuned {name}"] = script.results()
        with order_is_fixed(not is_fixed):
            found[f"resumed {name}"] = _resumed(workers, "all_reduce", states, pattern="ring")
    return found


def _resumed(
    workers: ProcessGroupCommunicator,
    name: str,
    states: list[dict[str, Any]],
    *,
    pattern: Pattern = "direct",
) -> dict[str, Tensor]:
    resumed = Script(workers, name, is_tuned=True, pattern=pattern)
    model, optimizer, state = states
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    bagua_algos.load_state_dict(resumed.model, state)
    resumed.train(range(SAVED_AT, NUM_STEPS))
    return resumed.results()


ROWS_TUNED = (*SAVED, *STRIPED)
TUNED = {f"tuned {name}": partial(tuned, name=name) for name in ROWS_TUNED} | {
    "tuned by the ring": tuned_by_the_ring
}
"""By 4 workers, together with those of `training_workers`."""

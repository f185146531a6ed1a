"""What a training script does around forward and backward, as functions of a communicator.

A model with everything that is not plain: a frozen layer, BatchNorm, a weight used in two places,
two parameter groups.

Shapes: w workers held by this process, b examples of each.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bagua_algos import Algorithm
from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import Tensors, batch, on_worker_axis
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_STEPS = 8
OVERFLOW_RANK, SHORT_RANK = 2, 3
FIRST_SCALE = 2.0**10


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(13, 37).requires_grad_(False)
        self.norm = nn.BatchNorm1d(37)
        self.once = nn.Linear(37, 37)
        self.again = nn.Linear(37, 37, bias=False)
        self.again.weight = self.once.weight

    def forward(self, x_b: Tensor) -> Tensor:
        return self.again(self.once(self.norm(self.frozen(x_b)).relu()).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = Body(), nn.Linear(37, 7)

    def forward(self, x_b: Tensor) -> Tensor:
        return self.head(self.body(x_b).relu())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the training script does.

    `overflow_step`: one worker's loss is infinite in one micro-batch of it; a scaler finds it, and
    without one the script leaves the whole step out. `runs_out`: one worker has no examples in the
    last two steps.
    """

    num_micro_batches: int = 1
    clip_norm: float | None = None
    overflow_step: int | None = None
    runs_out: bool = False
    scaled: bool = False
    autocast: torch.dtype | None = None
    weights: torch.dtype = torch.float32
    set_to_none: bool = True
    num_steps: int = NUM_STEPS


RECIPES = {
    "everything": Recipe(num_micro_batches=2, clip_norm=1.0, overflow_step=3, scaled=True),
    "bf16 weights": Recipe(weights=torch.bfloat16, set_to_none=False, num_steps=4),
    "one runs out": Recipe(runs_out=True, num_steps=5),
}
AUTOCAST = Recipe(autocast=torch.bfloat16, num_steps=4)


def make_two_groups(model: nn.Module, name: str) -> torch.optim.Optimizer:
    """The row's own optimizer, the head apart with another rate and weight decay."""
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model.module.body)
    lr = 0.5 * optimizer.param_groups[0]["lr"]
    head = {"params": list(model.module.head.parameters()), "lr": lr, "weight_decay": 0.05}
    if "betas" in optimizer.defaults:
        head["betas"] = (0.8, 0.99)
    optimizer.add_param_group(head)
    return optimizer


def loss_w(outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
    """Each worker's own `[w]`."""
    flat = F.cross_entropy(outputs_wbc.float().flatten(0, 1), y_wb.flatten(), reduction="none")
    return flat.view(y_wb.shape).mean(1)


def clip_(model: nn.Module, num_held: int, max_norm: float) -> None:
    """Scale each worker's gradients to a norm of `max_norm` at most."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm_w = torch.cat([g.reshape(num_held, -1) for g in gradients], 1).norm(dim=1)
    scale_w = (max_norm / (norm_w + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(scale_w.view(-1, *[1] * (gradient.dim() - 1)) if num_held > 1 else scale_w)


class Script:
    """One training, on the workers that `communicator` holds."""

    def __init__(
        self,
        communicator: Communicator,
        algorithm: Algorithm,
        recipe: Recipe,
        optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    ) -> None:
        self.recipe, self.ranks = recipe, communicator.ranks
        self.model = on_worker_axis(Net().to(recipe.weights), communicator)
        self.optimizer = optimizer_of(self.model)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=FIRST_SCALE, growth_interval=3, enabled=recipe.scaled
        )
        self.engine = Engine(
            self.model,
            self.optimizer,
            algorithm,
            communicator,
            bucket_bytes=4096,
            timeout_s=60,
            grad_scaler=self.scaler,
        )

    def run(self) -> Tensors:
        """The consensus' weights and buffers `[w, ...]`, and the scale."""
        for step in range(self.recipe.num_steps):
            self.optimizer.zero_grad(set_to_none=self.recipe.set_to_none)
            is_skipped = not self.recipe.scaled and step == self.recipe.overflow_step
            self._backward(step, is_skipped=is_skipped)
            if not is_skipped:
                self._update()
            self.schedule.step()
        num_held = len(self.ranks)
        with self.engine.consensus():
            results = {
                name: value.detach().reshape(num_held, -1).clone()
                for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]
            }
        self.engine.close()
        return results | {"scale": torch.full((num_held, 1), self.scaler.get_scale())}

    def _backward(self, step: int, *, is_skipped: bool) -> None:
        if self._has_run_out(step) == [True]:
            self.engine.empty_backward()
            return
        num_parts = self.recipe.num_micro_batches
        batches = [batch(step, rank) for rank in self.ranks]
        x_wb, y_wb = (torch.stack(part) for part in zip(*batches, strict=True))
        parts = zip(x_wb.chunk(num_parts, 1), y_wb.chunk(num_parts, 1), strict=True)
        for index, (x_wb, y_wb) in enumerate(parts):
            with torch.autocast("cpu", self.recipe.autocast, enabled=bool(self.recipe.autocast)):
                losses_w = loss_w(self.model(x_wb.to(self.recipe.weights)), y_wb)
            loss = (losses_w * self._factors(step, index)).sum() / num_parts
            with nullcontext() if index == num_parts - 1 else self.engine.no_sync():
                if not is_skipped:
                    self.scaler.scale(loss).backward()

    def _update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if self.recipe.clip_norm is not None:
            clip_(self.model, len(self.ranks), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _has_run_out(self, step: int) -> list[bool]:
        late = self.recipe.runs_out and step >= self.recipe.num_steps - 2
        return [late and rank == SHORT_RANK for rank in self.ranks]

    def _factors(self, step: int, micro_batch: int) -> Tensor:
        """Of each worker's loss `[w]`."""
        overflows = step == self.recipe.overflow_step and micro_batch == 0
        infinite = [math.inf if overflows and r == OVERFLOW_RANK else 1.0 for r in self.ranks]
        idle = torch.tensor(self._has_run_out(step))
        return torch.tensor(infinite).masked_fill(idle, 0.0)


def train_row(communicator: Communicator, name: str, recipe: Recipe) -> Tensors:
    """By one row of the suite over all algorithms."""
    script = Script(communicator, ROWS[name](), recipe, lambda model: make_two_groups(model, name))
    return script.run()


STEADY_ROWS = [name for name, make in ROWS.items() if not make().depends_on_timing]


CASES: dict[str, Callable[[Communicator], Tensors]] = {
    f"{recipe_name} {name}": partial(train_row, name=name, recipe=recipe)
    for name in STEADY_ROWS
    for recipe_name, recipe in RECIPES.items()
} | {"bf16 autocast all_reduce": partial(train_row, name="all_reduce", recipe=AUTOCAST)}

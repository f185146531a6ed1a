"""A problem whose gradients have no rounding to speak of, so that even 1-bit codes can be compared
with an oracle: worker r at step k has the loss |x - c(k, r)|^2 / 2.

Also the oracle of C_LP_S and its two codes, in plain torch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bagua_algos import Algorithm
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import on_worker_axis
from tests.bagua_algos.checkpoint import carry_over
from tests.bagua_algos.recorder import Recorder

SIZE = 37
ALIGNMENT = 16


def start() -> Tensor:
    """All workers' first x `[SIZE]`."""
    return torch.linspace(-2, 3, SIZE)


def target(step: int, rank: int, noise: float = 1.0) -> Tensor:
    """c(step, rank), `[SIZE]`: scattered around `arange(SIZE) / SIZE`."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.arange(SIZE) / SIZE + noise * torch.randn(SIZE, generator=generator)


class Quadratic(nn.Module):
    """x as consecutive parameters of these sizes; the residual x - c of every example."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        parts = start().split(list(sizes or (SIZE,)))
        self.parts = nn.ParameterList([nn.Parameter(part.clone()) for part in parts])

    def forward(self, c_bd: Tensor) -> Tensor:
        return torch.cat(list(self.parts)) - c_bd


class Training:
    """The quadratic, trained on all `num_workers` simulated workers (or on a `communicator`)."""

    def __init__(
        self,
        num_workers: int,
        algorithm: Algorithm,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *sizes: int,
        noise: float = 1.0,
        communicator: Communicator | None = None,
    ) -> None:
        self.recorder, self.noise = Recorder(), noise
        self.communicator = communicator or StackedCommunicator(num_workers)
        self.model = on_worker_axis(Quadratic(*sizes), self.communicator)
        self.optimizer = make_optimizer(list(self.model.parameters()))
        self.engine = Engine(self.model, self.optimizer, algorithm, self.communicator)
        self.communicator.observer = self.recorder
        self.context = self.engine.context

    def backward(self, step: int) -> None:
        rows = [target(step, rank, self.noise)[None] for rank in self.communicator.ranks]
        self.model(torch.stack(rows)).square().sum().div(2).backward()

    def steps(self, first: int, stop: int, after: Callable[[], None] = lambda: None) -> Tensor:
        """Train; returns x `[w, SIZE]`."""
        for step in range(first, stop):
            self.optimizer.zero_grad()
            self.backward(step)
            self.optimizer.step()
            after()
        return self.x

    @property
    def x(self) -> Tensor:
        num_held = len(self.communicator.ranks)
        return torch.cat(
            [p.detach().reshape(num_held, -1) for p in self.model.parameters()], 1
        ).clone()


def interrupted(make: Callable[[], Training], at: int, stop: int) -> Tensor:
    """x `[w, SIZE]` after `stop` steps, the last of them by a training that has loaded a checkpoint
    of the first `at`.
    """
    stopped, resumed = make(), make()
    stopped.steps(0, at)
    carry_over(stopped, resumed)
    return resumed.steps(at, stop)


def min_max(chunk: Tensor) -> Tensor:
    """A chunk as MinMaxUInt8 decodes it."""
    scale = 255 / (chunk.max() - chunk.min() + 1e-7)
    upper = (chunk.max() * scale).round()
    lower = upper - 255
    codes = ((chunk * scale).round().minimum(upper) - lower).clamp(0, 255)
    return (codes + lower) / scale


def sign_scale(chunk: Tensor) -> Tensor:
    """A chunk as SignScale decodes it."""
    scale = chunk.abs().mean()
    return torch.where(chunk >= 0, scale, -scale)


class CompressedMean:
    """C_LP_S of one vector a worker, with error feedback on both codes or none."""

    def __init__(
        self, code: Callable[[Tensor], Tensor], num_workers: int, error_feedback: bool
    ) -> None:
        unit = num_workers * ALIGNMENT
        self.code, self.feedback = code, error_feedback
        self.chunk = -(-SIZE // unit) * unit // num_workers
        self.worker_errors = torch.zeros(num_workers, num_workers, self.chunk)
        self.owner_errors = torch.zeros(num_workers, self.chunk)

    def __call__(self, rows: list[Tensor]) -> Tensor:
        num_workers, chunks = len(rows), []
        padded = [
            torch.cat([r, r[-1:].expand(num_workers * self.chunk - SIZE)]).view(num_workers, -1)
            for r in rows
        ]
        for owner in range(num_workers):
            decoded = [
                self._send(padded[worker][owner], self.worker_errors[worker, owner])
                for worker in range(num_workers)
            ]
            mean = torch.stack(decoded).mean(0)
            chunks.append(self._send(mean, self.owner_errors[owner]))
        return torch.cat(chunks)[:SIZE]

    def _send(self, chunk: Tensor, error: Tensor) -> Tensor:
        if not self.feedback:
            return self.code(chunk)
        decoded = self.code(chunk + error)
        error.copy_(chunk + error - decoded)
        return decoded

"""Observers of a training step as it happens."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class StepObserver(Protocol):
    """A profile or a trace of a real run, the clocks of a simulated one.

    `moment` is the name of a method of `Algorithm`, `bucket` the index of the bucket where it has
    one. A step is on_forward, on_forward_end (both for each micro-batch), jobs, on_backward_end,
    jobs, on_synchronized, a job, on_step_end. One that a `GradScaler` leaves out has no jobs, and
    ends where its backward pass does; simulated clocks charge its optimizer's time all the same.
    """

    def on_forward(self) -> None:
        """Forward begins. On the training thread, like all but the jobs."""
        ...

    def on_forward_end(self) -> None:
        """Forward has ended; the loss and backward are next."""
        ...

    def on_submit(self, moment: str, bucket: int | None) -> None:
        """The training thread hands a job to its lane: a bucket's gradients are final."""
        ...

    def on_job(self, moment: str, bucket: int | None) -> None:
        """The lane begins the job, on the lane's thread; its operations follow."""
        ...

    def on_job_end(self, moment: str, bucket: int | None) -> None:
        """The lane has done the job."""
        ...

    def on_backward_end(self) -> None:
        """Backward has computed all gradients; training waits for the lanes next."""
        ...

    def on_synchronized(self) -> None:
        """All jobs of the backward pass are done; the optimizer is next."""
        ...

    def on_step_end(self) -> None:
        """The optimizer, and the algorithm after it, have changed the weights."""
        ...


def tell_left_out(observer: StepObserver | None) -> None:
    """A step ends with its backward pass: a gradient has overflowed."""
    if observer is not None:
        observer.on_backward_end()
        observer.on_synchronized()
        observer.on_step_end()


class Listener(Protocol):
    """Acts between the steps of a real worker, on the training thread."""

    def forward_begins(self) -> None:
        """A forward begins."""
        ...

    def step_ended(self) -> None:
        """A step has ended, and the next has not begun: no lane has work, on any worker. A
        collective call.
        """
        ...

    def paused(self) -> None:
        """Something other than training comes next, until a forward begins."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        ...


@runtime_checkable
class Clocks(Protocol):
    """A `StepObserver` that keeps simulated clocks, one a worker."""

    @property
    def exposed_communication_s(self) -> float:
        """What training has waited for communication, seconds."""
        ...

    def now_w(self) -> Tensor:
        """Each worker's clock, seconds, float64 `[w]`."""
        ...

    def background(self) -> AbstractContextManager[None]:
        """The operations within begin at each worker's clock, and no worker waits for them."""
        ...

    def background_done_w(self) -> Tensor:
        """Whether the last of them are over at each worker's clock, bool `[w]`."""
        ...

    def background_wait(self) -> None:
        """All workers wait until they are over."""
        ...

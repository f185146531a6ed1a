"""Hangs an algorithm on an unmodified model and optimizer.

    backward of layer  L ... 5 4 3 2 1     compute, the caller's thread
    lane 0   bucket        0     2         travels while backward goes on,
    lane 1   bucket          1     3       one bucket's latency behind another's transfer

Autograd tells when a parameter's gradient is final. A bucket goes to the algorithm on its lane once
all its gradients are final and all earlier buckets were launched. So the buckets of a lane travel
in the same order on every worker, whatever the order of gradients. When backward returns, all
gradients are final: clipping and optimizers work as usual. With a `GradScaler` no bucket is
launched before backward has ended: whether a gradient overflowed is not known earlier.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.hooks import RemovableHandle

from bagua_algos.checkpoint import ALGORITHM, NUM_WORKERS, OPTIONS, options_of_state
from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.backward import BackwardTracker
from bagua_algos.engine.bucket import Bucket, Groups, Move, build_buckets, lay_out, phases_of
from bagua_algos.engine.consensus import averaged
from bagua_algos.engine.dispatcher import Dispatcher
from bagua_algos.engine.parameter_groups import check_parameters
from bagua_algos.engine.relayout import BUCKETS, LAYOUT, described, layout_of, state_here
from bagua_algos.engine.script.accumulation import Accumulation
from bagua_algos.engine.script.attached import Attached
from bagua_algos.engine.script.changes import (
    ScriptChanges,
    check_is_called_plainly,
    check_is_not_wrapped,
)
from bagua_algos.engine.script.closures import StepClosure
from bagua_algos.engine.script.copies import ForwardHook, leave_out_of_copies
from bagua_algos.engine.script.elementwise import check_elementwise
from bagua_algos.engine.script.grad_scaler import ScaledGradients, check_scaler_is_known
from bagua_algos.engine.script.same_model import Meeting, check_same_model, check_still_same_model
from bagua_algos.engine.script.weak_hook import nothing_came, weakly
from bagua_algos.engine.step_observer import Listener, StepObserver, tell_left_out
from bagua_algos.engine.untrained import (
    average_untrained_,
    broadcast_untrained_,
    broadcast_weights_,
)
from bagua_algos.engine.unused import drop_unused_

DEFAULT_BUCKET_BYTES = 4 << 20
DEFAULT_TIMEOUT_S = 600.0
LISTENER = "listener"


def check_can_train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    communicator: Communicator,
) -> None:
    """Raise `ValueError` where an engine for these would; without communication."""
    check_is_not_wrapped(model)
    algorithm.check(communicator.world_size, optimizer)
    check_elementwise(optimizer, len(communicator.ranks))
    check_parameters(model, optimizer, algorithm)


class Engine(Attached):
    """One algorithm at work on one model and optimizer, on the workers that `communicator` holds.

    The model takes the weights and buffers of worker 0. Reentrant activation checkpointing, sparse
    gradients and a change of any parameter's `requires_grad` are not supported: each raises
    `ValueError` in backward. On a GPU the host waits for no part of a step, but for the overflow
    check of a `GradScaler` and the search for unused parameters, on which the rest depends.

    Args:
        model: a real worker's model, or a `StackedModel`.
        optimizer: over the model's parameters.
        algorithm: the relaxation.
        communicator: the other workers.
        bucket_bytes: a bucket is closed once it holds as much.
        timeout_s: the longest wait for one bucket.
        find_unused_parameters: whether what no worker used keeps a gradient of None, as in plain
            torch, and not zero: workers tell each other in one more all-reduce a backward.
        grad_scaler: the one that scales the loss, if any (`bagua_algos.engine.script.grad_scaler`).
        step_observer: hears of every step; one that keeps simulated clocks also tells when what
            goes on in the background is done.
        may_move: parameters may be laid out anew, in more buckets (`relayout`).
        fuse: lets the optimizer step once for all parameters of a bucket, if it can.
    """

    listener: Listener | None = None
    """Hears of steps, and may change between them how workers communicate."""
    has_fused: bool
    """Whether this engine has fused the optimizer: a script may have done so before."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        communicator: Communicator,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        find_unused_parameters: bool = False,
        grad_scaler: GradScaler | None = None,
        step_observer: StepObserver | None = None,
        may_move: bool = False,
        fuse: Callable[[Sequence[Bucket], torch.optim.Optimizer], bool] = lambda *_: False,
    ) -> None:
        check_can_train(model, optimizer, algorithm, communicator)
        self.model, self.algorithm = model, algorithm
        self._observer = step_observer
        buckets = build_buckets(
            model.parameters(),
            num_held=len(communicator.ranks),
            world_size=communicator.world_size,
            bucket_bytes=bucket_bytes,
        )
        device = buckets[0].weights.device
        algorithm.load(device)
        self.dispatcher = Dispatcher(
            algorithm,
            communicator,
            device,
            num_buckets=sum(len(b.parameters) for b in buckets) if may_move else len(buckets),
            timeout_s=timeout_s,
            observer=step_observer,
            check=partial(check_same_model, model, optimizer),
        )
        self.context = Context(
            buckets=buckets,
            communicator=self.dispatcher.communicator,
            optimizer=optimizer,
            background=self.dispatcher.background,
        )
        self._find_unused = find_unused_parameters
        self._scaled = ScaledGradients.of(grad_scaler, buckets, optimizer)
        self._changes = ScriptChanges(model, optimizer, buckets)
        self.backward = BackwardTracker(buckets, weakly(self._on_bucket_complete))
        self._accumulation = Accumulation(is_needed=self.dispatcher.may_take_gradients)
        self._closure = StepClosure(weakly(self._begin_step))
        self._fuse = fuse
        with self.dispatcher.closed_on_error():
            self._start_equal()
            self._hooks = self._attach()
            self.has_fused = fuse(buckets, optimizer)

    def empty_backward(self) -> None:
        """In place of forward and backward where this worker has no examples left: takes part in
        the others' step with gradients of zero, or what `no_sync` has accumulated. Within it
        nothing is added, and nobody hears of it.
        """
        self._begin_observed()
        if not self._synchronizing:
            self._take_local_gradient(None)
            return
        if self._scaled is not None:
            self._scaled.have_scale()
        if not self._has_begun:
            self._begin()
        self._begin_backward()
        self.backward.begin()
        self._after_backward()

    def pause(self) -> None:
        """End what the algorithm does in the background; the next step takes it up again. The clock
        by which it does stands still until then.

        A collective call, for before an evaluation, a checkpoint and the end.
        """
        self._changes.take_back_weights()
        if self.listener is not None:
            self.listener.paused()
        self._act("on_pause")
        if self.context.background is not None:
            self.context.background.stop_clock()

    def stand_still(self) -> None:
        """Stop for an evaluation, which looks at the weights as they are and ends nothing: what
        goes on in the background is taken up as if there had been no stop (see `Background`).

        A collective call. Raises what ended the background.
        """
        self._changes.take_back_weights()
        if self.listener is not None:
            self.listener.paused()
        if (background := self.context.background) is not None:
            others, device = self.context.communicator, self.context.buckets[0].weights.device
            self.dispatcher.run("a stop", lambda: background.stand_still(others, device))

    @contextmanager
    def consensus(self, averager: Averager | None = None) -> Iterator[float]:
        """The model to evaluate or save: within, every worker holds the mean of all workers'
        weights and buffers.

        Yields the spread of the workers' weights about that mean: the root of their mean squared
        distance, over the mean's norm. Where the algorithm keeps weights equal, checksums are
        compared, and a warning tells if they differ. A collective call. Buffers stay averaged, and
        so do frozen parameters that differ; weights that differ between workers return afterwards.
        What is averaged travels by `averager`; None: by the communicator. `pause` or `stand_still`
        first.
        """
        averager = averager or self.context.communicator
        run, device = self.dispatcher.run, self.context.buckets[0].weights.device
        meeting = Meeting(averager, self.context.communicator, run)
        check_still_same_model(self.model, [meeting], device)
        keeper = type(self.algorithm).__name__ if self.algorithm.workers_agree else None
        average_untrained_(self.model, averager, run, self._trained, kept_equal_by=keeper)
        put_back = self._changes.put_back_weights
        within = averaged(self.context.buckets, averager, run, put_back, kept_equal_by=keeper)
        with within as spread, self._looking_on(spread):
            yield spread

    def relayout(self, groups: Groups) -> None:
        """Lay the parameters out anew, between two steps, in one bucket for each of `groups`. Their
        values, their gradients, the algorithm's state and the optimizer's move along bit for bit.

        No collective call, but all workers do the same between the same two steps. For one real
        worker, and an algorithm that does not depend on buckets.
        """
        before, world_size = self.context.buckets, self.context.communicator.world_size
        assert not self.algorithm.depends_on_buckets and len(before[0].weights) == 1
        self._changes.take_back_weights()
        buckets = lay_out(groups, phases_of(before), world_size=world_size)
        for bucket in buckets:
            bucket.adopt_weights()
        self.backward.move_to(buckets)
        self._changes.move_to(buckets)
        if self._scaled is not None:
            self._scaled.move_to(buckets)
        state = self.algorithm.move_state(self.context, Move(before, buckets))
        self._change_context(buckets=buckets, state=state)
        if self._loaded is not None:
            self._loaded.note_step()  # in the buckets' order
        self._fuse(buckets, self.context.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's and the optimizer's; after `pause`."""
        state = super().state_dict() | {LAYOUT: layout_of(self.context.buckets, self._trained)}
        return state | ({LISTENER: self.listener.state_dict()} if self.listener else {})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As `Attached.load_state_dict`, also of other buckets where an algorithm allows it. What
        the listener has found is left where it is of another number of workers.
        """
        here = state_here(state_dict, self.algorithm, self.context, self._trained)
        super().load_state_dict(here)
        are_as_many = state_dict["of"].get(NUM_WORKERS) == self.context.communicator.world_size
        if are_as_many and self.listener is not None and LISTENER in state_dict:
            self.listener.load_state_dict(state_dict[LISTENER])

    @property
    def _trained(self) -> list[nn.Parameter]:
        """In the model's order."""
        own = {p for bucket in self.context.buckets for p in bucket.parameters}
        return [p for p in self.model.parameters() if p in own]

    def _identity(self) -> dict[str, Any]:
        """What a state belongs to, in words for errors."""
        workers = self.context.communicator
        return {
            ALGORITHM: type(self.algorithm).__name__,
            OPTIONS: options_of_state(self.algorithm),
            BUCKETS: described(self.context.buckets),
            NUM_WORKERS: workers.world_size,
            "rank": list(workers.ranks),
        }

    def _attach(self) -> list[RemovableHandle]:
        model = self.model
        leave_out_of_copies(model, load_hooks=self.algorithm.keeps_weights)
        hooks = [
            model.register_forward_pre_hook(ForwardHook(self._before_forward)),
            *self.backward.attach(self._after_gradient, self._may_write),
            *self._attach_to(self.context.optimizer),
        ]
        if self._observer is not None or self.dispatcher.acts_at("on_forward"):
            hooks.append(model.register_forward_hook(ForwardHook(self._after_forward)))
        return hooks

    def _start_equal(self) -> None:
        communicator, run = self.context.communicator, self.dispatcher.run
        weights = [bucket.weights for bucket in self.context.buckets]
        broadcast_weights_(weights, communicator, run)
        run("broadcast of buffers", lambda: broadcast_untrained_(self.model, communicator))
        self._init_state()

    def _act(self, moment: str) -> None:
        self.dispatcher.submit_moment(moment, self.context)
        self.dispatcher.wait_exposed()

    def _before_forward(self, module: nn.Module) -> None:
        check_is_called_plainly()
        if not self.is_consensus:
            self._begin_observed()

    def _after_forward(self, module: nn.Module) -> None:
        if not self.is_consensus:
            self._changes.note_forward_end()
            if self._observer is not None:
                self._observer.on_forward_end()

    def _begin_observed(self) -> None:
        if self._observer is not None:
            self._observer.on_forward()
        if self.listener is not None:
            self.listener.forward_begins()
        self._begin_forward()

    def _before_begin(self) -> None:
        self._changes.take_back_weights()
        if self.context.background is not None:
            self.context.background.start_clock()

    def _after_gradient(self, parameter: nn.Parameter) -> None:
        if self._synchronizing:
            self._take_gradient(parameter)
        elif not nothing_came(parameter):
            self._take_local_gradient(parameter)

    def _may_write(self) -> bool:
        """Whether gradients may be in buckets before a backward pass."""
        meets = self._synchronizing and not self.is_consensus
        return meets and not self.algorithm.may_read_late

    def _on_bucket_complete(self, bucket: Bucket) -> None:
        if self._scaled is None:
            first = self.backward.ends_first
            self.dispatcher.submit_moment("on_bucket_ready", self.context, bucket, may_wait=first)

    def _after_backward(self) -> None:
        left_out = self.backward.left_out
        unused = self._end_backward()
        self._changes.take_back_weights()
        self._changes.check_are_the_models(left_out)
        if self._scaled is not None:
            # Where steps do not wait for each other, every worker is left to its own scaler.
            meets = not self.algorithm.uses_background
            average_ = partial(self._average, "the overflow check") if meets else None
            self._overflowed = self._scaled.unscale_(average_)
            if self._overflowed:
                self._accumulation.note_step()  # which the scaler leaves out
                self.algorithm.on_left_out(self.context)
                tell_left_out(self._observer)
                return
            for bucket in self.context.buckets:
                self.dispatcher.submit_moment("on_bucket_ready", self.context, bucket)
        if self._observer is not None:
            self._observer.on_backward_end()
        self.dispatcher.wait_exposed()
        self._end_pass()
        if self._observer is not None:
            self._observer.on_synchronized()
        if self._scaled is not None:
            self._scaled.rescale_()
        if self._find_unused:
            average_ = partial(self._average, "the search for unused parameters")
            keeps = self.algorithm.keeps_unsent
            drop_unused_(self.context.buckets, unused, average_, keeps_unsent=keeps)
        self._note_met()

    def _begin_step(self) -> None:
        """The gradients are there: those of a closure, if the step has one."""
        if not self._accumulation.check_step():
            self._changes.check_are_the_models(self.backward.parameters)
            if self._needs_backward and not self._overflowed:
                self._changes.refuse_gradient(self.backward.foreign_gradient())
        if self._remembers:
            check_scaler_is_known(self._scaled)
        self._changes.take_back_weights()
        self._changes.check_replaced()
        if not self._overflowed:
            self._act_where_step_begins()

    def _after_step(self) -> None:
        if self._overflowed:  # a fused optimizer has skipped the step itself
            return
        self._changes.take_back_weights()
        self._act("on_step_end")
        self._count_step()
        if self._looks_at_values and self.algorithm.replaces_weights(self.context):
            self._changes.note_step()
        if self._observer is not None:
            self._observer.on_step_end()
        if self.listener is not None:
            self.listener.step_ended()

    def _after_own_moment(self) -> None:
        """Nothing: parameters are views of what the algorithm may have changed."""

    def _average(self, label: str, x_w: Tensor) -> None:
        mean_ = self.context.communicator.all_reduce_mean_
        self.dispatcher.run_exposed(label, lambda: mean_(x_w))

"""What engines of plain and of sharded models share: state, hooks of the optimizer, the end."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from bagua_algos.checkpoint import check_belongs, checked
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.backward import BackwardTracker
from bagua_algos.engine.call_stack import is_within_own_step, saving_by_torch
from bagua_algos.engine.dispatcher import Dispatcher
from bagua_algos.engine.script.accumulation import Accumulation
from bagua_algos.engine.script.changes import ScriptChanges
from bagua_algos.engine.script.closures import StepClosure
from bagua_algos.engine.script.grad_scaler import ScaledGradients
from bagua_algos.engine.script.loads import WEIGHTS, LoadedWeights
from bagua_algos.engine.script.other_optimizers import OtherOptimizers
from bagua_algos.engine.script.saves import saving_copies
from bagua_algos.engine.script.uncleared import UnclearedGradients
from bagua_algos.engine.script.unseen import NUM_STEPS, UnseenChanges
from bagua_algos.engine.script.weak_hook import nothing_came, weakly
from bagua_algos.step_hooks import run_first


class Attached(ABC):
    """One algorithm at work on one model and optimizer."""

    model: nn.Module
    algorithm: Algorithm
    context: Context
    dispatcher: Dispatcher
    backward: BackwardTracker
    _changes: ScriptChanges
    _others: OtherOptimizers
    _unseen: UnseenChanges
    _accumulation: Accumulation
    _closure: StepClosure
    _loaded: LoadedWeights | None = None
    _scaled: ScaledGradients | None = None
    _uncleared: UnclearedGradients | None = None
    _hooks: list[RemovableHandle]
    _synchronizing: bool = True
    _has_begun: bool = False
    """Whether a step has begun and no backward pass has ended since. The optimizer's step does not
    end it: what travels since then may still replace the weights.
    """
    _overflowed: bool = False
    """Whether the last backward pass has: its step is left out, on all workers."""
    is_consensus: bool = False
    """Whether the model is the mean of all workers' for a while."""
    _sees_all_gradients: bool = True
    """Whether all processes find the same values of averaged gradients, and so decide the same."""

    _holds_weights: bool = True
    """Whether the memory of parameters and gradients is that of buckets, which are no copy."""

    @property
    def exposed_communication_s(self) -> float:
        """Seconds that training has waited for the lanes: what compute did not hide. With simulated
        clocks it is simulated time; on a GPU the compute stream's wait, so far as it has finished.
        """
        return self.dispatcher.exposed_communication_s

    @exposed_communication_s.setter
    def exposed_communication_s(self, seconds: float) -> None:
        self.dispatcher.exposed_communication_s = seconds

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's and the optimizer's: the algorithm's state of
        what is held here; after `pause`.
        """
        loaded = None if self._needs_backward else self._loaded
        return {
            "state": checked(copy.copy(self.context.state)),  # QAdam's end empties its own
            "step": self.context.step,
            "of": self._identity(),
            **({} if loaded is None else {WEIGHTS: loaded.checksum()}),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from another engine's `state_dict`, of the same workers.

        Raises `ValueError` where that was of another algorithm, model, weights, shard or number of
        workers, unless workers agree and it holds no tensors: then only of another algorithm.
        """
        agree = self.algorithm.workers_agree
        check_belongs(state_dict, self._identity(), workers_agree=agree)
        if self._loaded is not None:
            self._loaded.accept_beside(state_dict)
        self._change_context(state=copy.deepcopy(state_dict["state"]), step=int(state_dict["step"]))
        self._has_begun = False  # what travels is of the state that is gone

    def close(self) -> None:
        """Remove every hook and end the lanes; model and optimizer are plain again, and the latter
        has what the algorithm had taken over.

        `pause` first: what still goes on in the background is left to its end.
        """
        self._others.detach()
        for hook in self._hooks:
            hook.remove()
        self.dispatcher.close()
        self.algorithm.on_close(self.context)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside only accumulate locally, as with DDP's."""
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def held_weight(self) -> str | None:
        """The name of a parameter whose memory another tensor has, too; None if there is none."""
        return self._changes.held_weight()

    def skip_to(self, step: int) -> None:
        """Count the next step as number `step`, as if the earlier ones had been taken."""
        self._change_context(step=step)
        self.algorithm.skip_to(self.context)

    def _begin_forward(self) -> None:
        """A forward begins the step; not one between a backward pass and its step, which will
        change what would travel: the first gradient after it begins instead.
        """
        if not self._accumulation.is_step_next:
            self._begin()

    def _begin(self) -> None:
        self._before_begin()
        if not self._has_begun and self.dispatcher.acts_at("on_forward"):
            self._changes.note_begin()
            if self._holds_weights and self.algorithm.replaces_weights(self.context):
                self._unseen.note(self.context.buckets)
        self._has_begun = True
        self.dispatcher.submit_moment("on_forward", self.context)

    @contextmanager
    def _looking_on(self, spread: float) -> Iterator[None]:
        """Forward passes within, of weights that are for a while another model's, begin no step;
        and what is saved of them, if there is a `spread`, does not become this worker's own.
        """
        before, self.is_consensus = self.is_consensus, True
        try:
            with saving_copies(self.model) if spread else nullcontext():
                yield
        finally:
            self.is_consensus = before

    def _take_gradient(self, parameter: nn.Parameter) -> None:
        """A gradient of this backward pass, in which workers meet, is final, or did not come."""
        has_come = not nothing_came(parameter)
        if self.backward.enter():
            self._begin_backward(parameter if has_come else None)
            # Called when the whole pass is done, before backward() returns, as in DDP and FSDP: a
            # call that FSDP2 has queued before this one ends its own part first.
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            if not self._has_begun:  # the loss came from no forward() in training mode after a step
                self._begin()
        if has_come:
            self.backward.gradient_ready(parameter)

    def _take_local_gradient(self, parameter: nn.Parameter | None) -> None:
        """A gradient has accumulated within `no_sync`; None: some will."""
        if parameter is not None:
            self._look_at_others(parameter)
        if self._accumulation.note_local():
            self._check_kept(parameter)

    def _check_kept(self, parameter: nn.Parameter | None) -> None:
        """Refuse that the gradients are gone in which workers have met, where the algorithm keeps a
        part of them; `parameter` has one already that came afterwards.
        """
        if self.algorithm.keeps_unsent and self.backward.is_thrown_away(parameter):
            if self._sees_all_gradients:
                self._changes.refuse_thrown_away()
            self._changes.warn_of_thrown_away()

    def _begin_backward(self, parameter: nn.Parameter | None = None) -> None:
        """`parameter` has the first gradient of the pass; None: there will be none."""
        self._look_at_others(parameter)
        algorithm, is_step_next = self.algorithm, self._accumulation.is_step_next
        if is_step_next:
            self._check_kept(parameter)
        if is_step_next and algorithm.takes_one_backward and not self._is_first(parameter):
            raise ValueError(
                f"{type(algorithm).__name__} takes every backward pass for a step: let those "
                "of all micro-batches but the last run within model.no_sync()"
            )
        backwards = self.context.backwards + 1 if self._accumulation.begin_pass() else 0
        if backwards != self.context.backwards:
            self._change_context(backwards=backwards)
        if self._has_begun and self.algorithm.replaces_weights(self.context):
            self._changes.check_begin()
            self._unseen.check(self.context.buckets)
        self._changes.note_backward()

    def _look_at_others(self, parameter: nn.Parameter | None) -> None:
        """What nobody has cleared since the last step, now that `parameter` has a gradient."""
        if self._scaled is not None:
            self._scaled.clear_overflow_()
        if self._uncleared is not None:
            self._uncleared.look(parameter)

    def _is_first(self, parameter: nn.Parameter | None) -> bool:
        return self.backward.is_first(parameter, looks_at_values=self._sees_all_gradients)

    def _end_backward(self) -> list[nn.Parameter]:
        """All gradients are there; returns the parameters that have got none."""
        self._has_begun = False
        self._changes.check_backward()
        self._accumulation.note_synchronized()
        self._changes.check_requires_grad()
        return self.backward.end()

    def _end_pass(self) -> bool:
        """Let the algorithm act on all gradients; returns whether an average replaces weights."""
        replaces = self.algorithm.replaces_weights(self.context)
        self._act("on_backward_end")
        if replaces:  # after several passes, weights may be put back to what the first has made
            looks_at_values = self._looks_at_values and not self.context.backwards
            self._changes.note_replaced(looks_at_values=looks_at_values)
        return replaces

    @property
    def _looks_at_values(self) -> bool:
        return self._holds_weights and self.context.step < NUM_STEPS

    def _note_met(self) -> None:
        """Workers have met in this backward pass, and all is written."""
        if self.algorithm.keeps_unsent or self.algorithm.takes_one_backward:
            self.backward.note_pass()

    def _act_where_step_begins(self) -> None:
        """Once a step, also where one is tried again that an error has broken off."""
        self._changes.check_gradients()
        if self.dispatcher.acts_at("on_step_begin") and not self._accumulation.has_acted:
            self.algorithm.check_gradients(self.context)
            self.backward.keep_gradients()
            self._act("on_step_begin")
            self._accumulation.note_acted()

    @property
    def _needs_backward(self) -> bool:
        """Whether workers meet in the backward pass of this step."""
        needs = self.algorithm.meets_in_backward(self.context.step)
        return needs and self.dispatcher.acts_on_gradients

    @property
    def _remembers(self) -> bool:
        """Whether the algorithm's results depend on the scale of gradients; a mean takes any."""
        others = ("on_forward", "on_backward_end", "on_step_end")
        return self.context.state is not None or any(map(self.dispatcher.acts_at, others))

    @abstractmethod
    def _act(self, moment: str) -> None:
        """Let the algorithm act at a moment of all buckets, and wait for it."""

    @abstractmethod
    def _before_begin(self) -> None:
        """A step begins: the algorithm is about to act on the weights."""

    @abstractmethod
    def _after_backward(self) -> None:
        """A backward pass in which workers meet has computed all gradients."""

    def _change_context(self, **changes: Any) -> None:
        self.context = replace(self.context, **changes)

    def _init_state(self) -> None:
        self._change_context(state=checked(self.algorithm.init(self.context)))

    def _attach_to(self, optimizer: Optimizer) -> list[RemovableHandle]:
        def act(moment: str) -> None:
            getattr(self.algorithm, moment)(self.context)
            self._after_own_moment()

        self._unseen = UnseenChanges()
        encodes_buckets = self.algorithm.depends_on_buckets and self.dispatcher.acts_on_gradients
        # FSDP2 gives a unit its gradients at once: nobody knows which have been there before.
        if encodes_buckets and self._sees_all_gradients:
            self._uncleared = UnclearedGradients(
                *(self.model, self.context.buckets, optimizer, self.backward.is_left),
                encoder=type(self.algorithm).__name__,
            )
        backward = self.backward
        self._others = OtherOptimizers(
            *(self.model, optimizer, backward.parameters),
            may_step=not self.dispatcher.acts_on_weights,
            num_passes=lambda: backward.num_passes,
            check_gradients=weakly(self._check_gradients_of_other),
            after_step=weakly(self._note_other_step),
        )
        self._others.attach()
        if self.algorithm.keeps_weights:
            are_shards = not self._holds_weights
            self._loaded = LoadedWeights(self.model, self._held_weights, are_shards=are_shards)
        step_end = optimizer.register_step_post_hook(self._end_step)
        run_first(optimizer, step_end)  # a script's come after the algorithm
        return [
            *(self._loaded.attach(self._on_load) if self._loaded is not None else []),
            optimizer.register_step_pre_hook(self._before_step),
            step_end,
            optimizer.register_state_dict_pre_hook(lambda _: act("on_optimizer_save")),
            optimizer.register_state_dict_post_hook(lambda *_: act("on_optimizer_saved")),
            optimizer.register_load_state_dict_post_hook(lambda _: act("on_optimizer_loaded")),
        ]

    def _before_step(
        self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]] | None:
        if is_within_own_step(optimizer) or saving_by_torch():
            return None
        self._refuse_within_consensus()
        self._changes.check_optimizer()
        if self._loaded is not None:
            if self._needs_backward:  # workers train together still: no picture is looked at
                self._loaded.accept()
            self._loaded.check()
        return self._closure.before_step(args, kwargs)

    def _refuse_within_consensus(self) -> None:
        if self.is_consensus:
            raise ValueError(
                "an optimizer steps within consensus(), where the weights are the mean of all "
                "workers', so that the step would be lost where these differ: evaluate and save "
                "there, and train after it"
            )

    def _end_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if not is_within_own_step(optimizer) and not saving_by_torch():
            self._closure.after_step()
            self._accumulation.note_step()
            self._after_step()
            self.backward.note_gradients()
            for listener in filter(None, (self._loaded, self._uncleared)):
                listener.note_step()

    def _check_gradients_of_other(
        self, parameters: list[nn.Parameter], *, is_pass_new: bool
    ) -> None:
        """Another optimizer, of these among others, steps by their gradients, which are there:
        raise `ValueError` where they are those of one worker alone. `is_pass_new`: workers have met
        in a backward pass since its last step.
        """
        if saving_by_torch():
            return
        self._refuse_within_consensus()
        if any(parameter.grad is not None for parameter in parameters):
            self._accumulation.check_step()
        if self._holds_weights and self._needs_backward and not is_pass_new:
            elsewhere = next(filter(self.backward.is_elsewhere, parameters), None)
            self._changes.refuse_gradient(elsewhere)

    def _note_other_step(self, parameters: list[nn.Parameter]) -> None:
        """Another optimizer, of these among others, has taken its step."""
        if saving_by_torch():
            return
        if self.algorithm.keeps_unsent:
            self.backward.note_used(parameters)
        if self._uncleared is not None:
            self._uncleared.note_used(parameters)
        if not self._overflowed and any(p.grad is not None for p in parameters):
            self._count_step(is_others=True)

    def _count_step(self, *, is_others: bool = False) -> None:
        if self._accumulation.is_new_step(is_others=is_others):
            self._change_context(step=self.context.step + 1)

    def _on_load(self, state: Mapping[str, Any]) -> None:
        """A part of the model is about to load weights; those of the consensus go away anyway."""
        if self._loaded is not None and not self.is_consensus:
            self._loaded.note(state)

    def _held_weights(self) -> Sequence[Tensor]:
        """All that is trained here, as the model has it now."""
        self._changes.take_back_weights()
        return self.backward.parameters

    @abstractmethod
    def _after_own_moment(self) -> None:
        """The algorithm has acted on the caller's thread, and may have changed weights."""

    @abstractmethod
    def _after_step(self) -> None:
        """The optimizer has taken its step."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What a state belongs to, in words for errors."""

"""What a script does to a distributed model and its optimizer, behind the engine's back.

Weights live in buckets. A script may give a parameter other memory (`vector_to_parameters`,
`.double().float()`, `.to(memory_format=...)`, `parameter.data = ...`), replace it, or train it by
another optimizer. Whatever can be taken back is; anything else is refused by the parameter's name.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.call_stack import running
from bagua_algos.engine.consensus import outside_inference_mode
from bagua_algos.engine.script.own_storage import find_overlap, has_memory, is_shared, lies_in

AGAIN = "release() the model and distribute() it again"
_THROWN_AWAY = (
    "the gradients of the last backward pass were thrown away before a step, and what its error "
    "feedback did not send of them would reach the weights all the same: let a backward pass whose "
    "gradients nobody uses run within model.no_sync(), or with requires_grad_(False) on the model; "
    "clip gradients that are too large, leave a batch out by its loss, and after another "
    "optimizer's step call the zero_grad() of that optimizer alone"
)


class ScriptChanges:
    """Notices what a script changes after `distribute`, at the next step at the latest.

    Args:
        model: holds the parameters, and knows their names.
        optimizer: the one that was distributed with the model.
        buckets: where the trainable parameters are by now.
        allows_other_optimizers: whether another optimizer may update weights in the buckets: yes
            where an algorithm only averages gradients, no where it acts on weights or at a step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        buckets: Sequence[Bucket],
        *,
        allows_other_optimizers: bool,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._buckets = buckets
        self._allows_others = allows_other_optimizers
        self._distributed = {p for bucket in buckets for p in bucket.parameters}
        self._requires_grad = {p: p.requires_grad for p in model.parameters()}
        self._optimized = _parameters_of(optimizer)
        self._approved: weakref.WeakKeyDictionary[Optimizer, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._has_warned = False
        self._is_forward = False
        self._note_addresses()

    def attach(self, on_other_step: Callable[[list[nn.Parameter]], None]) -> None:
        """Look at every optimizer before it steps. `on_other_step` is given the parameters of each
        that is not the distributed one, after its step.
        """
        self._on_other_step = on_other_step
        _hook_all_optimizers()
        _LOOKING.add(self)

    def detach(self) -> None:
        """No longer."""
        _LOOKING.discard(self)

    def take_back_weights(self) -> None:
        """Weights that are somewhere else are copied into their buckets, and live there again.

        Raises `ValueError` where one has another type, device or shape by now, or memory that is
        not its own, or where a script keeps the place that is to be written to.
        """
        if [parameter.data_ptr() for parameter in self._living] != self._addresses:
            with outside_inference_mode():
                self._take_back()

    def _take_back(self) -> None:
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                self._check_is_as_before(parameter, bucket)
        pairs = zip(self._living, self._addresses, strict=True)
        moved = {p: None for p, address in pairs if p.data_ptr() != address}
        self._leave_each_others_places(moved)
        self._refuse_kept(moved)
        for bucket in self._buckets:
            before = [parameter.stride() for parameter in bucket.parameters]
            bucket.adopt_weights()
            if [parameter.stride() for parameter in bucket.parameters] != before:
                warnings.warn(
                    "weights of a distributed model keep their memory format: call "
                    "model.to(memory_format=...) before distribute() for the one that is faster",
                    stacklevel=3,
                )
        self._note_addresses()

    def move_to(self, buckets: Sequence[Bucket]) -> None:
        """The same parameters are in other buckets from here on."""
        self._buckets = buckets
        self._note_addresses()

    def note_begin(self) -> None:
        """A step begins at a forward, at which the algorithm acts on the weights."""
        self._begun = [parameter._version for parameter in self._living]
        self._is_forward = True
        self._by_forward: nn.Parameter | None = None

    def note_forward_end(self) -> None:
        """A forward has ended: what has changed since `note_begin`, if that was the same forward's,
        the model has changed itself.
        """
        if self._is_forward:
            self._by_forward = self._changed_since(self._begun)
        self._is_forward = False

    def check_begin(self) -> None:
        """A backward pass begins: raise `ValueError` where a weight that an average is about to
        replace was changed in place since `note_begin`, or got other memory.
        """
        if self._by_forward is not None:
            raise ValueError(
                f"{self._name(self._by_forward)} was changed by the model's own forward pass, such "
                "as by nn.Embedding(max_norm=...), while its average with other workers' travelled "
                "that replaces it: make the change after the optimizer's step, or take "
                "SGP(overlap=True), which keeps it"
            )
        parameter = self._changed_since(self._begun)
        if (parameter := self._moved() if parameter is None else parameter) is not None:
            raise ValueError(
                f"{self._name(parameter)} was changed after a forward pass in training mode, "
                "at which its average with other workers' began to travel, and would be lost: "
                "change or load weights before that forward pass, or after its backward pass and "
                "the optimizer's step; call bagua_algos.load_state_dict after loads; and run a "
                "forward pass that trains nothing under torch.no_grad()"
            )

    def _moved(self) -> nn.Parameter | None:
        """A weight that is somewhere else by now."""
        pairs = zip(self._living, self._addresses, strict=True)
        return next((p for p, address in pairs if p.data_ptr() != address), None)

    def note_backward(self) -> None:
        """A backward pass in which workers meet has begun."""
        self._versions = [parameter._version for parameter in self._living]

    def check_backward(self) -> None:
        """It has ended: raise `ValueError` where a weight was changed meanwhile in place, but for
        changes through `parameter.data`, of which torch keeps no count.
        """
        if (parameter := self._changed_since(self._versions)) is not None:
            raise ValueError(
                f"{self._name(parameter)} was changed during backward, before workers have "
                "averaged its gradient: take the hook that does so away, and call the "
                "distributed optimizer's step() after backward()"
            )

    def check_optimizer(self) -> None:
        """Raise `ValueError` where the optimizer has got parameters that are in no bucket, or has
        lost some. A new group of parameters that are in buckets is fine.
        """
        now = _parameters_of(self._optimizer)
        if _are_same(now, self._optimized):
            return
        for parameter in now:
            if parameter not in self._distributed and parameter.requires_grad:
                raise ValueError(
                    f"{self._name(parameter)} was added to the optimizer after the model was "
                    f"distributed, so that each worker would train it apart: {AGAIN}"
                )
        if not _are_same(now[: len(self._optimized)], self._optimized):
            raise ValueError(
                "the optimizer's parameters were replaced or put into another order after the "
                f"model was distributed: {AGAIN}"
            )
        self._optimized = now

    def check_requires_grad(self) -> None:
        """Raise `ValueError` where a parameter's `requires_grad` is not what it was."""
        for parameter, required in self._requires_grad.items():
            if parameter.requires_grad != required:
                raise ValueError(
                    f"{self._name(parameter)} was {'frozen' if required else 'unfrozen'} after the "
                    "model was distributed: release() the model, change requires_grad, and "
                    "distribute() it again"
                )

    def check_are_the_models(self, left_out: Iterable[nn.Parameter]) -> None:
        """Raise `ValueError` where one of these, to which no backward pass has given a gradient, is
        no longer the model's: it was replaced by another, which no optimizer knows, or taken out.
        """
        if not left_out:
            return
        own = set(self._model.parameters())
        for parameter in left_out:
            if parameter not in own:
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} was replaced after the model "
                    "was distributed (load_state_dict(assign=True) does, or a new layer), or taken "
                    f"out of it: {AGAIN}"
                )

    def refuse_gradient(self, of: nn.Parameter | None) -> None:
        """Raise `ValueError` for this parameter's gradient, which no backward pass has made."""
        if of is not None:
            raise ValueError(
                f"{self._name(of)} has a gradient that no backward pass of the distributed model "
                "has made, so that each worker would take a step of its own: call backward() on "
                "the distributed model's loss, or average the gradients and use a plain model"
            )

    def refuse_thrown_away(self) -> None:
        """Raise `ValueError`: a backward pass begins whose predecessor's gradients are gone, and no
        step has used them.
        """
        raise ValueError(_THROWN_AWAY)

    def warn_of_thrown_away(self) -> None:
        """The same as a warning, once."""
        if not self._has_warned:
            warnings.warn(_THROWN_AWAY, stacklevel=2)
        self._has_warned = True

    def _changed_since(self, versions: Sequence[int]) -> nn.Parameter | None:
        """The first weight that was changed in place since it had its one of these versions."""
        pairs = zip(self._living, versions, strict=True)
        return next((p for p, version in pairs if p._version != version), None)

    def _before_any_step(self, optimizer: Optimizer) -> None:
        is_within_backward = torch._C._current_graph_task_id() != -1
        if optimizer is self._optimizer and not is_within_backward:
            return
        parameters = _parameters_of(optimizer)
        if is_within_backward:
            self._refuse_within_backward(parameters)
        known = [id(parameter) for parameter in parameters]
        if self._approved.get(optimizer) == known:
            return
        own = set(self._model.parameters()) | self._distributed
        for parameter in parameters:
            if parameter in own and parameter.requires_grad and not self._is_allowed(parameter):
                raise ValueError(
                    f"{self._name(parameter)} belongs to a distributed model, and another "
                    "optimizer is about to change it, which the algorithm would not hear of: give "
                    "it to the distributed optimizer, in a group of its own if it needs other "
                    "options"
                )
        self._approved[optimizer] = known

    def _after_any_step(self, optimizer: Optimizer) -> None:
        if optimizer is not self._optimizer:
            self._on_other_step(_parameters_of(optimizer))

    def _refuse_within_backward(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter in self._distributed:
                raise ValueError(
                    f"an optimizer steps {self._name(parameter)} during backward, by a gradient "
                    "that workers have not averaged yet: take the hook that calls it away, and "
                    "call the distributed optimizer's step() after backward()"
                )

    def _is_allowed(self, parameter: nn.Parameter) -> bool:
        return self._allows_others and parameter in self._distributed

    def _check_is_as_before(self, parameter: nn.Parameter, bucket: Bucket) -> None:
        home = bucket.weights
        num_elements = parameter.numel() * parameter.element_size()
        if (parameter.dtype, parameter.device) != (home.dtype, home.device):
            raise ValueError(
                f"{self._name(parameter)} is {_kind(parameter)} now and was {_kind(home)} when the "
                "model was distributed: release() the model, change it, and distribute() it again"
            )
        if num_elements != self._sizes[parameter]:
            raise ValueError(
                f"{self._name(parameter)} has the shape {tuple(parameter.shape)} now, another than "
                f"when the model was distributed: {AGAIN}"
            )

    def _refuse_kept(self, moved: Iterable[nn.Parameter]) -> None:
        """Raise `ValueError` where somebody has the place yet to which one would return: the
        script, to put the old values back, or a graph that computes gradients by them.
        """
        for parameter in moved:
            if parameter in self._places and not self._places[parameter].expired():
                raise ValueError(
                    f"{self._name(parameter)} was given other memory while its old one, which lies "
                    "in a bucket, is kept (as p.data, by a state_dict(), or for a backward pass) "
                    "and would be overwritten: keep a clone() of it, del what keeps it, or change "
                    "weights by copy_()"
                )

    def _leave_each_others_places(self, moved: Iterable[nn.Parameter]) -> None:
        """What has moved to where another weight belongs, as where two were swapped, is copied: its
        values would be overwritten there.
        """
        everything = [*self._living, *self._model.parameters(), *self._model.buffers()]
        rest = {x: None for x in everything if x not in moved}
        pair = find_overlap(moved, rest)
        if pair is not None:
            raise ValueError(
                f"{self._name(pair[0])} was given the memory of another parameter or buffer after "
                "the model was distributed, and would be parted from it: release() the model, make "
                "them one Parameter, and distribute() it again, or give it a clone()"
            )
        for parameter in moved:
            if is_shared(parameter):
                raise ValueError(
                    f"{self._name(parameter)} was put into memory that other processes share after "
                    "the model was distributed, and would leave it: give the others a copy, such "
                    "as copy.deepcopy(model), and have them load its state_dict()"
                )
            if any(lies_in(parameter, bucket.weights) for bucket in self._buckets):
                parameter.data = parameter.data.clone()

    def _note_addresses(self) -> None:
        self._living = [p for bucket in self._buckets for p in bucket.parameters if p.numel()]
        self._addresses = [parameter.data_ptr() for parameter in self._living]
        held = [parameter for parameter in self._living if has_memory(parameter)]
        self._places = {p: StorageWeakRef(p.untyped_storage()) for p in held}
        self._sizes = {p: p.numel() * p.element_size() for p in self._distributed}

    def _name(self, parameter: Tensor) -> str:
        names: dict[Tensor, str] = {p: name for name, p in self._model.named_parameters()}
        shape = tuple(parameter.shape)
        return (
            f"{names[parameter]!r} of shape {shape}"
            if parameter in names
            else (f"a parameter of shape {shape}")
        )


_LOOKING: weakref.WeakSet[ScriptChanges] = weakref.WeakSet()


@cache
def _hook_all_optimizers() -> None:
    """One pair of hooks for all, which stays: torch forbids that the garbage collector, which may
    come at any time, removes one of these hooks while others run.
    """

    def before(optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        for changes in list(_LOOKING):
            changes._before_any_step(optimizer)

    def after(optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        for changes in list(_LOOKING):
            changes._after_any_step(optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def check_is_not_wrapped(model: nn.Module) -> None:
    """Raise `ValueError` where torch's own wrappers already average the gradients of `model`."""
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, DistributedDataParallel) or name == "FullyShardedDataParallel":
            raise ValueError(
                f"the model is wrapped in {name}, which averages gradients itself: "
                "distribute the plain model in its place"
            )


def check_is_called_plainly() -> None:
    """Raise `ValueError` where a forward runs within DistributedDataParallel's."""
    if running(DistributedDataParallel.forward):
        raise ValueError(
            "a distributed model was wrapped in DistributedDataParallel, which would average its "
            "gradients once more: call the model itself"
        )


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _are_same(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return len(these) == len(those) and all(a is b for a, b in zip(these, those, strict=True))


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} on {x.device}"

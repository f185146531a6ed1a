"""What a script does to a distributed model and its optimizer, behind the engine's back.

Weights live in buckets. A script may give a parameter other memory (`vector_to_parameters`,
`.double().float()`, `.to(memory_format=...)`, `parameter.data = ...`), or replace it. Whatever can
be taken back is; anything else is refused by the parameter's name.
"""

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.jit._script import RecursiveScriptModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.call_stack import running
from bagua_algos.engine.consensus import outside_inference_mode
from bagua_algos.engine.script.own_storage import (
    find_overlap,
    has_memory,
    is_shared,
    lies_in,
    move_into,
    others_hold,
)
from bagua_algos.engine.script.unseen import PutBack

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
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, buckets: Sequence[Bucket]) -> None:
        self._model = model
        self._optimizer = optimizer
        self._buckets = buckets
        self._distributed = {p for bucket in buckets for p in bucket.parameters}
        self._insides = {p: p._cdata for p in self._distributed}  # which swap_tensors exchanges
        self._requires_grad = {p: p.requires_grad for p in model.parameters()}
        self._had_gradient = {p for p in model.parameters() if p.grad is not None}
        self._note_optimized(parameters_of(optimizer))
        self._has_warned = False
        self._is_forward = False
        self._put_back = PutBack()
        self._note_addresses()

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

    def put_back_weights(self) -> None:
        """Weights that are somewhere else live in their buckets again, and are what these hold:
        what they were elsewhere is dropped.

        Raises `ValueError` where one has another size by now.
        """
        with outside_inference_mode():
            for bucket in self._buckets:
                for parameter in bucket.parameters:
                    self._check_has_as_many(parameter)
                for parameter, view in zip(
                    bucket.parameters, bucket.views(bucket.weights), strict=True
                ):
                    if parameter.data_ptr() != view.data_ptr() or parameter.dtype != view.dtype:
                        move_into(parameter, view)
        self._note_addresses()

    def held_weight(self) -> str | None:
        """The name of a parameter whose memory another tensor has, too; None if there is none."""
        held = (p for p in self._living if has_memory(p) and others_hold(p))
        return next(map(self._name, held), None)

    def move_to(self, buckets: Sequence[Bucket]) -> None:
        """The same parameters are in other buckets from here on."""
        self._buckets, self._put_back = buckets, PutBack()
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

    def note_step(self) -> None:
        """A step has ended, and an average may replace the weights before the next one."""
        self._put_back.note_step(self._buckets)

    def note_replaced(self, *, looks_at_values: bool) -> None:
        """A backward pass has ended, and an average has replaced the weights."""
        # Else another pass through a graph of before would compute with the new ones.
        torch.autograd.graph.increment_version(self._living)
        if looks_at_values:
            self._put_back.note_average(self._buckets)

    def check_replaced(self) -> None:
        """A step begins, and weights are in their buckets: raise `ValueError` where a script has
        put those of before the average back.
        """
        if (parameter := self._put_back.find(self._buckets)) is not None:
            raise ValueError(
                f"{self._name(parameter)} was put back between backward() and the optimizer's "
                "step to what the last step had left, and so its average with other workers' was "
                "undone: compute with other weights, such as binarized ones, by "
                "torch.nn.utils.parametrize; or take SGP(), which averages after the step"
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
        now = parameters_of(self._optimizer)
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
        self._note_optimized(now)

    def check_gradients(self) -> None:
        """A step begins: raise `ValueError` where a gradient is of a parameter that was frozen, or
        came later. No backward pass need tell of it: workers hear of those in buckets alone.
        """
        for parameter in self._frozen:
            is_new = parameter.requires_grad or parameter not in self._had_gradient
            if parameter.grad is not None and is_new:
                raise ValueError(
                    f"{self._name(parameter)} has a gradient, which is of this worker alone, since "
                    "it was frozen or not there when the model was distributed: release() the "
                    "model, change requires_grad, and distribute() it again"
                )

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
            if of._cdata != self._insides.get(of):
                raise ValueError(
                    f"{self._name(of)} has lost its hooks, since torch.utils.swap_tensors or "
                    f"set_swap_module_params_on_conversion has put another into its place: {AGAIN}"
                )
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

    def _check_is_as_before(self, parameter: nn.Parameter, bucket: Bucket) -> None:
        home = bucket.weights
        if (parameter.dtype, parameter.device) != (home.dtype, home.device):
            raise ValueError(
                f"{self._name(parameter)} is {_kind(parameter)} now and was {_kind(home)} when the "
                "model was distributed: release() the model, change it, and distribute() it again"
            )
        self._check_has_as_many(parameter)

    def _check_has_as_many(self, parameter: nn.Parameter) -> None:
        if parameter.numel() != self._sizes[parameter]:
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

    def _note_optimized(self, parameters: list[nn.Parameter]) -> None:
        self._optimized = parameters
        self._frozen = [p for p in parameters if not self._requires_grad.get(p)]

    def _note_addresses(self) -> None:
        self._living = [p for bucket in self._buckets for p in bucket.parameters if p.numel()]
        self._addresses = [parameter.data_ptr() for parameter in self._living]
        held = [parameter for parameter in self._living if has_memory(parameter)]
        self._places = {p: StorageWeakRef(p.untyped_storage()) for p in held}
        self._sizes = {p: p.numel() for p in self._distributed}

    def _name(self, parameter: Tensor) -> str:
        return named(self._model, parameter)


def named(model: nn.Module, parameter: Tensor) -> str:
    """A parameter of `model`, or one that it had, in words for errors."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    shape = tuple(parameter.shape)
    known = parameter in names
    return f"{names[parameter]!r} of shape {shape}" if known else f"a parameter of shape {shape}"


def check_is_not_wrapped(model: nn.Module) -> None:
    """Raise `ValueError` where torch's own wrappers already average the gradients of `model`, or
    it is torch.jit.script's, which takes no hooks. A part of it may be.
    """
    if isinstance(model, RecursiveScriptModule):
        raise ValueError(
            "the model was made by torch.jit.script or torch.jit.load, and takes no hooks around "
            "its forward passes: distribute the plain model, or one that has it as a part"
        )
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


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _are_same(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return len(these) == len(those) and all(a is b for a, b in zip(these, those, strict=True))


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} on {x.device}"

"""`fuse_optimizer`: an elementwise optimizer steps once for many parameters.

A step of torch costs some microseconds an operation and parameter, whatever their size. Here the
optimizer sees a strip of neighbouring parameters as one flat tensor (`bagua_algos.fused.strips`),
with the same arithmetic on every element. Its groups, its state and its `state_dict` are outside of
a step what they are without.
"""

import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from bagua_algos.engine.bucket import Bucket, flat_storage
from bagua_algos.engine.script.elementwise import why_not_elementwise
from bagua_algos.engine.script.own_storage import has_memory, is_shared, move_into, others_hold
from bagua_algos.fused.homes import Homes
from bagua_algos.fused.strips import (
    can_be_flat,
    find_stacked,
    find_strips,
    of_own_rows,
)

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

_ATTRIBUTE = "_bagua_fusion"
_OWN = ("params", "fused")
"""What a group has otherwise within a step."""
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def fuse_optimizer(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Let `optimizer` step once for many parameters; returns the same optimizer.

    Weights and states are bit for bit those without. Parameters that own their memory move into one
    flat tensor for each group, type and device; `distribute` has put them into buckets already.
    Gradients that are not neighbours are copied together at each step, which takes as much memory
    once more. Parameters without a gradient, sparse ones and those without dimensions are treated
    as usual.

    Returns:
        `optimizer` itself.

    Raises:
        ValueError: the optimizer looks at whole tensors, such as LAMB, LARS, Muon or LBFGS; it has
            fused=True, whose kernels round the last elements of a tensor otherwise; or a script
            has put another `step` on it.
    """
    if is_fused(optimizer):
        return optimizer
    reason = _why_not(optimizer)
    if reason is not None:
        raise ValueError(f"{type(optimizer).__name__} cannot be fused: {reason}")
    homes, shared = Homes(), _shared(p for group in optimizer.param_groups for p in group["params"])
    for group in optimizer.param_groups:
        _move_together([p for p in group["params"] if p not in shared], homes)
    _attach(optimizer, homes)
    return optimizer


def fuse_in(buckets: Sequence[Bucket], optimizer: Optimizer, *, agree: bool) -> bool:
    """Let `optimizer` step once for the parameters of each of `buckets`, if that changes no bit;
    whether it is fused by this, and was not before. Its parameters stay where they are.

    Of several workers, the rows of a bucket are one tensor, and torch's kernels with fused=True,
    where the optimizer has some for the CPU, go through memory once: values agree to rounding. If
    workers `agree` in weights, gradients and states, one row is stepped and the others are copies.

    Without having been asked to it fuses torch's own classes alone. Others may do in a step what no
    trial can show, such as talking to other workers: those that `fuse_optimizer` has fused stay so.
    """
    fusion = vars(optimizer).get(_ATTRIBUTE)
    if fusion is None and not fuses_in(optimizer):
        return False
    known = Homes()
    for home in flat_storage(buckets):
        known.add(home)
    stacked = [bucket for bucket in buckets if len(bucket.weights) > 1]
    if fusion is None:
        _attach(optimizer, known, stacked, agree=agree)
    else:  # its parameters have moved
        fusion.homes, fusion.stacked, fusion.agree = known, stacked, agree
    return fusion is None


def fuses_in(optimizer: Optimizer) -> bool:
    """Whether `fuse_in` fuses it without having been asked to."""
    return _is_torchs(optimizer) and _why_not(optimizer) is None


def is_fused(optimizer: Optimizer) -> bool:
    """Whether `fuse_optimizer` was called with it, and `unfuse_optimizer` was not since."""
    return _ATTRIBUTE in vars(optimizer)


def unfuse_optimizer(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Let `optimizer` step as it did before `fuse_optimizer`; returns the same optimizer.

    Its state gets memory of its own again. Weights stay where they are.
    """
    fusion = vars(optimizer).pop(_ATTRIBUTE, None)
    if fusion is not None:
        fusion.detach(optimizer)
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
    return optimizer


def _why_not(optimizer: Optimizer) -> str | None:
    if _has_other_step(optimizer):
        return "its step was replaced by another, which would be left out: replace it afterwards"
    for group in optimizer.param_groups:
        if options := _unfit(group):
            return f"it has {options[0]}=True: leave that out"
    reason = why_not_elementwise(optimizer, exactly=True)
    if reason is None:
        return None
    return f"{reason}; leave it as it is, or choose an elementwise one such as SGD or AdamW"


def _unfit(group: dict[str, Any]) -> list[str]:
    """Options with which a group is stepped as usual; a loaded state may bring them."""
    return [option for option in ("fused", "differentiable") if group.get(option)]


def _has_other_step(optimizer: Optimizer) -> bool:
    """Whether somebody has put a `step` on this very object. What a learning rate scheduler puts
    there calls the one before, and notes that it was called.
    """
    step: Any = vars(optimizer).get("step")
    while getattr(step, "__globals__", None) is vars(lr_scheduler):
        step = step.__wrapped__
    if step is None:
        return False
    is_of_other = getattr(step, "__self__", optimizer) is not optimizer
    return is_of_other or getattr(step, "__func__", step) is not type(optimizer).step


def _is_torchs(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]


def _attach(
    optimizer: Optimizer, homes: Homes, stacked: Sequence[Bucket] = (), *, agree: bool = False
) -> None:
    vars(optimizer)[_ATTRIBUTE] = fusion = _Fusion(optimizer, homes, stacked, agree=agree)
    fusion.attach(optimizer)


class _Fusion:
    """The fused steps of one optimizer: in `homes`, and in `stacked` buckets of several workers,
    which may `agree`.
    """

    def __init__(
        self, optimizer: Optimizer, homes: Homes, stacked: Sequence[Bucket], *, agree: bool
    ) -> None:
        self.homes, self.stacked, self.agree = homes, stacked, agree
        step = type(optimizer).step
        # Ours runs the hooks, around it.
        self._plain: Callable[..., Any] = getattr(step, "__wrapped__", step)
        self._known: dict[int, _Group] = {}
        self._before: Any = vars(optimizer).get("step")

    def attach(self, optimizer: Optimizer) -> None:
        """Take the place of the optimizer's `step`. Its class stays."""
        step = Optimizer.profile_hook_step(_fused_step)
        # Schedulers look whether it is there: they are told of steps below.
        vars(step)["_wrapped_by_lr_sched"] = True
        vars(optimizer)["step"] = MethodType(step, optimizer)
        self._hook = optimizer.register_state_dict_post_hook(_with_own_rows)

    def detach(self, optimizer: Optimizer) -> None:
        """Give the place back, unless somebody has wrapped ours: then it does a plain step."""
        self._hook.remove()
        own = vars(optimizer).get("step")
        if getattr(getattr(own, "__func__", None), "__wrapped__", None) is _fused_step:
            del vars(optimizer)["step"]
            if self._before is not None:
                vars(optimizer)["step"] = self._before

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None, **options: Any) -> Any:
        if closure is None:
            with self._flat(optimizer):
                return self._plain(optimizer, **options)
        with torch.enable_grad():  # gradients must be there before they can be put together
            loss = closure()
        with self._flat(optimizer):
            return self._plain(optimizer, _Called(optimizer, loss), **options)

    @contextmanager
    def _flat(self, optimizer: Optimizer) -> Iterator[None]:
        """Within, the optimizer has a flat tensor in place of the parameters of each strip."""
        groups, states = optimizer.param_groups, optimizer.state
        hooks = {name: hooks for name, hooks in vars(optimizer).items() if name in _STEP_HOOKS}
        given = [{name: group[name] for name in _OWN if name in group} for group in groups]
        found = [self._group(index, group, states) for index, group in enumerate(groups)]
        flat: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        strips = [strip for group in found for strip in group.strips]
        for strip in strips:
            state = strip.begin()
            if state:
                flat[strip.weights] = state
        rest = [p for group in found for p in group.rest]
        flat.update({p: states[p] for p in rest if p in states})
        try:
            for group, part in zip(groups, found, strict=True):
                group["params"] = [*(strip.weights for strip in part.strips), *part.rest]
                if part.is_for_kernels and _has_kernels(group):
                    group["fused"] = True
            optimizer.state = flat
            # A step that calls super().step() would run them once more, on flat tensors.
            vars(optimizer).update({name: OrderedDict() for name in hooks})
            yield
        finally:
            optimizer.state = states
            vars(optimizer).update(hooks)
            for group, before in zip(groups, given, strict=True):
                group.update(before)
            with ExitStack() as ends:  # all of them, last first, also where one raises
                ends.callback(states.update, {p: flat[p] for p in rest if p in flat})
                for strip in reversed(strips):
                    ends.callback(strip.end, flat.get(strip.weights, {}), states)

    def _group(self, index: int, group: dict[str, Any], states: Any) -> "_Group":
        parameters: list[nn.Parameter] = group["params"]
        layout: list = [(p.data_ptr(), p.is_contiguous(), _kind(p.grad)) for p in parameters]
        layout += _unfit(group)
        known = self._known.get(index)
        if (
            known is None
            or known.layout != layout
            or not all(map(operator.is_, known.parameters, parameters))
            or not all(strip.is_current(states) for strip in known.strips)
        ):
            known = self._known[index] = _Group(group, layout, states, self)
        return known


class _Group:
    """The strips of one parameter group, as long as it is laid out as now."""

    def __init__(self, group: dict[str, Any], layout: list, states: Any, fusion: _Fusion) -> None:
        parameters: list[nn.Parameter] = group["params"]
        self.parameters = list(parameters)
        self.layout = layout
        self.strips = find_stacked(parameters, states, fusion.stacked, agree=fusion.agree)
        self.rest: list[nn.Parameter] = []
        self.is_for_kernels = bool(self.strips)
        """Whether torch's kernels, which take no gaps, may have all of it."""
        if not self.strips:
            for parameter in parameters:
                if parameter in states:
                    states[parameter].update(of_own_rows(states[parameter]))
            if _unfit(group):
                self.rest = [p for p in parameters if p.grad is not None]
            else:
                self.strips, self.rest = find_strips(parameters, states, fusion.homes)


class _Called:
    """Stands for a closure that was called before the step; raises `ValueError` where a step calls
    it again, or after it has changed weights: it would have another loss.
    """

    def __init__(self, optimizer: Optimizer, loss: Any) -> None:
        self._loss = loss
        self._weights = [p for group in optimizer.param_groups for p in group["params"]]
        self._versions = self._versions_now()

    def __call__(self) -> Any:
        if self._versions_now() != self._versions:
            raise ValueError(
                "the optimizer calls its closure on weights that it has changed in the same step, "
                "so it cannot be fused: call unfuse_optimizer() with it first"
            )
        return self._loss

    def _versions_now(self) -> list[tuple[int, int]]:
        """What is another after a change in place, and after `p.data = ...`."""
        return [(p._version, p.data_ptr()) for p in self._weights]


@torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage]
def _fused_step(self: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
    vars(self)["_opt_called"] = True  # what a scheduler asks for
    fusion = vars(self).get(_ATTRIBUTE)
    if fusion is not None:
        return fusion.step(self, closure, **options)
    step = type(self).step
    return getattr(step, "__wrapped__", step)(self, closure, **options)


def _with_own_rows(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A `state_dict` that any optimizer can go on with."""
    return saved | {"state": {key: of_own_rows(own) for key, own in saved["state"].items()}}


def _move_together(parameters: list[nn.Parameter], homes: Homes) -> None:
    """Move those that own their memory into one flat tensor for each type and device."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        num_bytes = parameter.numel() * parameter.element_size()
        is_own = parameter.untyped_storage().nbytes() == num_bytes and not is_shared(parameter)
        if parameter.requires_grad and can_be_flat(parameter) and is_own:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for alike in kinds.values():
        flat = torch.cat([p.detach().reshape(-1) for p in alike])
        homes.add(flat)
        parts = flat.split([p.numel() for p in alike])
        for parameter, part in zip(alike, parts, strict=True):
            move_into(parameter, part.view(parameter.shape))


def _shared(parameters: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """Those whose storage another one of them has, in part or as a whole, or another tensor."""
    flat = [p for p in parameters if has_memory(p)]
    shared = {p for p in flat if others_hold(p)}
    last, end = None, 0
    for p in sorted(flat, key=lambda p: p.untyped_storage().data_ptr()):
        storage = p.untyped_storage()
        if last is not None and storage.data_ptr() < end:
            shared |= {last, p}
        if storage.data_ptr() + storage.nbytes() > end:
            last, end = p, storage.data_ptr() + storage.nbytes()
    return shared


def _has_kernels(group: dict[str, Any]) -> bool:
    """Whether torch may step by its fused kernels for the CPU."""
    [*_, weights] = group["params"]
    is_real = weights.is_floating_point() and weights.device.type == "cpu"
    return is_real and "fused" in group and not group.get("foreach")


def _kind(gradient: Tensor | None) -> tuple[torch.layout, torch.dtype] | None:
    return None if gradient is None else (gradient.layout, gradient.dtype)

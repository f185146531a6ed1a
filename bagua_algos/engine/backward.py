"""Tracks which gradients of the current backward pass are final, and launches full buckets."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.call_stack import refuse_graph, refuse_reentrant
from bagua_algos.engine.script.weak_hook import GradientHook, has_one_hook, remove_dead
from bagua_algos.graph_pass import KeepsGradients, accumulates, dense

_BROKEN_OFF = (
    "the last backward pass was broken off by an error, with some buckets on their way and others "
    "not: release() the model and distribute() it again, on all workers"
)

_PASS = threading.local()
"""`number`: of the last backward pass on this thread in which workers meet."""


@runtime_checkable
class _Distributed(Protocol):
    """torch's DTensor, whose import takes long."""

    def to_local(self) -> Tensor: ...


class _Place(NamedTuple):
    """Where a parameter's gradient belongs: a view of the bucket's gradients, at an address."""

    bucket: Bucket
    view: Tensor
    address: int


class BackwardTracker(KeepsGradients):
    """Collects gradients into their buckets and launches the buckets strictly in order, each as
    early as it can.

    Args:
        buckets: all of a model's buckets.
        launch: called once a backward pass and bucket, in the order of `buckets`.
    """

    ends_first: bool
    """Whether the pass comes to this model's end before it comes to another model's, and so to its
    wait for other workers. Their models may have another order.
    """

    def __init__(self, buckets: Sequence[Bucket], launch: Callable[[Bucket], None]) -> None:
        self._buckets = buckets
        self._launch = launch
        self._lie_apart: set[int] = set()  # of parameters, by id
        self._added_apart: set[int] = set()  # of these
        self._written: set[int] = set()  # by the pass that runs
        self._num_passes = 0
        self._find_places()
        self.note_gradients()
        self.note_pass()
        self._missing: list[set[nn.Parameter]] = []
        self._came: dict[nn.Parameter, None] = {}

    def _find_places(self) -> None:
        self._places = {
            parameter: _Place(bucket, view, view.data_ptr())
            for bucket in self._buckets
            for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True)
        }

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters whose gradients are followed."""
        return list(self._places)

    @property
    def order(self) -> list[nn.Parameter]:
        """All parameters, in the order in which the last pass has finished their gradients."""
        return list(self._came | dict.fromkeys(self._places))

    def move_to(self, buckets: Sequence[Bucket]) -> None:
        """Parameters are in other buckets from here on, and so are the gradients that there are.

        Not within a backward pass.
        """
        before = self._places
        self._buckets = buckets
        self._find_places()
        for parameter, place in before.items():
            gradient = parameter.grad
            if gradient is not None and gradient.data_ptr() == place.address:
                parameter.grad = self._places[parameter].view.copy_(gradient)
        self.note_gradients()

    def note_gradients(self) -> None:
        """A step has ended: what is in the buckets by now is no gradient of a script's own."""
        self._versions = [bucket.gradients._version for bucket in self._buckets]

    def foreign_gradient(self) -> nn.Parameter | None:
        """The first parameter whose gradient comes from elsewhere than the passes before the last
        step: it is no part of its bucket, or was written there since. None of zeros is foreign.

        `gradient.data` can be written to without a trace.
        """
        for parameter, (bucket, *_) in self._places.items():
            is_written = bucket.gradients._version != self._versions[bucket.index]
            if self.is_elsewhere(parameter) or (is_written and is_any(parameter.grad)):
                return parameter
        return None

    def is_elsewhere(self, parameter: nn.Parameter) -> bool:
        """Whether it has a gradient other than zero that is no part of its bucket."""
        gradient, place = parameter.grad, self._places[parameter]
        if gradient is None or (gradient is place.view and gradient.data_ptr() == place.address):
            return False
        return gradient.is_sparse or is_any(gradient)

    def is_thrown_away(self, parameter: nn.Parameter | None) -> bool:
        """Whether gradients of the pass before are gone that no optimizer has used, now that this
        one has given the first of its own, to `parameter`, if any. What overflowed is not meant:
        no algorithm keeps it.
        """
        others = [p for p in self._unused if p is not parameter]
        is_gone = not all(map(self._is_there, others))
        if others or len(self._unused) == len(self._given) == 1:  # else what it had is not known
            is_gone = is_gone or self._are_gone(self._unused, parameter)
        return is_gone and bool(self._is_finite)

    def is_first(self, parameter: nn.Parameter | None, *, looks_at_values: bool) -> bool:
        """Whether this pass goes on from no gradient of the pass before: all are None by now, or
        zeros, if it `looks_at_values`.
        """
        return self._are_gone(self._given, parameter, looks_at_values=looks_at_values)

    def _are_gone(
        self,
        given: list[nn.Parameter],
        parameter: nn.Parameter | None,
        *,
        looks_at_values: bool = True,
    ) -> bool:
        known = [p for p in given if p is not parameter] or given
        if not any(map(self._is_there, known)):
            return True
        if not looks_at_values:
            return False
        own = None if parameter is None else self._places[parameter].bucket
        is_written = any(
            bucket.gradients._version > version + (bucket is own)  # it has been added there
            for bucket, version in zip(self._buckets, self._passed, strict=True)
        )
        return is_written and not any(is_any(p.grad) for p in known if p is not parameter)

    def _is_there(self, parameter: nn.Parameter) -> bool:
        """Whether the gradient is still that of the pass before, or has been added to it."""
        if id(parameter) in self._written:
            return False
        is_added = id(parameter) in self._added_apart and parameter.grad is not None
        return is_added or parameter.grad is self._places[parameter].view

    def is_left(self, parameter: nn.Parameter) -> bool:
        """Whether it has a gradient of the passes before, other than zero."""
        return self._is_there(parameter) and is_any(parameter.grad)

    def note_pass(self) -> None:
        """A pass has ended and workers have met: a step is next, or another pass that goes on from
        what the buckets hold.
        """
        self._passed = [bucket.gradients._version for bucket in self._buckets]
        self._added_apart.clear()
        self._given = [p for p, place in self._places.items() if p.grad is place.view]
        self._unused = self._given
        # By the next pass they may be zeros. The host asks for it where they are gone, and waits.
        self._is_finite = torch.stack([_is_finite(bucket) for bucket in self._buckets]).all()

    def note_used(self, parameters: Iterable[nn.Parameter]) -> None:
        """An optimizer that is not the distributed one has used the gradients of these."""
        used = set(parameters)
        self._unused = [p for p in self._unused if p not in used]

    @property
    def num_passes(self) -> int:
        """How many passes have begun in which workers meet."""
        return self._num_passes

    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Where a pass that workers meet in may write the gradient `[w, ...]` itself, before it is
        told of; None where there is one to be added to, where a script's own hooks are to see it,
        and on a GPU, whose other streams may still read there.
        """
        place = self._places[parameter]
        num_before = len(parameter._backward_hooks or ()) - (id(parameter) in self._lie_apart)
        is_seen = num_before > 0 or not has_one_hook(parameter)
        is_here = place.view.data_ptr() == place.address and not place.view.is_cuda
        return place.view if parameter.grad is None and is_here and not is_seen else None

    def written(self, parameter: nn.Parameter) -> None:
        """The pass that runs has written the gradient to `place_of`. Until it has ended, that is no
        gradient of the pass before.
        """
        parameter.grad = self._places[parameter].view
        self._written.add(id(parameter))

    def attach(
        self,
        on_gradient: Callable[[nn.Parameter], None],
        may_write: Callable[[], bool] | None = None,
    ) -> list[RemovableHandle]:
        """Have autograd call the method `on_gradient(parameter)` of an object, as long as that
        lives, whenever a gradient has been accumulated. The method `may_write` says whether a pass
        may write it where it belongs itself; never without.
        """
        hook = GradientHook(on_gradient, _refuse_parts, self, may_write)
        for parameter in self._places:
            remove_dead(parameter)
        hooks = [p.register_post_accumulate_grad_hook(hook) for p in self._places]
        for parameter, place in self._places.items():
            if len(place.bucket.gradients) > 1 and not place.view.is_contiguous():
                hooks.append(parameter.register_hook(self._accumulate_apart(parameter, place.view)))
                self._lie_apart.add(id(parameter))
        return hooks

    def enter(self) -> bool:
        """To be called with each gradient, before `gradient_ready`: whether it is the first of a
        backward pass, which then begins.

        Raises `ValueError` where the pass before was broken off, this one is compiled or makes a
        graph of gradients, and within reentrant activation checkpointing, torch's or another one:
        each of its many backward passes would end as if it were the last.
        """
        number = torch._C._current_graph_task_id()
        if not self._missing:
            refuse_graph()
            refuse_reentrant()
            self.begin()
            self._number = number
            self.ends_first, _PASS.number = getattr(_PASS, "number", None) != number, number
            return True
        if number != self._number:
            refuse_reentrant()
            raise ValueError(_BROKEN_OFF)
        return False

    def begin(self) -> None:
        """A backward pass begins: no gradient is final yet. Raises as `enter`."""
        if self._missing:
            raise ValueError(_BROKEN_OFF)
        self._missing = [set(bucket.parameters) for bucket in self._buckets]
        self._num_passes += 1
        self._next = 0
        self._came = {}
        self.ends_first = True

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        """`parameter.grad` is final, or will be when the script's own hooks have seen it: launch
        what has become complete.
        """
        self._launch_complete()
        self._came[parameter] = None
        self._missing[self._places[parameter].bucket.index].discard(parameter)
        if has_one_hook(parameter):
            self._launch_complete()

    def _launch_complete(self) -> None:
        while self._next < len(self._buckets) and not self._missing[self._next]:
            bucket = self._buckets[self._next]
            self._keep_gradients(bucket)
            self._launch(bucket)
            self._next += 1

    @property
    def left_out(self) -> list[nn.Parameter]:
        """Those to which the pass has given nothing so far; none before and after one."""
        return [parameter for missing in self._missing for parameter in missing]

    def end(self) -> list[nn.Parameter]:
        """The pass is over: parameters that it left out have what had accumulated before, or else a
        gradient of zero. Returns the latter.
        """
        unused = []
        for parameter in self.left_out:
            if parameter.grad is None:
                parameter.grad = self._places[parameter].view.zero_()
                unused.append(parameter)
            self.gradient_ready(parameter)
        self._launch_complete()
        self._missing = []
        self._written.clear()
        return unused

    def keep_gradients(self) -> None:
        """After a pass: what a script has put in the place of gradients is copied into the buckets,
        too, and where it has left none there are zeros.
        """
        for bucket in self._buckets:
            self._keep_gradients(bucket, may_lack=True)

    def _keep_gradients(self, bucket: Bucket, *, may_lack: bool = False) -> None:
        """Those that are somewhere else are copied into the bucket, all at once: each call from
        Python in the middle of backward takes as long as a small layer.
        """
        places = [self._places[parameter] for parameter in bucket.parameters]
        if any(place.view.data_ptr() != place.address for place in places):
            self._find_places()  # a script has given a view other memory
            places = [self._places[parameter] for parameter in bucket.parameters]
        views, gradients = [], []
        for parameter, place in zip(bucket.parameters, places, strict=True):
            gradient = parameter.grad
            if gradient is place.view:
                continue
            if gradient is None and may_lack:
                place.view.zero_()
                continue
            views.append(place.view)
            gradients.append(_checked(parameter, gradient))
            parameter.grad = place.view
        if views:
            bucket.copy_gradients_(views, gradients)

    def _accumulate_apart(
        self, parameter: nn.Parameter, view: Tensor
    ) -> Callable[[Tensor | None], Tensor | None]:
        """Several workers' rows of a bucket lie apart, where autograd wants to add up one block and
        warns (its "gradient layout contract"): there the sum is made here.
        """

        weakly, added_apart = weakref.ref(parameter), self._added_apart

        def on_incoming(gradient: Tensor | None) -> Tensor | None:
            parameter = weakly()
            if gradient is None or parameter is None or parameter.grad is not view:
                return None
            if not accumulates(parameter):
                return None
            parameter.grad = None
            added_apart.add(id(parameter))
            return gradient + view

        return on_incoming


def is_any(gradient: Tensor | None) -> bool:
    """Whether there is one that is not zero, here where it is distributed."""
    return gradient is not None and bool(held(gradient).any())


def held(x: Tensor) -> Tensor:
    """What this process holds of `x`, a distributed tensor or another one."""
    return x.to_local() if isinstance(x, _Distributed) else x


def _is_finite(bucket: Bucket) -> Tensor:
    """Whether its gradients are, padding left out: a bool of no dimension, by their sum. It reads
    once, and `isfinite` writes as much again.
    """
    gradients = bucket.gradients[:, : bucket.numel]
    dtype = torch.promote_types(gradients.dtype, torch.float32)
    return gradients.sum(dtype=dtype).isfinite()


def _refuse_parts() -> None:
    raise ValueError(
        "these parameters were of a distributed model that is gone, so no worker would hear of "
        "their gradients: keep the model, release() it before you train its parts on their own, or "
        "distribute() them anew"
    )


def _checked(parameter: nn.Parameter, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        raise ValueError(
            f"a hook has taken the gradient of a parameter of shape {tuple(parameter.shape)} "
            "away during backward, before the workers have averaged it: use it after "
            "backward(), by the distributed optimizer"
        )
    return dense(gradient)

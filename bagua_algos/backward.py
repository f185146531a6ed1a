"""Which gradients of the current backward pass are final, and when a bucket may travel."""

from collections.abc import Callable, Sequence

from torch import nn
from torch.utils.hooks import RemovableHandle

from bagua_algos.bucket import Bucket


class BackwardTracker:
    """Collects gradients into their buckets and launches the buckets strictly in order, each as
    early as it can.

    Args:
        buckets: all of a model's buckets.
        launch: called once a backward pass and bucket, in the order of `buckets`.
    """

    def __init__(self, buckets: Sequence[Bucket], launch: Callable[[Bucket], None]) -> None:
        self._buckets = buckets
        self._launch = launch
        self._places = {
            parameter: (bucket, view)
            for bucket in buckets
            for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True)
        }
        self._missing: list[set[nn.Parameter]] = []

    def attach(self, on_gradient: Callable[[nn.Parameter], None]) -> list[RemovableHandle]:
        """Have autograd call `on_gradient(parameter)` whenever a gradient has been accumulated."""
        return [p.register_post_accumulate_grad_hook(on_gradient) for p in self._places]

    @property
    def active(self) -> bool:
        """Whether a backward pass has begun and not ended."""
        return bool(self._missing)

    def begin(self) -> None:
        """A backward pass begins: no gradient is final yet."""
        self._missing = [set(bucket.parameters) for bucket in self._buckets]
        self._next = 0

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        """`parameter.grad` is final: keep it in the bucket and launch what has become complete."""
        bucket, view = self._places[parameter]
        if parameter.grad is not view:  # zero_grad(set_to_none=True) had dropped the view
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = view
        self._missing[bucket.index].discard(parameter)
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._launch(self._buckets[self._next])
            self._next += 1

    def end(self) -> None:
        """The pass is over: parameters that it left out have a gradient of zero, or what had
        accumulated before.
        """
        for parameter in [p for missing in self._missing for p in missing]:
            if parameter.grad is None:
                parameter.grad = self._places[parameter][1].zero_()
            self.gradient_ready(parameter)
        self._missing = []

"""What a training step of any torch model computes: one forward and backward on meta tensors.

Nothing is computed and no weights are made. Every operation of torch is recorded with its FLOPs
(`torch.utils.flop_counter`'s formulas, 2 a multiplication) and the bytes that it moves through
memory (`memory_traffic`), and every parameter with the moment at which its gradient is final.
Operations count as they are defined: Winograd's convolutions need fewer FLOPs, and kernels that a
compiler has fused move fewer bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_flop_count
from torch.utils.module_tracker import ModuleTracker

from experiments.predict.memory_traffic import moved_bytes
from experiments.predict.step_trace import LayerFlops, StepTrace, Work
from host.errors import UserError

_CONVOLUTIONS = {"convolution", "_convolution", "convolution_backward"}
_PRODUCTS_OF_BATCHES = {"bmm", "baddbmm"}
_SDPA_BACKWARD_PER_FORWARD = 2.5  # as torch.utils.flop_counter: it computes the scores again


def trace_step(
    name: str, model: nn.Module, inputs: Mapping[str, Tensor], *, fused_attention: bool = True
) -> StepTrace:
    """Trace `model`, which is on the meta device, with `inputs [batch_size, ...]` by the names that
    its forward has for them; "" is the first one.

    The loss is the cross entropy of every output that has a last dimension of classes.
    `fused_attention`: whether `scaled_dot_product_attention` is one kernel, which keeps the scores
    out of memory.

    Raises `UserError` for a model that cannot be computed without numbers, or trains nothing.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    positional = [x for key, x in inputs.items() if not key]
    named = {key: x for key, x in inputs.items() if key}
    recorder = _Recorder(model)
    arrivals: dict[int, int] = {}
    hooks = [
        p.register_post_accumulate_grad_hook(
            lambda p: arrivals.__setitem__(id(p), len(recorder.backward.kinds))
        )
        for p in trained
    ]
    try:
        with ExitStack() as stack:
            stack.enter_context(recorder.tracker)
            stack.enter_context(recorder)
            if fused_attention:
                stack.enter_context(_FusedAttention(recorder))
            loss = loss_of(model(*positional, **named))
            recorder.is_backward = True
            loss.backward()
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise UserError(f"{name} cannot be traced without numbers: {reason}") from error
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in trained:
            parameter.grad = None
    return StepTrace(
        model=name,
        batch_size=len(next(iter(inputs.values()))),
        parameters=tuple(tuple(p.shape) for p in trained),
        arrivals=tuple(arrivals.get(id(p)) for p in trained),
        forward=recorder.forward,
        backward=recorder.backward,
        layers=recorder.layers,
        buffer_bytes=_buffer_bytes(model),
    )


def _buffer_bytes(model: nn.Module) -> tuple[int, ...]:
    by_type = Counter[torch.dtype]()
    for buffer in model.buffers():
        by_type[buffer.dtype] += buffer.numel() * buffer.element_size()
    return tuple(by_type.values())


class _Recorder(TorchDispatchMode):
    """Writes every operation down, and under which module it ran."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.forward, self.backward = Work(), Work()
        self.is_backward = False
        self.layers: dict[str, LayerFlops] = {}
        self.tracker = ModuleTracker()
        root = type(model).__name__
        self._is_recurrent = {
            f"{root}.{name}" if name else root
            for name, module in model.named_modules()
            if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and write it down."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.__name__.split(".")[0]
        flops = _flops(func, name, args, kwargs, result)
        num_bytes = moved_bytes(func, args, kwargs, result)
        if flops or num_bytes:
            self.add(self._kind(name, args, flops), flops, num_bytes)
        return result

    def add(self, kind: str, flops: float, num_bytes: float) -> None:
        """One operation of the module that runs now."""
        (self.backward if self.is_backward else self.forward).add(kind, flops, num_bytes)
        layer = self.layers.setdefault(self._module(), LayerFlops())
        if self.is_backward:
            layer.backward += flops
        else:
            layer.forward += flops

    def _module(self) -> str:
        return max(self.tracker.parents, key=lambda name: (name.count("."), name != "Global"))

    def _kind(self, name: str, args: Sequence[Any], flops: float) -> str:
        if not flops:
            return "elementwise"
        if self._is_recurrent & self.tracker.parents:
            return "recurrent"
        if name in _CONVOLUTIONS:
            weight = args[2] if name == "convolution_backward" else args[1]
            stride = args[4] if name == "convolution_backward" else args[3]
            dense = args[9] == 1 if name == "convolution_backward" else args[8] == 1
            is_3x3 = tuple(weight.shape[2:]) == (3, 3) and set(stride) == {1} and dense
            return "convolution_3x3" if is_3x3 else "convolution"
        return "attention" if name in _PRODUCTS_OF_BATCHES else "matrix"


def _flops(func: Any, name: str, args: Sequence[Any], kwargs: Any, result: Any) -> float:
    """By torch's formulas, but for the backward of a convolution: torch counts the gradient of a
    grouped one's weight as if it had one group.
    """
    if name == "convolution_backward" and not args[7]:
        gradient, x, weight = args[:3]
        return sum(args[10][:2]) * conv_flop_count(x.shape, weight.shape, gradient.shape)
    formula = flop_registry.get(func._overloadpacket)
    return 0.0 if formula is None else formula(*args, **kwargs, out_val=result)


class _FusedAttention(TorchFunctionMode):
    """Puts one kernel in the place of `scaled_dot_product_attention`."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Everything else runs as it would."""
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = (*args, *(kwargs[k] for k in ("query", "key", "value")[len(args) :]))[
            :3
        ]
        return _AttentionKernel.apply(self._recorder, query, key, value)


class _AttentionKernel(torch.autograd.Function):
    """Shapes alone; what it computes and moves goes to the recorder."""

    @staticmethod
    def forward(ctx: Any, recorder: _Recorder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [..., heads, t, d]`, `k` and `v [..., few or all heads, s, d]` -> `[..., t, d]`."""
        ctx.recorder, ctx.shapes = recorder, (q.shape, k.shape, v.shape)
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        heads = q.shape[1]
        ctx.flops = sdpa_flop_count(
            q.shape, (k.shape[0], heads, *k.shape[2:]), (v.shape[0], heads, *v.shape[2:])
        )
        ctx.num_bytes = q.nbytes + k.nbytes + v.nbytes + out.nbytes
        recorder.add("attention", ctx.flops, ctx.num_bytes)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Reads what forward has read and written and a gradient, and writes three."""
        flops = _SDPA_BACKWARD_PER_FORWARD * ctx.flops
        ctx.recorder.add("attention", flops, 2 * ctx.num_bytes)
        return (None, *(grads[0].new_empty(shape) for shape in ctx.shapes))


def loss_of(outputs: Any) -> Tensor:
    """Of everything that the model returns and that depends on its weights."""
    leaves = [x for x in _tensors(outputs) if x.requires_grad and x.is_floating_point()]
    if not leaves:
        raise ValueError("no output depends on a weight that is trained")
    return torch.stack([_loss_of(x) for x in leaves]).sum()


def _tensors(outputs: Any) -> list[Tensor]:
    """Of what transformers return, the logits alone, which its losses are computed from."""
    if hasattr(outputs, "to_tuple"):
        logits = [x for key, x in outputs.items() if "logits" in key]
        outputs = logits or outputs[0]
    return [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]


def _loss_of(output: Tensor) -> Tensor:
    if output.ndim < 2 or output.shape[-1] < 2:
        return output.mean()
    rows = output.flatten(0, -2)
    return nn.functional.cross_entropy(rows, rows.new_zeros(len(rows), dtype=torch.long))

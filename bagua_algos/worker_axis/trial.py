"""Whether stacked copies of a model can be computed at once: a trial of two, beside one alone.

Shapes: k copies, b examples of each.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bagua_algos.graph_pass import dense
from bagua_algos.worker_axis.inputs import Inputs, each
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.rows import Rows
from host.errors import first_line

RELATIVE = 0.05
"""By how much of its norm a tensor of a copy may be off: ten times what rounding did to a ResNet
that normalises over two numbers. What `vmap` leaves out is a factor.
"""
ROUNDING = 1e-5
"""By how much it may be off besides: of the norm of all gradients, since that of a bias before a
normalisation is nothing but rounding; of outputs, by so much an element.
"""


def why_not_stacked(model: nn.Module, x_b: Inputs) -> str | None:
    """What keeps `torch.func.vmap` from computing stacked copies of `model` at once on such inputs,
    forward and backward; None if it can. Random numbers are drawn.

    The outputs and gradients of two copies are compared with those of one alone; in evaluation mode
    where they depend on random numbers else, or have 16 bits: through a normalisation over two
    numbers, gradients of so few bits are nothing but rounding. Raises what the model alone raises.
    """
    for name, part in model.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return f"vmap calls no hooks of backward passes, as that of the module {name!r}"
    for evaluating in (False, True):
        of_torch = torch_states()
        alone = _computed(model, x_b, evaluating=evaluating)
        try:
            stacked = _computed(model, x_b, num_copies=2, evaluating=evaluating)
        except Exception as error:
            return first_line(error)
        if torch_states() == of_torch and (evaluating or not _has_few_bits(alone)):
            return _difference(model, alone, stacked)
    return None


def torch_states() -> list[bytes]:
    """Those of torch's generators; others once random numbers have been drawn."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpus)]


def _computed(
    model: nn.Module, x_b: Inputs, num_copies: int | None = None, *, evaluating: bool
) -> list[Tensor | None]:
    """The outputs `[k, b, ...]` of so many copies at once, and the gradients `[k, ...]` of the
    parameters that are trained, None for those without; for None those of the plain model, k = 1.
    """
    module = StackedModel(model, num_copies or 1).module
    if evaluating:
        module.eval()
    rows = Rows(module)
    [part] = rows.alone(1) if num_copies is None else rows.stacked(num_copies, 1)
    with torch.enable_grad():
        y_kb = part.compute(each(lambda x: torch.stack([x] * (num_copies or 1)), x_b))
    if not (part.trained and y_kb.requires_grad):
        return [y_kb, *[None for _ in part.trained]]
    weights_b = torch.arange(y_kb[0].numel(), device=y_kb.device).cos().view_as(y_kb[0])
    total = (y_kb * weights_b.to(y_kb.dtype)).sum()  # given gradients would import the compiler
    total = total.real if total.is_complex() else total
    gradients = torch.autograd.grad(total, part.trained, allow_unused=True)
    own = [None if gradient is None else dense(gradient) for gradient in gradients]
    if num_copies is None:
        own = [None if gradient is None else gradient.unsqueeze(0) for gradient in own]
    return [y_kb.detach(), *own]


def _has_few_bits(tensors: Sequence[Tensor | None]) -> bool:
    return any(x is not None and x.dtype.itemsize < torch.float32.itemsize for x in tensors)


def _difference(
    model: nn.Module, alone: Sequence[Tensor | None], stacked: Sequence[Tensor | None]
) -> str | None:
    """What of the copies is not as that of the model alone; None if nothing is."""
    outputs, *gradients = alone
    assert outputs is not None
    if not _agree(outputs, stacked[0], ROUNDING * math.sqrt(outputs.numel())):
        return "by vmap it has other outputs"
    given = [gradient for gradient in gradients if gradient is not None]
    norms = [norm for norm in map(_norm, given) if math.isfinite(norm)]
    parts = [ROUNDING, *(torch.finfo(gradient.dtype).eps for gradient in given)]
    rounding = max(parts) * math.hypot(*norms)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, own, of_copies in zip(names, gradients, stacked[1:], strict=True):
        if not _agree(own, of_copies, rounding):
            return f"by vmap its parameter {name!r} gets another gradient"
    return None


def _agree(own: Tensor | None, of_copies: Tensor | None, rounding: float) -> bool:
    """Whether each of `of_copies[k, ...]` is `own[1, ...]`; None is zero."""
    if own is None or of_copies is None:
        given = of_copies if own is None else own
        return given is None or not given.any()
    norm = _norm(own)
    far = max(_norm(copy - own[0]) for copy in of_copies)
    return not math.isfinite(norm) or far <= RELATIVE * norm + rounding


def _norm(x: Tensor) -> float:
    return float(x.norm())

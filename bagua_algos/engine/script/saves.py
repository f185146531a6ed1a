"""States that a script saves: copies, where the model is the mean of all workers for a while."""

import copy
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.engine.consensus import outside_inference_mode
from bagua_algos.engine.script.copies import Hooks, OwnHook
from bagua_algos.engine.script.own_storage import has_memory


class SaveHook(OwnHook):
    """Replaces the tensors of what `state_dict()` of `model` returns, or of a part of it that is
    called without a prefix, by copies of their own.
    """

    def __init__(self, model: nn.Module) -> None:
        self._find = weakref.ref(model)

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        """Once, where a module around this one has called it."""
        if module is self._find() or not prefix:
            state.update(snapshot({n: x for n, x in state.items() if n.startswith(prefix)}))


@contextmanager
def saving_copies(model: nn.Module) -> Iterator[None]:
    """Within, `state_dict()` of the model or a part of it has memory of its own, to be saved later:
    a script that saves on one worker alone does so after the consensus, when the model's weights
    are the worker's own again.
    """
    model = getattr(model, "_orig_mod", model)  # which a script may call as well, if compiled
    parts = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    before = [(part._state_dict_hooks, set(part._state_dict_hooks)) for part in parts]
    hook = SaveHook(model)
    for part in parts:  # not by setattr: a compiled model would set it on the model within
        vars(part)["_state_dict_hooks"] = Hooks(part._state_dict_hooks)
        part.register_state_dict_post_hook(hook)
    try:
        yield
    finally:
        # The same object again, which handles of the script's own hooks know.
        for part, (hooks, known) in zip(parts, before, strict=True):
            new = {k: own for k, own in part._state_dict_hooks.items() if k not in known}
            hooks |= {key: own for key, own in new.items() if own is not hook}
            vars(part)["_state_dict_hooks"] = hooks


def snapshot(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a model's state with memory of its own, in which tied weights stay tied. Parameters
    themselves, which `state_dict(keep_vars=True)` has, stay.
    """
    clones: dict[object, Tensor] = {}
    copied: Any = copy.copy(state_dict)
    for name, value in state_dict.items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            key = place if has_memory(value) else id(value)
            if key not in clones:
                with outside_inference_mode():
                    clones[key] = value.detach().clone()
            copied[name] = clones[key]
    return copied

"""Weights that a script loads into a distributed model, where the algorithm keeps a picture of the
weights and would take the jump for training.
"""

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bagua_algos.engine.script.copies import OwnHook
from bagua_algos.engine.untrained import digest


class LoadHook(OwnHook):
    """Calls the bound method `act` before a module loads a state, as long as its object lives: a
    part of a model may live longer than the model.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._find = weakref.WeakMethod(act)

    def __call__(self, *_: object) -> None:
        """Leaves the state as it is."""
        if (act := self._find()) is not None:
            act()


class LoadedWeights:
    """Tells whether weights were loaded since the last step and are others than before.

    Args:
        model: or any part of it, which may be loaded by itself.
        weights: all that is trained, wherever it is by now.
    """

    def __init__(self, model: nn.Module, weights: Callable[[], Sequence[Tensor]]) -> None:
        self._model = model
        self._weights = weights
        self._before: list[Tensor] | None = None

    def attach(self, on_load: Callable[[], None]) -> list[RemovableHandle]:
        """Have the method `on_load` of an object called before every load from now on."""
        hook = LoadHook(on_load)
        parts = [m for m in self._model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        return [part.register_load_state_dict_pre_hook(hook) for part in parts]

    def note(self) -> None:
        """Other weights are about to be loaded."""
        if self._before is None:
            self._before = self._digests()

    def accept(self) -> None:
        """The algorithm's state is that of the weights as they are now."""
        self._before = None

    def check(self) -> None:
        """A step begins. Raise `ValueError` where weights are not those from before they were
        loaded: for an evaluation a script may load others, and then these again.
        """
        if self._before is None:
            return
        now = self._digests()
        if not all(map(torch.equal, self._before, now)):
            raise ValueError(
                "weights were loaded into the distributed model, and its algorithm keeps a picture "
                "of the weights beside which they would look like training: call "
                "bagua_algos.load_state_dict(model, ...) last, after model.load_state_dict, or "
                "release() the model, load them, and distribute() it again"
            )
        self._before = None

    def _digests(self) -> list[Tensor]:
        return [digest(x) for x in self._weights()]

"""Weights that a script loads into a distributed model, where the algorithm keeps a picture of the
weights and would take the jump for training.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bagua_algos.engine.backward import held
from bagua_algos.engine.script.copies import OwnHook
from bagua_algos.engine.untrained import digest

WEIGHTS = "weights"


class LoadHook(OwnHook):
    """Calls the bound method `act(state)` before a module loads a state, as long as its object
    lives: a part of a model may live longer than the model.
    """

    def __init__(self, act: Callable[[Mapping[str, Any]], None]) -> None:
        self._find = weakref.WeakMethod(act)

    def __call__(self, _: nn.Module, state: Mapping[str, Any], *__: object) -> None:
        """Leaves the state as it is."""
        if (act := self._find()) is not None:
            act(state)


class LoadedWeights:
    """Tells whether weights were loaded since the last step and are others than before.

    `torch.distributed.checkpoint.load` writes into the tensors of `model.state_dict()`, which are
    the weights, before a script has the model load them: what is loaded is then the weights' own
    memory, and torch has counted changes of it since the last step.

    Args:
        model: or any part of it, which may be loaded by itself.
        weights: what is held of each trained parameter, wherever it is by now.
        are_shards: a state then has tensors with a count of changes of their own, from 0 on.
    """

    def __init__(
        self, model: nn.Module, weights: Callable[[], Sequence[Tensor]], *, are_shards: bool
    ) -> None:
        self._model = model
        self._are_shards = are_shards
        self._weights = weights
        self.accept()

    def attach(self, on_load: Callable[[Mapping[str, Any]], None]) -> list[RemovableHandle]:
        """Have the method `on_load(state)` of an object called before every load from now on."""
        hook = LoadHook(on_load)
        parts = [m for m in self._model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        return [part.register_load_state_dict_pre_hook(hook) for part in parts]

    def note(self, state: Mapping[str, Any]) -> None:
        """Other weights are about to be loaded, from `state`."""
        if self._before is not None:  # what has changed since, the digests tell
            return
        self._before = self._digests()
        pairs = zip(self._weights(), self._versions, strict=True)
        known = {x.data_ptr(): version for x, version in pairs}
        loaded = [held(x) for x in state.values() if isinstance(x, Tensor)]
        self._is_written = any(known.get(x.data_ptr(), x._version) != x._version for x in loaded)

    def note_step(self) -> None:
        """A step has ended: a script makes the next changes of weights."""
        self._versions = [0 if self._are_shards else x._version for x in self._weights()]

    def accept(self) -> None:
        """The algorithm's state is that of the weights as they are now."""
        self._before: list[Tensor] | None = None
        self._is_written = False
        self.note_step()

    def checksum(self) -> str:
        """Of all weights' bits, whatever buckets they are in."""
        total = torch.stack(self._digests()).sum(0, dtype=torch.int64) % 256
        return bytes(total.tolist()).hex()

    def accept_beside(self, state_dict: Mapping[str, Any]) -> None:
        """The algorithm takes up this state. Raise `ValueError` where that was saved beside other
        weights than there are now; one without a checksum goes with any.
        """
        saved = state_dict.get(WEIGHTS)
        if saved is not None and saved != self.checksum():
            raise ValueError(
                "this state was saved beside other weights than the model has now, and the "
                "difference would look like training: load the model.state_dict() of the same "
                "worker and moment first, or release() the model and distribute() it again without "
                "this state"
            )
        self.accept()

    def check(self) -> None:
        """A step begins. Raise `ValueError` where weights are not those from before they were
        loaded: for an evaluation a script may load others, and then these again.
        """
        if self._before is None:
            return
        now = self._digests()
        if self._is_written or not all(map(torch.equal, self._before, now)):
            raise ValueError(
                "weights were loaded into the distributed model, and its algorithm keeps a picture "
                "of the weights beside which they would look like training: call "
                "bagua_algos.load_state_dict(model, ...) last, after model.load_state_dict, or "
                "release() the model, load them, and distribute() it again"
            )
        self._before = None

    def _digests(self) -> list[Tensor]:
        return [digest(x) for x in self._weights()]

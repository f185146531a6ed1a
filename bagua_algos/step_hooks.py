"""The order of an optimizer's hooks, which torch runs as they were registered."""

from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def run_first(optimizer: Optimizer, hook: RemovableHandle) -> None:
    """Of all that is registered by `register_step_post_hook` by now, `hook` runs first."""
    hooks: Any = optimizer._optimizer_step_post_hooks
    hooks.move_to_end(hook.id, last=False)

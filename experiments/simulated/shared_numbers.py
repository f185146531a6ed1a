"""Numbers that an optimizer of stacked workers keeps once for all of them, such as Adam's count of
steps, where the workers have done different numbers of steps.
"""

import copy
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class _Numbers(NamedTuple):
    """The options of each parameter group, what the optimizer keeps of each parameter, and the
    schedule's state.
    """

    options: list[dict[str, Any]]
    of_parameters: dict[Tensor, dict[str, Any]]
    schedule: dict[str, Any]


class SharedNumbers:
    """What an optimizer of stacked workers and its schedule keep once for all of them, by how many
    steps a worker has done.

    Args:
        optimizer: of parameters `[w, ...]`.
        schedule: of its learning rate.
        num_steps: that all workers have done.
    """

    def __init__(self, optimizer: Optimizer, schedule: LRScheduler, num_steps: int) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._after: dict[int, _Numbers] = {}
        self._now = num_steps
        self.remember(num_steps, oldest=num_steps)

    def remember(self, num_steps: int, *, oldest: int) -> None:
        """They are those after `num_steps` steps now; nobody needs those before `oldest` again."""
        options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]
        of_parameters = {
            parameter: {name: value for name, value in state.items() if _is_number(value)}
            for parameter, state in self._optimizer.state.items()
        }
        self._now = num_steps
        self._after[num_steps] = _Numbers(
            copy.deepcopy(options),
            {parameter: copy.deepcopy(own) for parameter, own in of_parameters.items()},
            copy.deepcopy(self._schedule.state_dict()),
        )
        self._after = {num: numbers for num, numbers in self._after.items() if num >= oldest}

    def recall(self, num_steps: int) -> None:
        """Put them back to those after `num_steps` steps."""
        if num_steps == self._now:
            return
        self._now, numbers = num_steps, self._after[num_steps]
        for group, options in zip(self._optimizer.param_groups, numbers.options, strict=True):
            group.update(copy.deepcopy(options))
        for parameter, own in numbers.of_parameters.items():
            self._optimizer.state[parameter].update(copy.deepcopy(own))
        self._schedule.load_state_dict(copy.deepcopy(numbers.schedule))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)

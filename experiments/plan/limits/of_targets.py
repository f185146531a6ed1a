"""Which targets a run can come to, and what it needs one for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.tasks.target import LOSS, Target

if TYPE_CHECKING:  # training knows no configuration
    from omegaconf import DictConfig

_LEAST: Mapping[str, float] = {
    LOSS: 0.0,
    "perplexity": 1.0,
    "bits_per_byte": 0.0,
    "word_error_rate": 0.0,
}
"""The best value of each metric that is better the lower it is, where labels are classes."""


def has_target(config: DictConfig) -> bool:
    """Whether some value is to be reached: of accuracy, by default the task's own, or of another
    metric.
    """
    others = () if config.target is None else config.target.values()
    return any(value is not None for value in (config.target_accuracy, *others))


def check_stop(config: DictConfig) -> None:
    """Raise `ValueError` where a run is to end at a target, and has none."""
    if config.stop_at_target and not has_target(config):
        raise ValueError(
            "stop_at_target=true ends a run at its target, and there is none: give "
            "target_accuracy=VALUE or target.METRIC=VALUE, or leave stop_at_target=false"
        )


def check_reachable(target: Target, *, has_classes: bool) -> None:
    """Raise `ValueError` for a value that no run comes to. Other losses than that of classes may
    be any number.
    """
    least = _LEAST.get(target.metric)
    if target.value is None or least is None or not has_classes:
        return
    if target.value < least:
        raise ValueError(
            f"target.{target.metric} must be at least {least:g}, since no run gets below, got "
            f"{target.value:g}"
        )

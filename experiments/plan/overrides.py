"""Overrides of a command line: how they are read, here and nowhere else."""

from collections.abc import Sequence

from experiments.plan.schema import CONFIG_DIR, GROUPS


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    """`+algo=x` means `algo=x`: every group stands in the defaults list. `algo.topology=ring` means
    `algo/topology=ring`, since `conf/algo/topology/` holds the choices; `{...}` stays a value.
    """
    return [_normalized(argument) for argument in arguments]


def _normalized(argument: str) -> str:
    key, _, value = argument.removeprefix("+").partition("=")
    group = key.replace(".", "/")
    if group.split("/")[0] not in GROUPS or not (CONFIG_DIR / group).is_dir():
        return argument
    return argument if value.startswith("{") else f"{group}={value}"

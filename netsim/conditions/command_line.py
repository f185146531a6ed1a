"""The words of commands that take a network and a few options: `net=wan net.delay_ms=20`."""

from collections.abc import Mapping, Sequence

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import preset_names, read_condition


def read_words(
    words: Sequence[str], defaults: Mapping[str, str], *, command: str
) -> tuple[NetworkCondition, dict[str, str]]:
    """The network that `net=NAME` and `net.KEY=VALUE` ask for, and every option of `defaults` with
    the value that `OPTION=VALUE` gives it, `net` among them. The last word for a key counts; a
    value is never empty, for null is written so.

    Raises:
        ValueError: for a word that `command`, a module, does not understand, or no network; it is
            one sentence.
    """
    values = {"net": "", **defaults}
    overrides: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in values and not key.startswith("net."):
            raise ValueError(f"{word!r} is not understood: see python -m {command} --help.")
        if not value:
            raise ValueError(f"{word!r} has no value: see python -m {command} --help.")
        (values if key in values else overrides)[key.removeprefix("net.")] = value
    if not values["net"]:
        raise ValueError(f"Name a network by net=: {', '.join(preset_names())}.")
    return read_condition(values["net"], overrides), values

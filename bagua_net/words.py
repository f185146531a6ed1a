"""The words of the plugin's commands: a network, and a few options with defaults."""

from collections.abc import Mapping, Sequence

from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import preset_names, read_condition


def read_words(
    words: Sequence[str], defaults: Mapping[str, str], *, command: str
) -> tuple[NetworkCondition, dict[str, str]]:
    """The network that `net=NAME` and `net.KEY=VALUE` ask for, and every option of `defaults` with
    the value that `OPTION=VALUE` gives it.

    Raises:
        UserError: for a word that `command`, a module, does not understand, or no network.
    """
    values = {"net": "", **defaults}
    overrides: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith("net.") and value:
            overrides[key.removeprefix("net.")] = value
        elif key in values and value:
            values[key] = value
        else:
            raise UserError(f"{word!r} is not understood: see python -m {command} --help.")
    if not values["net"]:
        raise UserError(f"Name a network by net=: {', '.join(preset_names())}.")
    try:
        return read_condition(values["net"], overrides), values
    except ValueError as error:
        raise UserError(str(error)) from error

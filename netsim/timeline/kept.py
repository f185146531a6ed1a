"""What has been worked out and comes back: found once, as long as there is room."""

from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")


def kept(known: dict[Key, Kept], key: Key, make: Callable[[], Kept], most: int) -> Kept:
    """What is known under a key, made where it is new; all are forgotten before they are more than
    `most`.
    """
    if key not in known:
        if len(known) >= most:
            known.clear()
        known[key] = make()
    return known[key]

"""The library transformers, where it is installed."""

from types import ModuleType

from experiments.tasks.word_pieces import NO_TRANSFORMERS
from host.errors import UserError


def transformers() -> ModuleType:
    """The library. Raises UserError where it is not installed."""
    try:
        import transformers as library  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(NO_TRANSFORMERS) from error
    return library

"""The library transformers, where it is installed."""

from types import ModuleType

from host.errors import UserError


def transformers() -> ModuleType:
    """The library. Raises UserError where it is not installed."""
    try:
        import transformers as library  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "this model is of the library transformers: run pip install 'relaxlab[text]'"
        ) from error
    return library

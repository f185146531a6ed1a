"""What not every machine has, as a reason to skip a test."""

import pytest

from experiments.models.minilm import MiniLM
from host.errors import UserError


def skip_without_minilm() -> None:
    """Skip where the extra `text` or the package of MiniLM's weights is missing."""
    try:
        MiniLM()
    except UserError as error:
        pytest.skip(str(error))

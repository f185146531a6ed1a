"""What holds for all tests of the app."""

import pytest

from tests.short_rehearsals import rehearse_shortly


@pytest.fixture(autouse=True)
def _short_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated run without a profile measures one: how exact it is does not matter here."""
    monkeypatch.setattr("experiments.simulated.simulate.rehearse", rehearse_shortly)

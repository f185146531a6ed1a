"""The sections of a report, one a module.

A section's module has a `TITLE`, its heading, and a function `section` that makes it of all runs.
The notebook, the page and `python -m experiments.report --help` follow from `SECTIONS`: a new
section is a module here and a line there.
"""

from __future__ import annotations

from typing import Protocol

from experiments.report.data import ReportData
from experiments.report.section import Section
from experiments.report.sections import (
    best_over_networks,
    bytes_sent,
    exposed_communication,
    final_accuracy,
    incomplete,
    learning_rates,
    overview,
    performance_profile,
    scaling,
    shares,
    time_against_target,
    time_to_accuracy,
    timeline,
    tuning,
    way_to_accuracy,
)


class SectionModule(Protocol):
    """What a module of this folder offers; the first line of its docstring says what it tells."""

    __name__: str
    __doc__: str | None

    @property
    def TITLE(self) -> str:
        """Its heading; empty for what the page begins with."""
        ...

    def section(self, data: ReportData) -> Section:
        """What the runs say on its subject."""
        ...


SECTIONS: tuple[SectionModule, ...] = (
    overview,
    time_against_target,
    time_to_accuracy,
    way_to_accuracy,
    final_accuracy,
    learning_rates,
    tuning,
    bytes_sent,
    exposed_communication,
    best_over_networks,
    scaling,
    shares,
    performance_profile,
    timeline,
    incomplete,
)
"""In the order of the page."""

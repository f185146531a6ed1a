"""What the simulator and the closed formula say of measured cells."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.simulated.replay import step_ends_s
from experiments.simulated.simulate import timeline_of, transport
from experiments.validation.step_times.closed_formula import step_s
from experiments.validation.step_times.grid import SKIPPED_STEPS
from experiments.validation.step_times.record import Measured, Record
from netsim.timeline.compute import Constant
from netsim.timeline.cost_model import CostModel


def predict(record: Record) -> pd.DataFrame:
    """A row for each cell: milliseconds a step, measured and predicted, and relative errors."""
    cores = int(record.machine["cores"])
    return pd.DataFrame([_row(measured, cores) for measured in record.cells])


def mean_step_s(ends_s: Sequence[float]) -> float:
    """Seconds a step, after the first ones."""
    return (ends_s[-1] - ends_s[SKIPPED_STEPS - 1]) / (len(ends_s) - SKIPPED_STEPS)


def _row(measured: Measured, cores: int) -> dict[str, Any]:
    cell, profile, script = measured.cell, measured.profile, measured.script
    condition = cell.condition
    model = CostModel(
        condition,
        cell.workers,
        transport(cell.streams, cell.pattern),
        backend=measured.backend,
    )
    timeline = timeline_of(model, profile, Constant(), threads_per_worker=1, num_cores=cores)
    predicted_s = mean_step_s(step_ends_s(script, timeline))
    closed_s = step_s(script, profile, condition, cell.pattern)
    return cell._asdict() | {
        "held_out": cell.is_held_out,
        "measured_ms": 1e3 * measured.step_s,
        "predicted_ms": 1e3 * predicted_s,
        "error": predicted_s / measured.step_s - 1,
        "closed_ms": 1e3 * closed_s,
        "closed_error": closed_s / measured.step_s - 1,
    }

"""The map as a folder: pictures, map.csv, and a page that says what they show."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.advise.advice import BASELINE
from experiments.advise.map.answer import Answer, answers
from experiments.advise.map.atlas import Panel, frame
from experiments.advise.map.draw import map_figure, targets_figure
from experiments.advise.map.job import COMPUTE_MS, MODEL_MB
from experiments.advise.map.points import Point, points
from experiments.advise.map.standing import model_error
from experiments.advise.map.trainings import load, tasks
from experiments.report.figures.plots import save_plot
from host import markdown
from host.errors import UserError
from host.output import writing
from host.words import significant

COMMAND = "python -m experiments.locate --map results/map"


def write(shown: Sequence[Panel], out: Path) -> None:
    """All of it, of the panels of all tasks."""
    for task in tasks():
        own = [panel for panel in shown if panel.trained.task == task]
        save_plot(map_figure(own), out, f"map_{task}")
    save_plot(targets_figure(shown), out, "map_targets")
    table = frame(shown)
    with writing(out):
        table.to_csv(out / "map.csv", index=False, float_format="%.4g")
        (out / "README.md").write_text(_readme(shown, table))


def _readme(shown: Sequence[Panel], table: pd.DataFrame) -> str:
    sections = [
        _HEAD,
        *(f"![{task}](map_{task}.png)\n" for task in tasks()),
        "The same without loss, with 16 workers, at the targets by rule:\n",
        "![targets](map_targets.png)\n",
        "## Who is first where\n",
        _prose(
            f"Places of each panel, of {shown[0].grids[0].best_s.size}, by who is first; how many "
            "of them all-reduce wins, or ties in; and by how much times may be off, which decides "
            "ties."
        ),
        _panels_table(shown, table) + "\n",
        "## Clusters\n",
        _prose(_POINTS),
        _points_table() + "\n",
        _basis(),
    ]
    return "\n".join(sections)


_HEAD = f"""# The map

    {COMMAND}

makes this folder again. [docs/map.md](../../docs/map.md) says what it rests on. All is simulated.

- rho: the seconds of an ideal all-reduce of the gradients at the link's rate, for each second of
  compute a step. lambda: the delay, one way, for each second of compute.
- Colour: who reaches the target first. Solid lines: where that changes. Dotted lines: how many
  times as soon as all-reduce. Circles: all-reduce is first, or ties.
- Panels without loss hold for any compute and any number of bytes. Panels with loss hold for
  gradients of {MODEL_MB:g} MB and {COMPUTE_MS:g} ms of compute alone, since TCP counts packets.
- `map.csv` has every place, with 95 % intervals.
"""


_POINTS = (
    "Letters in the pictures, on the panels of the nearest numbers of workers; S lies beyond the "
    "corner. All are for BERT-Base with 32 examples of 128 tokens a worker: gradients of 440 MB in "
    "float32, compute by the project's model of devices. A ring crosses each machine's NIC once, "
    "so the NIC is taken as the link. Cells: who is first to the study's target, how many times as "
    "soon as all-reduce (95 %), and who ties."
)


def _prose(text: str) -> str:
    return textwrap.fill(text, 110) + "\n"


def _panels_table(shown: Sequence[Panel], table: pd.DataFrame) -> str:
    rows = []
    for panel in shown:
        own = panel.trained
        for goal, target in enumerate(own.goals):
            here = table.loc[
                (table.task == own.task)
                & (table.workers == own.workers)
                & (table.loss_pct == panel.loss_pct)
                & (table.target == target.accuracy)
            ]
            winners, places = Counter(here["first"].dropna()), Counter(here.allreduce)
            rows.append(
                [
                    own.task,
                    str(own.workers),
                    f"{panel.loss_pct:g}",
                    str(target),
                    ", ".join(f"{algo} {count}" for algo, count in winners.most_common()) or "-",
                    f"{places['wins']}, {places['ties']}",
                    f"{100 * model_error(own, goal):.0f} %",
                ]
            )
    headers = ["task", "workers", "loss (%)", "target", "first at so many places"]
    headers += [f"{BASELINE} wins, ties", "error"]
    return markdown.table(headers, rows, "lrrllrr")


def _points_table() -> str:
    headers = ["sign", "cluster", "workers", "rho", "lambda", *tasks(), "where from"]
    rows = [
        [
            point.sign,
            point.name,
            str(point.job.workers),
            significant(point.job.rho),
            f"{point.job.lambda_:.2g}",
            *(_first_there(point, task) for task in tasks()),
            point.source,
        ]
        for point in points()
    ]
    return markdown.table(headers, rows, "llrrrlll")


def _first_there(point: Point, task: str) -> str:
    """Who is first at the study's target, by each training that counts."""
    try:
        given: list[Answer] = answers(point.job, [task])
    except UserError:
        return "no training with so few workers"
    return "; ".join(f"{answer.trained.workers} workers: {answer.first_said()}" for answer in given)


def _basis() -> str:
    source = load()[0]
    dirty = f"{source.num_dirty} of them of a tree with changes that no commit has"
    return "## Where the steps come from\n\n" + _prose(
        f"{source.num_runs} recorded runs ({dirty}; commits "
        f"{', '.join(commit[:7] for commit in source.commits)}) of the reference study, as "
        f"`{source.command}` reads them into `experiments/advise/map/trainings.yaml`."
    )

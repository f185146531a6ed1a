"""The map as a folder: pictures, map.csv, and a page that says what they show."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.answer import Answer, answers, first_said
from experiments.advise.map.atlas import Panel, frame
from experiments.advise.map.draw import map_figure, targets_figure
from experiments.advise.map.job import COMPUTE_MS, MODEL_MB
from experiments.advise.map.points import Point, points
from experiments.advise.map.standing import always_best, baseline_loses, model_error, sent_by
from experiments.advise.map.trainings import load, tasks, trained_workers
from experiments.report.figures.files import save_png
from host import markdown
from host.errors import UserError
from host.output import writing
from host.words import significant

COMMAND = "python -m experiments.locate --map results/map"

TYPICAL = {
    "compute rules": (0.1, 0.001, 0.0),
    "bytes rule": (10.0, 0.0001, 0.0),
    "bytes rule, 1 % of loss": (10.0, 0.0001, 1.0),
    "delay rules": (0.1, 1.0, 0.0),
}
"""Some places: rho, lambda and the loss in percent."""
_TYPICAL_TARGETS = (1.0, 0.2)
"""Points below tuned all-reduce."""


def write(shown: Sequence[Panel], out: Path) -> None:
    """All of it, of the panels of all tasks."""
    for task in tasks():
        own = [panel for panel in shown if panel.trained.task == task]
        save_png(map_figure(own), out, f"map_{task}")
    for workers in trained_workers():
        save_png(targets_figure(shown, workers), out, f"map_targets_{workers}")
    table = frame(shown)
    with writing(out):
        table.to_csv(out / "map.csv", index=False, float_format="%.4g")
        together, typical = together_table(shown) + "\n", typical_table(shown) + "\n"
        (out / "README.md").write_text(_readme(shown, table, together, typical))
        (out / "over_all_tasks.md").write_text(_prose(_TOGETHER) + "\n" + together)
        (out / "typical_places.md").write_text(_prose(_AT_TYPICAL) + "\n" + typical)


def _readme(shown: Sequence[Panel], table: pd.DataFrame, together: str, typical: str) -> str:
    sections = [
        _HEAD,
        *(f"![{task}](map_{task}.png)\n" for task in tasks()),
        "The same without loss, at all targets:\n",
        *(f"![targets](map_targets_{workers}.png)\n" for workers in trained_workers()),
        "## Some places\n",
        _prose(_AT_TYPICAL),
        typical,
        "## Tasks\n",
        _prose(_TASKS),
        _tasks_table() + "\n",
        "## Over which targets a winner holds\n",
        _prose(_HOLDS),
        _holds_table(shown) + "\n",
        "## Over all tasks\n",
        _prose(_TOGETHER),
        together,
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
- Targets: the median final accuracy of tuned all-reduce, less 2, 1, 0.5 and 0.2 points.
- Colour: who reaches the target first. Solid lines: where that changes. Dotted lines: how many
  times as soon as all-reduce. Circles: all-reduce is first, or ties. Crosses: nobody gets there.
- Panels without loss hold for any compute and any number of bytes. Panels with loss hold for
  gradients of {MODEL_MB:g} MB and {COMPUTE_MS:g} ms of compute alone, since TCP counts packets.
- `map.csv` has every place, with 95 % intervals.
"""


_TASKS = (
    "Whose trainings the map rests on. Gradients: those of the model that was trained, of which "
    "the map takes the shapes alone. Settings: those of all algorithms that their trials chose for "
    "some place."
)

_HOLDS = (
    "Places of each panel, by who is first or ties at all targets that anybody reaches at that "
    "place; several can be so at one place. Targets reached: those that somebody reaches at some "
    "place of the panel; at another place fewer may be reached, and then fewer count. Nobody: the "
    "places where no algorithm is. All-reduce loses: the places where it is neither first nor ties "
    "at any of these targets."
)

_TOGETHER = (
    "The same of all tasks with equally many workers together: places by who is first or ties on "
    "each of them, at the target so many points below, or at all targets. Nobody: what wins there "
    "depends on the task, or on the target, or nobody reaches that target on one of the tasks. "
    "The rows of all targets leave out, task by task, those that nobody reaches at that place. "
    "All-reduce loses: on each task and at each of these targets."
)

_AT_TYPICAL = (
    "At some places, who is first to the target so many points below tuned all-reduce, how many "
    "times as soon as all-reduce (95 %), and who ties. "
    + " ".join(
        f"{name[0].upper()}{name[1:]}: rho {rho:g}, lambda {lambda_:g}."
        for name, (rho, lambda_, _) in TYPICAL.items()
    )
)

_POINTS = (
    "Letters in the pictures, on the panels of the nearest numbers of workers; S lies beyond the "
    "corner. Clusters with fewer or more workers than were trained have a place but no answer. All "
    "are for BERT-Base with 32 examples of 128 tokens a worker: gradients of 440 MB in float32, "
    "compute by the project's model of devices. A ring crosses each machine's NIC once, so the NIC "
    "is taken as the link. Cells: who is first to the target 1 point below, how many times as soon "
    "as all-reduce (95 %), and who ties."
)


def _prose(text: str) -> str:
    return textwrap.fill(text, 110) + "\n"


def typical_table(shown: Sequence[Panel]) -> str:
    """Who is first at those of `TYPICAL` that panels have, as Markdown."""
    of_trained: dict[tuple[str, int], list[Panel]] = {}
    for panel in shown:
        of_trained.setdefault((panel.trained.task, panel.trained.workers), []).append(panel)
    rows = [
        {
            "task": task,
            "workers": str(workers),
            "points below": f"{points_below:g}",
            **{
                name: said
                for panel in panels
                for name, said in _typical(panel, panel.trained.goal(points_below))
            },
        }
        for (task, workers), panels in of_trained.items()
        for points_below in _TYPICAL_TARGETS
    ]
    headers = ["task", "workers", "points below", *TYPICAL]
    cells = [[row.get(header, "-") for header in headers] for row in rows]
    return markdown.table(headers, cells, "lrr" + "l" * len(TYPICAL))


def _typical(panel: Panel, goal: int) -> Iterator[tuple[str, str]]:
    at = panel.grids[goal]
    places = (np.array([panel.rho(rate) for rate in at.rates_mbit]), at.delays_ms / COMPUTE_MS)
    for name, (rho, lambda_, loss_pct) in TYPICAL.items():
        wanted = zip(places, (rho, lambda_), strict=True)
        found = [np.flatnonzero(np.isclose(axis, value)) for axis, value in wanted]
        if loss_pct == panel.loss_pct and all(map(len, found)):
            yield name, first_said(at, *(int(indices[0]) for indices in found))


def _tasks_table() -> str:
    rows = [
        [
            own.task,
            str(own.model["_target_"]).rpartition(".")[2],
            f"{sent_by(own, own.trainings[0], own.workers).num_bytes / 1e6:.2f}",
            str(own.workers),
            str(own.batch_size),
            f"{own.max_steps}, {own.eval_every}",
            f"{len(own.algos)}, {len(own.trainings)}",
            str(len(own.seeds)),
        ]
        for own in load()[1]
    ]
    headers = ["task", "model", "gradients (MB)", "workers", "batch", "steps, evaluated every"]
    return markdown.table([*headers, "algorithms, settings", "seeds"], rows, "llrrrrrr")


def _holds_table(shown: Sequence[Panel]) -> str:
    rows = []
    for panel in shown:
        places = list(np.ndindex(panel.grids[0].best_s.shape))
        holding = [always_best(panel.grids, *place) for place in places]
        counts = Counter(name for names in holding for name in names)
        goals = zip(panel.trained.goals, panel.grids, strict=True)
        reached = [goal for goal, at in goals if np.isfinite(at.best_s).any()]
        rows.append(
            [
                panel.trained.task,
                str(panel.trained.workers),
                f"{panel.loss_pct:g}",
                ", ".join(f"{goal.points:g}" for goal in reached) or "-",
                ", ".join(f"{algo} {count}" for algo, count in counts.most_common()) or "-",
                str(sum(not names for names in holding)),
                str(sum(baseline_loses(panel.grids, *place) for place in places)),
            ]
        )
    headers = ["task", "workers", "loss (%)", "targets reached (points below)"]
    headers += ["first or tied at all of them", "nobody", f"{BASELINE} loses"]
    return markdown.table(headers, rows, "lrrllrr")


def together_table(shown: Sequence[Panel]) -> str:
    """Who is first or ties on all tasks, by workers, loss and target, as Markdown."""
    alike: dict[tuple[int, float], list[Panel]] = {}
    for panel in shown:
        alike.setdefault((panel.trained.workers, panel.loss_pct), []).append(panel)
    rows = []
    for (workers, loss_pct), panels in sorted(alike.items()):
        if len(panels) == 1:
            continue
        for below in (*(goal.points for goal in panels[0].trained.goals), None):
            of_tasks = [_at(panel, below) for panel in panels]
            said = "all" if below is None else f"{below:g}"
            rows.append([str(workers), f"{loss_pct:g}", said, *_together(of_tasks)])
    headers = ["workers", "loss (%)", "points below", "first or tied on all tasks", "nobody"]
    return markdown.table([*headers, f"{BASELINE} loses"], rows, "rrrlrr")


def _at(panel: Panel, below: float | None) -> Sequence[Grid]:
    """The grid of one target, so many points below, or of all."""
    return panel.grids if below is None else [panel.grids[panel.trained.goal(below)]]


def _together(of_tasks: Sequence[Sequence[Grid]]) -> list[str]:
    """Of the same targets of several tasks: who is first or ties at each, at how many places; the
    places where nobody is; and those where all-reduce loses at each.
    """
    places = list(np.ndindex(of_tasks[0][0].best_s.shape))
    holding = [
        set.intersection(*(set(always_best(grids, *place)) for grids in of_tasks))
        for place in places
    ]
    counts = Counter(name for names in holding for name in sorted(names))
    loses = [all(baseline_loses(grids, *place) for grids in of_tasks) for place in places]
    said = ", ".join(f"{algo} {count}" for algo, count in counts.most_common()) or "-"
    return [said, str(sum(not names for names in holding)), str(sum(loses))]


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
                    ", ".join(f"{algo} {count}" for algo, count in winners.most_common())
                    or "nobody reaches it",
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
    return markdown.table(headers, rows, "llrrr" + "l" * len(tasks()) + "l")


def _first_there(point: Point, task: str) -> str:
    """Who is first at the target 1 point below, by each training that counts."""
    try:
        given: list[Answer] = answers(point.job, [task])
    except UserError:
        return f"no training with {point.job.workers} workers"
    return "; ".join(f"{answer.trained.workers} workers: {answer.first_said()}" for answer in given)


def _basis() -> str:
    source = load()[0]
    commits = ", ".join(commit[:9] for commit in source.commits)
    return "## Where the steps come from\n\n" + _prose(
        f"{source.num_runs} recorded runs that score, of clean trees (commits {commits}), and "
        f"{source.num_trials} trials. `{source.command}` reads them into "
        "`experiments/advise/map/trainings.yaml`; `python -m experiments.study map --list` says "
        "how they were made."
    )

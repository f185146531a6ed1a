"""Tunes all contestants of a study alike, before it scores them.

python -m experiments.equal_tuning draw reference_fashion --trials 6 --out FOLDER
python -m experiments.equal_tuning run --runs RUNS --nets NETS --seeds SEEDS FILE KEY=VALUE ...
python -m experiments.equal_tuning baseline reference_fashion --trials 6 --runs RUNS --out FOLDER
python -m experiments.equal_tuning finalists reference_fashion --trials 6 --runs RUNS \\
    --baseline RUNS --out FOLDER
python -m experiments.equal_tuning choose reference_fashion --trials 6 --runs RUNS \\
    --baseline RUNS --targets RUNS --finals RUNS --out FOLDER

draw: trials.yaml, so many for each contestant of conf/contestants; they follow no result
baseline: baseline.yaml, the baselines' trial of the highest final accuracy, to be run with several
    tuning seeds; all trials have one seed
finalists: finalists.yaml, the three best trials of each contestant and network, to be run again
    with several seeds that no trial had
choose: targets.yaml, the median final accuracy of the baseline, less 2, 1, 0.5 and 0.2 points, with
    --targets by runs of its setting on the examples that score, else by those of --baseline;
    chosen.yaml, the setting of each contestant on each network, with --finals by the median of
    these seeds; trials.md, a table of all trials;
    with --by-algorithm the setting of each algorithm, of all contestants that have it with as many
    workers; with --on-map that at places of the map of `experiments.locate` in place of networks

run: the settings of a file on networks (`none,wan`), unless they name one, with seeds (`0,1`); the
    same command goes on with what is not done
"""

# What trains and what reads runs takes seconds to import, once the command line was looked at.

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from host import commands
from host.command_line.parser import Parser
from host.errors import UserError
from host.output import check_folder, writing

if TYPE_CHECKING:
    from experiments.advise.tuning.draws import Settings

_COMMAND = "python -m experiments.equal_tuning"


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    arguments = _parser().parse_args()
    if arguments.command == "run":
        check_folder(arguments.runs, "--runs")
        if arguments.at_once is not None and arguments.at_once < 1:
            raise UserError(f"--at-once must be at least 1, got {arguments.at_once}")
        with commands.importing():
            from experiments.advise.tuning.draws import load_settings
            from experiments.advise.tuning.settings_runs import fitting_here, run_all, runs_of
        settings = load_settings(arguments.settings)
        runs = list(runs_of(settings, arguments.words, arguments.nets, arguments.seeds))
        at_once = arguments.at_once
        if at_once is None:
            at_once = fitting_here(runs, arguments.runs)
        run_all(runs, arguments.runs, at_once)
        return 0
    if arguments.trials < 1:
        raise UserError(f"--trials must be at least 1, got {arguments.trials}")
    check_folder(arguments.out)
    with commands.importing():
        from experiments.advise.tuning.draws import draw, read_contestants, save_settings
    settings: dict[str, list[str]] = {}
    for name in dict.fromkeys(arguments.contestants):
        own = draw(read_contestants(name), arguments.trials)
        if twice := sorted(settings.keys() & own.keys()):
            raise UserError(f"{name} has {twice[0]}, as a file before it: rename one of them")
        settings |= own
    with writing(arguments.out):
        match arguments.command:
            case "draw":
                remark = f"{_COMMAND} draw: {arguments.trials} trials each"
                save_settings(settings, arguments.out / "trials.yaml", remark)
            case "baseline":
                _save_baseline(settings, arguments.runs, arguments.out)
            case _:
                _choose(settings, arguments)
    return 0


def _save_baseline(settings: Settings, runs: Path, out: Path) -> None:
    from experiments.advise.tuning.draws import save_settings
    from experiments.advise.tuning.trials import best_final, load_tried

    best = best_final(load_tried(settings, runs))
    remark = f"{_COMMAND} baseline: the highest final accuracy of a baseline's trial"
    save_settings({best.contestant: [best.words]}, out / "baseline.yaml", remark)


def _choose(settings: Settings, arguments: argparse.Namespace) -> None:
    """Both `choose` and `finalists`, which chooses the settings that run again."""
    from experiments.advise.tuning import finals, trials
    from experiments.advise.tuning.draws import save_settings
    from experiments.advise.tuning.trials_table import page
    from experiments.report.tuned import save_targets

    out: Path = arguments.out
    tried = trials.load_tried(settings, arguments.runs)
    baseline = trials.best_final(tried)
    seeds = trials.load_trials({baseline.contestant: [baseline.words]}, arguments.baseline)
    judged_at = trials.final_targets(trial.final for trial in seeds)[trials.JUDGED_AT]
    by_algo = arguments.by_algorithm or arguments.on_map
    where, placed = "networks", list[trials.Trial]
    if arguments.on_map:
        from experiments.advise.map.trial_times import on_map

        where, placed = "places", on_map
    groups = trials.by_whom(placed(tried), by_algo=by_algo)
    best_few = finals.finalists(groups, judged_at)
    if arguments.command == "finalists":
        remark = f"{_COMMAND} finalists: the best {finals.NUM_FINALISTS} trials, by {where}"
        save_settings(best_few, out / "finalists.yaml", remark)
        return
    again: list[trials.Trial] = []
    if arguments.finals is not None:
        again = placed(trials.load_trials(best_few, arguments.finals))
        best_there = finals.best_in_finals(groups, again, judged_at)
    else:
        best_there = trials.best_of(groups, judged_at)
    remark = f"{_COMMAND} choose: by points below the tuned baseline, {len(seeds)} tuning seeds"
    if arguments.targets is not None:
        seeds = trials.load_scored(seeds, arguments.targets)
        remark += " on the examples that score"
    targets = trials.final_targets(trial.final for trial in seeds)
    save_targets(targets, out, remark)
    whose = "algorithm" if by_algo else "contestant"
    remark = f"{_COMMAND} choose: one setting for each {whose} and {where.removesuffix('s')}"
    also = []
    if arguments.score_baseline:
        also = [trial for trial in tried if trial.words == baseline.words]
        remark += ", and the one that sets the targets"
    # The map counts the steps to all targets, and looks at no run's own.
    of_runs = judged_at if arguments.on_map else targets[trials.JUDGED_AT]
    settings = trials.chosen(best_there, of_runs, also)
    save_settings(settings, out / "chosen.yaml", remark)
    (out / "trials.md").write_text(page(best_there, judged_at, where, again))


def _parser() -> Parser:
    parser = Parser(
        prog=commands.program("experiments.equal_tuning"),
        description=commands.as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    of_command = parser.add_subparsers(dest="command", required=True)
    _add_run(of_command.add_parser("run"))
    for name in ("draw", "baseline", "finalists", "choose"):
        own = of_command.add_parser(name)
        own.add_argument("contestants", nargs="+", help="files of conf/contestants")
        own.add_argument("--trials", type=int, required=True, help="of each contestant")
        own.add_argument("--out", type=Path, required=True, help="the folder to write")
        if name != "draw":
            own.add_argument("--runs", type=Path, required=True, help="the folder of all trials")
        if name in ("finalists", "choose"):
            own.add_argument(
                "--baseline", type=Path, required=True, help="the folder of `baseline`'s runs"
            )
            own.add_argument(
                "--by-algorithm", action="store_true", help="of all its contestants the best trial"
            )
            own.add_argument("--on-map", action="store_true", help="so, for each place of the map")
        if name == "choose":
            own.add_argument(
                "--targets", type=Path, help="the folder of its runs on the examples that score"
            )
            own.add_argument("--finals", type=Path, help="the folder of the finalists' runs")
            own.add_argument(
                "--score-baseline", action="store_true", help="so scores what sets the targets"
            )
    return parser


def _add_run(parser: Parser) -> None:
    parser.add_argument("settings", type=Path, metavar="FILE", help="trials.yaml or chosen.yaml")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="as for the app, of all runs")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of their records")
    parser.add_argument("--nets", type=_listed, required=True, help="networks, with commas")
    parser.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="trainings side by side; default: one on each core, within memory",
    )
    parser.add_argument("--seeds", type=_seeds, required=True, help="seeds, with commas")


def _listed(text: str) -> list[str]:
    return text.split(",")


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


if __name__ == "__main__":
    commands.run(main)

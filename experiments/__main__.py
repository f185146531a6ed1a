"""The app: `python -m experiments +algo=bytegrad net=slow_tcp`.

Exit codes: 0 done (a run that diverged is a result), 1 a run failed, 2 nothing was run because of
what the command asks for, 128 + the signal that stopped it.
"""

import os
import sys

import hydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.plan.messages import sentence, usage
from experiments.plan.overrides import normalize_overrides
from experiments.plan.schema import CONFIG_DIR
from experiments.real.assignment import find_assignment
from experiments.real.peers import Peers, join
from experiments.runs.job import run_job
from experiments.runs.peer_run import shared_arguments
from experiments.runs.resume import with_saved_overrides
from experiments.runs.study import RunOutcome
from host import commands
from host.errors import UserError
from hydra_plugins.relaxlab.study_sweeper import StudySweeper


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage())
        return 0
    commands.raise_at_sigterm()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the sentence is ours
    outcomes: list[RunOutcome] = []
    started: list[bool] = []
    try:
        assignment = find_assignment(os.environ)
        _run(None if assignment is None else join(assignment), started, outcomes)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(sentence(error)) from error
    except OSError as error:
        if started:
            raise
        raise UserError(
            f"the run's folder cannot be made ({error}): choose another hydra.run.dir=..."
        ) from error
    return 1 if "failed" in [outcome.status for outcome in outcomes] else 0


def _run(peers: Peers | None, started: list[bool], outcomes: list[RunOutcome]) -> None:
    """Have Hydra run what the command line asks for; adds to `started` and `outcomes` what runs in
    this process.
    """
    arguments = sys.argv[1:] if peers is None else shared_arguments(peers, sys.argv[1:])
    sys.argv[1:] = normalize_overrides(with_saved_overrides(arguments))
    Plugins.instance().register(StudySweeper)  # Hydra looks for plugins in fewer places than Python

    @hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="config")
    def app(config: DictConfig) -> RunOutcome:
        started.append(True)
        outcome = run_job(config, peers)
        outcomes.append(outcome)
        return outcome

    app()
    refusal = next((outcome for outcome in outcomes if outcome.status == "refused"), None)
    if refusal is not None:
        raise UserError(refusal.reason)


if __name__ == "__main__":
    commands.run(main)

"""Runs every script on real gloo workers: `python -m tests.bagua_algos.scripts.workers FOLDER 2`.

Each script distributes over the default process group, as strangers do, and releases at its end.
Names after the number of workers choose some of them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.scripts import hooks, models, sharing, steps, striped, weights
from tests.bagua_algos.scripts.training import Results

SCRIPTS: dict[str, Callable[[], Results]] = {
    script.__name__: script
    for script in (
        striped.streams,
        striped.measured_streams,
        striped.patterns,
        sharing.shared_memory,
        steps.two_models,
        steps.other_order,
        steps.own_collectives,
        steps.no_forward,
        steps.closures,
        steps.compiled,
        steps.accumulation,
        steps.out_of_examples,
        steps.own_gradients,
        steps.reentrant,
        steps.second_order,
        weights.moved_weights,
        weights.kept_weights,
        weights.evaluations,
        weights.copies,
        models.more_parameters,
        models.wrapped,
        models.different_models,
        models.grown_buffers,
        models.types,
        models.resumed,
        models.dropped,
        models.part_of_dropped,
        hooks.gradient_hooks,
        hooks.optimizer_in_backward,
        hooks.one_releases,
        hooks.apart,
        striped.dead_stream,
    )
}


def run_all(communicator: ProcessGroupCommunicator) -> dict[str, Results]:
    return {name: SCRIPTS[name]() for name in sys.argv[3:] or SCRIPTS}


if __name__ == "__main__":
    sys.exit(fork_workers(run_all, Path(sys.argv[1]), int(sys.argv[2])))

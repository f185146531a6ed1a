"""The app, where each step takes `STEP_S` more, and something of a worker has to be heard every
`LIMIT_S`: `python -m tests.experiments.real.slow_steps +algo=...`.
"""

import time
from collections.abc import Mapping

from experiments.__main__ import main
from host import commands

STEP_S = 0.25
LIMIT_S = 5.0
NUM_STEPS = 28
"""Together they take two seconds longer than the limit."""


def slow_down() -> None:
    from experiments.real import worker
    from experiments.real.supervisor import Supervisor
    from experiments.training.step import Step

    take, await_all = Step.__call__, Supervisor.await_all

    def take_slowly(self: Step, *arguments):
        time.sleep(STEP_S)
        return take(self, *arguments)

    def await_briefly(
        self: Supervisor, answers: Mapping[int, object], limit_s: float, deed: str
    ) -> None:
        await_all(self, answers, LIMIT_S if deed == "finished" else limit_s, deed)

    Step.__call__ = take_slowly
    Supervisor.await_all = await_briefly
    worker.ALIVE_EVERY_S = 0.5


if __name__ == "__main__":
    slow_down()
    commands.run(main)

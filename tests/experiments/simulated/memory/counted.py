"""What trainings take, counted."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bagua_algos.communication.threads.job_thread import JobThread
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.memory.live_bytes import LiveBytes
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.simulate import train_simulated


def plan_of(folder, *words):
    common = ["backend=sim", "task=mnist5k", "max_steps=2", "eval_every=2"]
    return make_plan(compose_config([*common, *words]), folder)


class OnThread(TorchDispatchMode):
    """Lets `live` count what another thread makes."""

    def __init__(self, live):
        super().__init__()
        self.live = live

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.live.__torch_dispatch__(func, types, args, kwargs)


def bytes_taken(plan, data, monkeypatch):
    """The most that tensors of a training take, those of its lanes included."""
    profile = rehearse(plan, data, sharing=1, num_steps=2, seconds=0)
    torch.set_num_threads(1)
    submit = JobThread.submit

    def submit_counted(self, job):
        def counting():
            with OnThread(live):
                job()

        return submit(self, counting)

    with monkeypatch.context() as patched, LiveBytes() as live:
        patched.setattr(JobThread, "submit", submit_counted)
        train_simulated(plan, data, profile, lambda row: None)
    return live.most

"""Simulated clocks at work on whole steps, and the same steps replayed from their jobs alone."""

from dataclasses import dataclass, replace

import pytest
import torch

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.clocks import SimulatedClocks, by_profile
from experiments.simulated.profile import JobKernels
from experiments.simulated.replay import RecordedTraining, replay
from experiments.simulated.simulate import make_timeline
from experiments.tasks.batches import Batches
from experiments.training.metrics import MetricsRow
from experiments.training.step import make_step
from tests.experiments.simulated.profiles import profile_of_a_second

WORKERS = 3
WORDS = ("algo=allreduce", "model=mlp", "model.hidden=[16]", f"workers={WORKERS}", "backend=sim")
HUGE = 2.0**60


@dataclass(frozen=True, kw_only=True)
class AtStepBegin(Algorithm):
    """Averages gradients after all that the user did to them."""

    def on_step_begin(self, context):
        for bucket in context.buckets:
            context.communicator.all_reduce_mean_(bucket.gradients)


class Training:
    """Simulated workers whose steps take a second without communication; rows of their times."""

    def __init__(self, folder, *words, algorithm=None, jobs=()):
        self.plan = make_plan(compose_config([*WORDS, "net=wan", *words]), folder)
        if algorithm is not None:
            self.plan = replace(self.plan, algorithm=algorithm)
        torch.manual_seed(0)
        self.profile = replace(profile_of_a_second(), ready_s=(0.4,) * 9, jobs=jobs)
        self.clocks = SimulatedClocks(self.timeline(), self.profile)
        workers, nodes = self.plan.workers, self.plan.nodes
        communicator = StackedCommunicator(workers, self.clocks, self.clocks.now_s, nodes)
        model = StackedModel(self.plan.model, workers)
        optimizer = self.plan.make_optimizer(model.parameters())
        train = self.plan.task.load().train
        self.take_step = make_step(self.plan, train, model, optimizer, communicator, self.clocks)
        self.batches = Batches(
            num_examples=len(train),
            world_size=workers,
            ranks=communicator.ranks,
            batch_size=self.plan.batch_size,
            seed=0,
        )
        self.rows = []

    def timeline(self):
        return make_timeline(self.plan, self.profile)

    def run(self, num_steps):
        for step in range(len(self.rows), len(self.rows) + num_steps):
            with self.clocks.running():
                self.take_step(self.batches.indices(step))
            self.rows.append(
                MetricsRow(
                    kind="step",
                    step=step + 1,
                    time_s=self.clocks.now_s(),
                    bytes_sent=round(float(self.clocks.timeline.bytes_sent.mean())),
                    exposed_communication_s=self.clocks.exposed_communication_s,
                )
            )

    def scale(self, scale):
        scaler = self.take_step.scaler
        scaler.load_state_dict(scaler.state_dict() | {"scale": scale})

    def replayed(self):
        script = by_profile(self.clocks.script, self.profile)
        training = RecordedTraining(rows=self.rows, script=script, result=None)
        return list(replay(training, self.timeline()))


def test_a_step_that_overflows_takes_its_time_and_its_place(tmp_path):
    training = Training(tmp_path, "precision=float16")
    training.run(2)
    training.scale(HUGE)
    training.run(1)
    training.scale(1.0)
    training.run(3)
    before_s, after_s = (training.rows[index].time_s for index in (1, 2))
    assert after_s - before_s > training.profile.forward_s + training.profile.backward_s
    assert len(training.clocks.script) == 6
    assert training.replayed() == training.rows
    training.clocks.timeline.barrier()  # between two steps, as at a checkpoint


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ((), None),
        ((), AtStepBegin()),
        (("precision=float16",), None),
        (("precision=float16", "bucket_bytes=1"), None),
        (("precision=float16",), AtStepBegin()),
    ],
)
def test_a_replay_has_the_times_and_the_bytes_of_its_training(words, algorithm, tmp_path):
    training = Training(tmp_path, *words, algorithm=algorithm)
    training.run(4)
    assert training.replayed() == training.rows


HIERARCHICAL = ("algo=bytegrad", "algo.hierarchical=true", "net=two_sites", "workers=4")


def test_a_node_has_the_kernels_that_its_worker_rehearsed_while_others_do_the_same(tmp_path):
    kernels_s = (0.1, 0.2, 0.3, 0.4, 0.5)
    job = JobKernels(moment="on_bucket_ready", bucket=0, kernels_s=kernels_s)
    training = Training(tmp_path, *HIERARCHICAL, "trace=true", jobs=(job,))
    training.run(2)
    ((done,), _) = training.clocks.script
    work = [part if isinstance(part, float) else (part.name, part.ranks) for part in done.work]
    assert work == [
        *(0.1, ("all_reduce_mean", (0, 1)), ("all_reduce_mean", (2, 3))),
        *(0.2, ("all_to_all", (0, 2)), 0.3, ("all_gather", (0, 2))),
        *(0.4, ("broadcast", (0, 1)), ("broadcast", (2, 3)), 0.5),
    ]
    for worker in range(4):
        events = [e for e in training.clocks.timeline.events if e.worker == worker]
        charged_s = sum(e.end_s - e.start_s for e in events if e.name == "kernel")
        assert charged_s == pytest.approx(2 * sum(kernels_s))
    slower = replace(job, kernels_s=tuple(3 * kernel_s for kernel_s in kernels_s))
    ((again,), _) = by_profile(training.clocks.script, replace(training.profile, jobs=(slower,)))
    assert [part for part in again.work if isinstance(part, float)] == list(slower.kernels_s)
    assert training.replayed() == training.rows

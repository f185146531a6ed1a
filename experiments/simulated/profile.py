"""How long a worker's own work takes on a device: what a simulated run is timed by.

Measured by rehearsal (`experiments.simulated.rehearsal`), kept as YAML beside the run, reusable.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bagua_algos.engine.algorithm import Algorithm, acts_at
from bagua_algos.engine.bucket import grouped
from experiments.plan.model_check import described
from experiments.plan.plan import Plan
from experiments.tasks.base import TaskData
from host.errors import UserError
from host.output import writing
from host.words import counted
from netsim.conditions.link import check_number
from netsim.timeline.compute import ComputeTimes


@dataclass(frozen=True, kw_only=True)
class JobKernels:
    """What a lane computes at one moment of the algorithm, for one bucket where it has one: the
    seconds before its first operation, between them, and after the last.
    """

    moment: str
    bucket: int | None
    kernels_s: tuple[float, ...]

    @property
    def key(self) -> tuple[str, int | None, int]:
        """A job of one moment and bucket may have other operations at other steps."""
        return self.moment, self.bucket, len(self.kernels_s) - 1

    def check(self) -> None:
        """Raise `ValueError` for what is no job of a training step."""
        if not (self.moment.startswith("on_") and hasattr(Algorithm, self.moment)):
            raise ValueError(f"{self.moment!r} is no moment of a step, such as on_bucket_ready")
        if self.bucket is not None and type(self.bucket) is not int:
            raise ValueError(f"a bucket has to be a whole number or null, not {self.bucket!r}")
        if not self.kernels_s:
            raise ValueError("kernels_s has to have one number or more")
        for seconds in self.kernels_s:
            check_number("Every entry of kernels_s", seconds)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One training step of one worker without its communication: means, in seconds.

    `forward_s` from the beginning of the step to the end of forward; from there on, `ready_s` until
    each bucket's gradients are final and `backward_s` until all are; `optimizer_s` until the end of
    the step. The jobs of the lanes are apart. `sharing` workers were on the device at once, and
    `late_s` is what a worker waited for the last of them. By `warm_up_s` the first steps together
    took longer than as many later ones. Where batches are cut to their longest example, a step is
    longer by the part `per_place` of the mean for each place more than `mean_places`.
    """

    device: str
    sharing: int
    setting: dict[str, Any]
    forward_s: float
    late_s: float
    ready_s: tuple[float, ...]
    backward_s: float
    optimizer_s: float
    jobs: tuple[JobKernels, ...]
    warm_up_s: float = 0.0
    per_place: float = 0.0
    mean_places: float = 0.0

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """Read a profile's YAML. Raises `UserError` for what is none."""
        try:
            return cls.from_plain(yaml.safe_load(path.read_text()))
        except (OSError, yaml.YAMLError, *_UNREADABLE) as error:
            raise UserError(
                f"profile={path} cannot be read ({error}): make one by python -m "
                "experiments.calibrate"
            ) from error

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "Profile":
        """Of what `plain` gives. Raises TypeError, KeyError or ValueError for what is none."""
        jobs = [
            JobKernels(**job | {"kernels_s": tuple(job["kernels_s"])}) for job in values["jobs"]
        ]
        profile = cls(**values | {"jobs": tuple(jobs), "ready_s": tuple(values["ready_s"])})
        if not isinstance(profile.setting, dict) or not isinstance(profile.device, str):
            raise ValueError("setting has to be a mapping, and device a text")
        profile._check_numbers()
        return profile

    def _check_numbers(self) -> None:
        """Raise `ValueError` for times that no step takes."""
        ComputeTimes(
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            bucket_ready_s=self.ready_s,
            optimizer_s=self.optimizer_s,
            warm_up_s=self.warm_up_s,
        )
        for name in ("late_s", "per_place", "mean_places"):
            check_number(name, getattr(self, name))
        for job in self.jobs:
            job.check()
        if len({job.key for job in self.jobs}) < len(self.jobs):
            raise ValueError("two jobs are of one moment and bucket, with equally many kernels_s")

    def plain(self) -> dict[str, Any]:
        """Its values as YAML and JSON have them, times rounded to four digits."""
        return _plain(asdict(self))

    def save(self, path: Path) -> "Profile":
        """Write it as YAML; returns it as it stands there, its times rounded."""
        with writing(path, "another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(self.plain(), sort_keys=False))
        return self.load(path)

    def check(self, plan: Plan, data: TaskData) -> None:
        """Raise `UserError` where it is not of what `plan` trains on `data`, has other buckets or
        jobs, or is of another number of workers that share a device. Those that a CPU computes may
        be timed by a GPU of another host.
        """
        setting = setting_of(plan, data) | {_SHARING: plan.cluster.sharing}
        unsaid = {key: setting[key] for key in _NEWER} | _BEFORE
        known = unsaid | self.setting | {_SHARING: self.sharing}
        for key, value in setting.items():
            of_profile = known.get(key)
            if not _fits(of_profile, value) and (key, value) != (_DEVICE, "cpu"):
                option = f" {key}={value}" if key == _SHARING else ""
                raise UserError(
                    f"the profile is of {key}={of_profile}, and this run has "
                    f"{key}={value}: {_REMEDY}{option}"
                )
        self._check_jobs(*buckets_and_jobs_of(plan))

    def _check_jobs(self, num_buckets: int, jobs: set[tuple[str, int | None]]) -> None:
        if len(self.ready_s) != num_buckets:
            raise UserError(
                f"the profile has {counted(len(self.ready_s), 'time')} in ready_s, and this run "
                f"has {counted(num_buckets, 'bucket')} that need one: {_REMEDY}"
            )
        own = {(job.moment, job.bucket) for job in self.jobs}
        for moment, bucket in sorted(own ^ jobs, key=str):
            of = f"{moment} of {'all buckets' if bucket is None else f'bucket {bucket}'}"
            one, other = "profile", "run"
            if (moment, bucket) in jobs:
                one, other = other, one
            raise UserError(f"the {one} has work at {of}, and the {other} has none: {_REMEDY}")

    @property
    def kind_of_device(self) -> str:
        """ "cuda" for a GPU, else "cpu"; older profiles tell it by the device's name."""
        is_gpu = self.device.startswith(_GPUS)
        return self.setting.get(_DEVICE, "cuda" if is_gpu else "cpu")

    @property
    def work_s(self) -> float:
        """Compute and every job's kernels: by it rehearsals of one thing are compared."""
        kernels_s = sum(sum(job.kernels_s) for job in self.jobs)
        return self.forward_s + self.backward_s + self.optimizer_s + kernels_s

    def kernels_s(self, moment: str, bucket: int | None, num_operations: int) -> Sequence[float]:
        """The kernel seconds of a job before, between and after its operations.

        Where it was rehearsed with more operations or fewer alone, these take as long together, in
        equal parts. Zeros for a job that was not rehearsed, and for one that sends nothing where it
        was rehearsed sending.
        """
        alike = [job for job in self.jobs if (job.moment, job.bucket) == (moment, bucket)]
        nearest = min(alike, key=lambda job: abs(job.key[-1] - num_operations), default=None)
        if nearest is not None and nearest.key[-1] == num_operations:
            return nearest.kernels_s
        together_s = sum(nearest.kernels_s) if nearest is not None and num_operations else 0.0
        return (together_s / (num_operations + 1),) * (num_operations + 1)


def setting_of(plan: Plan, data: TaskData) -> dict[str, Any]:
    """What a profile is of, and a run by it must be, too. Of the algorithm's fields that is what
    changes the kind of its work alone, not how much there is of it (bits, rank, interval), since
    the trials of a search may go by one profile; nor is the number of workers.
    """
    names = {key: plan.names[key] for key in ("task", "model", "optim", "algo")}
    numbers = ("batch_size", "precision", "accumulate", "bucket_bytes")
    crop = {"data.sampler.crop": plan.loading.sampler.crop}
    size = {"parameters": sum(p.numel() for p in plan.model.parameters())}
    compressor = getattr(plan.algorithm, "compressor", None)
    newer = {
        "algo.compressor": compressor and type(compressor).__name__,
        "algo.hierarchical": plan.algorithm.needs_nodes,
        "cluster.threads_per_worker": plan.cluster.threads_per_worker,
        _DEVICE: plan.backend.device,
        "example": _example(plan, data),
        "clipping": plan.clip_norm is not None,
    }
    return names | size | {name: getattr(plan, name) for name in numbers} | crop | newer


def buckets_and_jobs_of(plan: Plan) -> tuple[int, set[tuple[str, int | None]]]:
    """How many buckets have a time to be ready in every profile of `plan`, none where the algorithm
    does not act on them one by one; and the moment and the bucket of each of its jobs in a step.
    """
    trained = [p for p in reversed(list(plan.model.parameters())) if p.requires_grad]
    groups = grouped(trained, num_held=1, bucket_bytes=plan.bucket_bytes)
    moments = [moment for moment in _MOMENTS if acts_at(plan.algorithm, moment)]
    buckets = range(len(groups) if _READY in moments else 0)
    others: set[tuple[str, int | None]] = {(moment, None) for moment in moments if moment != _READY}
    return len(buckets), others | {(_READY, bucket) for bucket in buckets}


def _example(plan: Plan, data: TaskData) -> str:
    """What the model takes for one example, such as "float32 [3, 224, 224]", by the first ones. In
    place of a size in which these differ, as where each batch is padded to its longest, is a "?".
    """
    num_examples = min(len(data.train), _NUM_LOOKED_AT)
    firsts = range(0, max(1, num_examples - 1), 2)  # of pairs, which every task makes batches of
    batches = (data.train.batch(np.arange(at, min(at + 2, num_examples))[None]) for at in firsts)
    seen = [described(plan.task.inputs(x_wb), num_leading=2).split() for x_wb, _ in batches]
    if len({len(words) for words in seen}) > 1:
        return _VARYING
    return " ".join(
        words[0] if len(set(words)) == 1 else re.sub(r"\w+", _VARYING, words[0])
        for words in zip(*seen, strict=True)
    )


def _fits(known: Any, value: Any) -> bool:
    """Equal, but for sizes of examples that vary in the one or the other."""
    if known == value or _VARYING in (known, value):
        return True
    if not (isinstance(known, str) and isinstance(value, str)):
        return False
    pairs = list(zip_longest(known.split(), value.split(), fillvalue=""))
    return all(one == other or _VARYING in one + other for one, other in pairs)


_REMEDY = "give profile=null, or make one by python -m experiments.calibrate"

_UNREADABLE = (TypeError, KeyError, ValueError, AttributeError, RecursionError)
"""What reading a profile raises where there is none."""

_GPUS = ("NVIDIA", "Tesla", "Quadro", "GeForce")
"""How their names begin."""
_READY = "on_bucket_ready"
_MOMENTS = ("on_forward", _READY, "on_backward_end", "on_step_begin", "on_step_end")
"""Of a step, which all leave a job in a profile where the algorithm acts there."""

_SHARING = "cluster.sharing"
_DEVICE = "device"

_VARYING = "?"
_NUM_LOOKED_AT = 8

_NEWER = (
    *("parameters", "algo.compressor", "algo.hierarchical", "cluster.threads_per_worker"),
    *(_DEVICE, "example", "clipping"),
)
"""What older profiles do not say, which then are of any."""

_BEFORE = {"data.sampler.crop": False}
"""What was so before profiles said it."""


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value

"""Which examples, buckets and jobs a profile is of: a run of others is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.profile import JobKernels, setting_of
from experiments.tasks.base import Split, TaskData
from experiments.tasks.own.splits import DatasetSplit
from host.errors import UserError
from tests.experiments.simulated.profiles import profile_of_a_second
from tests.experiments.tasks.own.made import pictures

PICTURES = ("task=image_folder", "model=resnet18", "model.width=8", "model.num_classes=2")


def plan_of(folder, *words):
    return make_plan(compose_config(["algo=allreduce", "backend=sim", *words]), folder)


def of_split(split):
    return TaskData(split, split, split)


def profile_of(plan, data):
    return replace(profile_of_a_second(), setting=setting_of(plan, data))


def test_a_profile_is_of_one_size_of_pictures(tmp_path):
    """A model of any size of them has equally many parameters."""
    root = f"task.root={pictures(tmp_path / 'pictures')}"
    small, large = (plan_of(tmp_path, *PICTURES, root, f"task.size={n}") for n in (16, 96))
    profile = profile_of(small, small.load_data())
    profile.check(small, small.load_data())
    with pytest.raises(UserError) as refused:
        profile.check(large, large.load_data())
    sizes = "is of example=float32 [3, 16, 16], and this run has example=float32 [3, 96, 96]: "
    assert sizes in str(refused.value)


@pytest.mark.parametrize(("shape", "dtype"), [((28, 14), np.uint8), ((28, 28, 1), np.uint8)])
def test_arrays_tell_their_sizes(shape, dtype, tmp_path):
    plan = plan_of(tmp_path, "task=jane_austen", "model=char_transformer")
    data, other = (
        of_split(Split(np.zeros((5, *s), dtype), np.zeros(5))) for s in ((28, 28), shape)
    )
    profile_of(plan, data).check(plan, data)
    with pytest.raises(UserError, match=r"is of example=int64 \[28, 28\], and this run has"):
        profile_of(plan, data).check(plan, other)


def job(moment="on_bucket_ready", bucket: int | None = 0):
    return JobKernels(moment=moment, bucket=bucket, kernels_s=(0.1,))


OF_OTHERS = {
    "more buckets": ("allreduce", {"ready_s": (0.1, 0.4)}, "2 times in ready_s.* 1 bucket that"),
    "fewer buckets": ("allreduce", {"ready_s": ()}, "0 times in ready_s.* 1 bucket that"),
    "no jobs": ("allreduce", {"jobs": ()}, "run has work at on_bucket_ready of bucket 0"),
    "too few jobs": ("qadam", {}, "run has work at on_step_begin of all buckets"),
    "another bucket": (
        "allreduce",
        {"jobs": (job(), job(bucket=1))},
        "profile has work at on_bucket_ready of bucket 1, and the run has none",
    ),
    "another moment": (
        "allreduce",
        {"jobs": (job(), job("on_step_end", None))},
        "profile has work at on_step_end of all buckets",
    ),
    "buckets that nobody waits for": (
        "sgp",
        {"jobs": (job("on_forward", None), job("on_step_end", None))},
        "1 time in ready_s.* 0 buckets that",
    ),
}


@pytest.mark.parametrize(("algo", "values", "said"), OF_OTHERS.values(), ids=OF_OTHERS)
def test_a_profile_of_other_buckets_or_jobs_is_refused(algo, values, said, tmp_path):
    plan = plan_of(tmp_path, f"algo={algo}", "task=mnist5k", "model=mlp")
    data = plan.load_data()
    profile = replace(profile_of(plan, data), **values)
    with pytest.raises(UserError, match=f"{said}.*: give profile=null, or make one by"):
        profile.check(plan, data)


def test_a_profile_has_a_time_and_a_job_for_each_bucket(tmp_path):
    plan = plan_of(tmp_path, "task=mnist5k", "model=mlp", "bucket_bytes=4096")
    data = plan.load_data()
    num_buckets = len(list(plan.model.parameters())) // 2  # a layer's weights fill one
    jobs = tuple(job(bucket=k) for k in range(num_buckets))
    profile = replace(profile_of(plan, data), ready_s=(0.4,) * num_buckets, jobs=jobs)
    profile.check(plan, data)
    with pytest.raises(UserError, match="run has work at on_bucket_ready of bucket 2"):
        replace(profile, jobs=jobs[:2]).check(plan, data)


class Texts(Dataset):
    """Of `width` numbers at each place; the examples are as long as `lengths` in turn."""

    def __init__(self, lengths, width=3):
        self.lengths, self.width = lengths, width

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.zeros(self.lengths[index % len(self.lengths)], self.width)


def padded(items):
    ids_b = pad_sequence(items, batch_first=True)
    return {"ids": ids_b, "mask": ids_b[..., 0] == 0, "labels": torch.zeros(len(items))}


def padded_texts(*lengths, width=3):
    return of_split(DatasetSplit(Texts(lengths, width), padded))


def test_lengths_that_vary_are_no_difference_and_others_are(tmp_path):
    """Where each batch is padded to its longest example, and by names."""
    plan = plan_of(tmp_path, "task=mnist5k", "model=mlp")
    plan = replace(plan, task=replace_inputs(plan.task))
    varying, fixed, longer = padded_texts(4, 5, 6), padded_texts(8), padded_texts(9)
    assert setting_of(plan, varying)["example"] == "ids float32 [?, 3], mask bool [?]"
    assert setting_of(plan, fixed)["example"] == "ids float32 [8, 3], mask bool [8]"
    for one, other in ((varying, fixed), (fixed, varying), (varying, padded_texts(7, 2, 9))):
        profile_of(plan, one).check(plan, other)
    for one, other in ((fixed, longer), (varying, padded_texts(4, 5, 6, width=2))):
        with pytest.raises(UserError, match="is of example=ids"):
            profile_of(plan, one).check(plan, other)


def replace_inputs(task):
    """The task, which gives a model what is stored."""
    changed = replace(task)
    object.__setattr__(changed, "inputs", lambda x: x)
    return changed


def test_one_example_is_enough(tmp_path):
    plan = plan_of(tmp_path, "task=jane_austen", "model=char_transformer")
    one = of_split(Split(np.zeros((1, 6), np.uint8), np.zeros(1)))
    assert setting_of(plan, one)["example"] == "int64 [6]"

"""Every YAML in conf/ is composed and instantiated."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from bagua_algos import AllReduce, CompressedAllReduce
from experiments.config import CONFIG_DIR, GROUPS, Plan, make_plan, normalize_overrides
from experiments.errors import UserError
from experiments.messages import choices
from netsim.condition import NetworkCondition

EVERY_CHOICE = [f"{group}={choice}" for group in GROUPS for choice in choices(group)]


def plan_of(*overrides: str) -> Plan:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", ["algo=allreduce", *overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return make_plan(config)


@pytest.mark.parametrize("choice", EVERY_CHOICE)
def test_every_choice_can_be_made(choice):
    group, name = choice.split("=")
    plan = plan_of(choice)
    if group in plan.names:
        assert plan.names[group] == name
    header = (CONFIG_DIR / group / f"{name}.yaml").read_text().splitlines()[0]
    assert header.startswith("# python -m experiments "), "a YAML begins with the command to use it"
    words = header.removeprefix("# python -m experiments ").split()
    plan_of(*normalize_overrides(words))


def test_every_group_has_a_choice_and_every_folder_is_a_group():
    assert sorted(p.name for p in CONFIG_DIR.iterdir() if p.is_dir()) == sorted(GROUPS)
    assert all(choices(group) for group in GROUPS)


def test_what_is_chosen_is_what_is_made():
    plan = plan_of("algo=bytegrad", "algo.error_feedback=true", "net=lan_1g", "workers=7")
    assert isinstance(plan.algorithm, CompressedAllReduce)
    assert plan.algorithm.error_feedback
    assert plan.net == NetworkCondition(rate_mbit=1000)
    assert plan.workers == 7
    assert isinstance(plan_of().algorithm, AllReduce)


def test_the_seed_draws_the_weights():
    def weights(seed):
        return [p.detach() for p in plan_of(f"seed={seed}").model.parameters()]

    assert all(a.equal(b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(a.equal(b) for a, b in zip(weights(1), weights(2), strict=True))


def test_the_target_is_the_tasks_unless_given():
    assert plan_of("task=fashion_mnist").target_accuracy == 0.90
    assert plan_of("task=fashion_mnist", "target_accuracy=0.5").target_accuracy == 0.5


@pytest.mark.parametrize(
    "override",
    [
        *("workers=0", "batch_size=0", "max_steps=0", "eval_every=0", "log_every=0", "seed=-1"),
        *("bucket_bytes=0", "target_accuracy=0", "target_accuracy=nan", "cluster.timeout_s=0"),
        *("cluster.threads_per_worker=0", "net.rate_mbit=inf", "model.hidden=0"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused_by_name(override):
    key = override.split("=")[0].split(".")[-1]
    with pytest.raises(UserError, match=key):
        plan_of(override)


def test_a_plus_before_a_group_means_the_group():
    given = ["-m", "+algo=a,b", "+foo=1", "net=x", "+net.delay_ms=1"]
    assert normalize_overrides(given) == ["-m", "algo=a,b", "+foo=1", "net=x", "+net.delay_ms=1"]

"""Every YAML in conf/ is composed and instantiated."""

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from bagua_algos import AllReduce, CompressedAllReduce
from bagua_algos.communication.topology import (
    Complete,
    RandomMatching,
    Ring,
    ShiftOne,
)
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from experiments.plan import part
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.identity import ADDED, completed, config_text, plain
from experiments.plan.limits import of_targets
from experiments.plan.messages import choices
from experiments.plan.overrides import normalize_overrides, read_word, values_of
from experiments.plan.plan import Plan
from experiments.plan.schema import GROUPS
from experiments.tasks.target import Target
from host.conf import PACKAGED
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from tests.experiments.installed import skip_without_minilm
from tests.experiments.tasks.own import formats

EVERY_CHOICE = [f"{group}={choice}" for group in GROUPS for choice in choices(group)]
NESTED = sorted(path for group in GROUPS for path in (PACKAGED / group).glob("*/*.yaml"))
LARGE = ("bert_base", "bert_large", "gpt2_small", "resnet50", "vgg16")
"""Models whose weights take seconds to draw."""
OF_OWN_DATA = ("own", "dataset", "image_folder", "imagenet", "squad", "glue", "speech_commands")
"""Tasks that look at a user's data, or code, when they are made."""
FOLDER = Path("a run's folder, which a plan does not touch")


def plan_of(*overrides: str) -> Plan:
    return make_plan(compose_config(["algo=allreduce", *overrides]), FOLDER)


@pytest.mark.parametrize("choice", EVERY_CHOICE)
def test_every_choice_can_be_made(choice):
    group, name = choice.split("=")
    if name.startswith(("minilm", "movie")):  # a task's header names the model
        skip_without_minilm()
    if name.startswith(("bert", "gpt2")):
        pytest.importorskip("transformers", reason="the extra text is not installed")
    lines = (PACKAGED / group / f"{name}.yaml").read_text().splitlines()
    header = lines[lines[0] == "# @package _global_"]  # which has to come first
    assert header.startswith("# python -m experiments "), "a YAML begins with the command to use it"
    words = normalize_overrides(header.removeprefix("# python -m experiments ").split())
    has_own_data = name in (*LARGE, *OF_OWN_DATA)
    if group in ("model", "task") and any(": ???" in line for line in lines):
        with pytest.raises(UserError, match=rf"^{group}\.\w+ is missing: give {group}\."):
            plan_of(choice)
    elif has_own_data or choice not in words or any(w.startswith(f"{group}.") for w in words):
        # Else the header's command makes the choice as it is.
        # Large models without their weights, which nobody looks at here.
        with torch.device("meta") if name in LARGE else nullcontext():
            check_name(plan_of(choice), choice)
    if not has_own_data:
        check_name(plan_of(*words), choice)


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_a_network_names_none_but_workers_that_there_are(backend):
    words = (f"backend={backend}", "workers=3")
    faults = "net.faults=[{worker: WORKER, at_s: 1, for_s: 1}]"
    for net in ("net.workers={WORKER: {rate_mbit: 1}}", faults):
        plan_of(*words, net.replace("WORKER", "2"))
        with pytest.raises(UserError, match="names the rank 3, and 3 workers have the ranks 0 to"):
            plan_of(*words, net.replace("WORKER", "3"))


def check_name(plan: Plan, choice: str) -> None:
    """Of a plan that is made of a choice."""
    group, name = choice.split("=")
    if group in plan.names and name != "auto":
        assert plan.names[group] == name


@pytest.mark.parametrize("path", NESTED, ids=lambda p: str(p.relative_to(PACKAGED)))
def test_every_choice_of_a_part_can_be_made(path):
    header, *_ = path.read_text().splitlines()
    assert header.startswith("# python -m experiments "), "a YAML begins with the command to use it"
    words = shlex.split(header.removeprefix("# python -m experiments "))
    group, part = path.parts[-3:-1]
    assert f"{group}.{part}={path.stem}" in words
    plan = plan_of(*words)
    groups = {"algo": plan.algorithm, "cluster": plan.cluster, "data": plan.loading}
    made = getattr(groups[group], part)
    assert type(made).__name__.lower() == path.stem.replace("_", "")


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_can_be_made(name, tmp_path):
    """By the command of its header; a sweep by the first of its values."""
    text = (PACKAGED / "experiment" / f"{name}.yaml").read_text()
    first, header, *_ = text.splitlines()
    assert first == "# @package _global_"
    words = header.removeprefix("# python -m experiments ").split()
    assert f"experiment={name}" in words
    is_large = name in ("bert_squad", "gpt2_text")
    if is_large:
        pytest.importorskip("transformers", reason="the extra text is not installed")
    if name == "bert_squad":  # by data that are there, and drawn weights
        own = (f"task.root={formats.squad(tmp_path)}", "task.tokenizer=")
        words = [*words[:2], own[0], f"{own[1]}{formats.tokenizer(tmp_path / 'words')}"]
    config = yaml.safe_load(text)
    chosen = [own for own in config["defaults"] if isinstance(own, dict)]
    if any(own.get("override /model", "").startswith("minilm") for own in chosen):
        skip_without_minilm()
    swept = config.get("hydra", {}).get("sweeper", {}).get("params", {})
    values = {key: str(value).split(",") for key, value in swept.items()}
    assert all(set(values.get(group, ())) <= set(choices(group)) for group in GROUPS)
    sweep = [f"{key}={own[0]}" for key, own in values.items()]
    given = [word.split(",")[0] for word in words if word != "-m"]
    with torch.device("meta") if is_large else nullcontext():
        plan = plan_of(*sweep, *given)
    assert plan.max_steps == config["max_steps"]


def test_a_part_is_chosen_by_its_name_or_by_its_values():
    def topology(*words):
        return plan_of(*normalize_overrides(words)).algorithm.topology

    assert topology("+algo=decentralized") == Ring()
    assert topology("+algo=decentralized", "algo.topology=shift_one") == ShiftOne()
    assert topology("algo.topology=complete", "algo=choco_sgd") == Complete()
    seeded = ("algo=sgp", "algo.topology=random_matching", "seed=3")
    assert topology(*seeded) == RandomMatching(seed=3)
    assert topology(*seeded, "algo.topology.seed=5") == RandomMatching(seed=5)
    values = "algo.topology={_target_:bagua_algos.communication.topology.Complete}"
    assert topology("algo=decentralized", values) == Complete()


def test_a_topology_that_an_algorithm_cannot_use_is_refused_with_the_reason():
    with pytest.raises(UserError, match=r"algo: .*must be Ring, not Exponential"):
        plan_of("algo=low_precision_decentralized", "algo/topology=exponential")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cluster.straggler=3", r"cluster\.straggler=3 is of simulated workers: leave "),
        ("cluster/jitter=lognormal", r"cluster\.jitter is of simulated workers: leave "),
    ],
)
def test_real_workers_are_not_slowed_down(word, said):
    with pytest.raises(UserError, match=said):
        plan_of(word)
    assert plan_of(word, "backend=sim").backend.is_simulated


def test_a_star_means_the_algorithms_and_not_their_parts():
    with initialize_config_dir(str(PACKAGED), version_base="1.3"):
        config_loader = GlobalHydra.instance().config_loader()
        assert "topology" not in config_loader.get_group_options("algo", ObjectType.CONFIG)


def test_every_group_has_a_choice_and_every_folder_is_a_group():
    folders = {p.name for p in PACKAGED.iterdir() if p.is_dir()}
    assert folders == {*GROUPS, "contestants", "experiment", "study", "tune", "hydra"}
    assert all(choices(group) for group in GROUPS)


def test_what_is_chosen_is_what_is_made():
    plan = plan_of("algo=bytegrad", "algo.error_feedback=true", "net=lan_1g", "workers=7")
    assert isinstance(plan.algorithm, CompressedAllReduce)
    assert plan.algorithm.error_feedback
    assert plan.net == NetworkCondition(rate_mbit=1000)
    assert plan.workers == 7
    assert isinstance(plan_of().algorithm, AllReduce)


class SaysNothing:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise ValueError


def test_a_class_that_refuses_without_a_word_is_named():
    target = f"{__name__}.SaysNothing"
    with pytest.raises(UserError, match=r"^task: ValueError$"):
        part.make_part(OmegaConf.create({"_target_": target}), "task")
    with pytest.raises(UserError, match=r"^optim: ValueError$"):
        plan_of("model=mlp", f"optim._target_={target}")


def test_the_seed_draws_the_weights():
    def weights(seed):
        return [p.detach() for p in plan_of(f"seed={seed}").model.parameters()]

    assert all(a.equal(b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(a.equal(b) for a, b in zip(weights(1), weights(2), strict=True))


def test_kernels_are_loaded_before_workers_are_forked(monkeypatch):
    loaded = []
    monkeypatch.setattr(MinMaxUInt8, "load", lambda self, device: loaded.append(device))
    plan_of("algo=bytegrad")
    assert loaded == ["cpu"]


@pytest.mark.parametrize("algo", ["qadam", "one_bit_adam"])
def test_adams_warm_up_is_a_part_of_the_steps_unless_given(algo):
    def steps_of(*overrides):
        return compose_config([f"algo={algo}", *overrides]).algo.warmup_steps

    assert steps_of() == 20
    assert steps_of("max_steps=858") == 172
    assert steps_of("max_steps=2") == 1
    assert steps_of("max_steps=858", "algo.warmup_steps=30") == 30


def test_ef_signsgd_is_without_momentum_unless_another_optimizer_is_chosen():
    assert compose_config(["algo=ef_signsgd"]).optim.momentum == 0
    assert compose_config(["algo=ef_signsgd", "optim=sgd"]).optim.momentum == 0.9
    assert compose_config(["experiment=reference_movies", "algo=ef_signsgd"]).names.optim == "adam"


def test_no_module_of_a_stranger_is_imported_to_look_at_its_numbers(tmp_path, monkeypatch):
    (tmp_path / "package_of_a_stranger").mkdir()
    (tmp_path / "package_of_a_stranger" / "__init__.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    config = OmegaConf.create({"_target_": "package_of_a_stranger.Thing", "rate": "fast"})
    part._check_kinds_of(config, "model")
    assert "package_of_a_stranger" not in sys.modules


def test_the_target_is_the_tasks_unless_given():
    assert plan_of("task=fashion_mnist").target == Target(value=0.90)
    assert plan_of("task=fashion_mnist", "target_accuracy=0.5").target == Target(value=0.5)
    assert plan_of("target_accuracy=null").target == Target()
    loss = Target(metric="loss", value=3.2)
    assert plan_of("target.loss=3.2").target == loss
    assert plan_of("target.loss=3.2", "target_accuracy=null").target == loss


def test_a_run_ends_at_a_target_of_its_task_or_of_another_metric():
    assert plan_of("stop_at_target=true").stop_at_target
    assert plan_of("target.loss=0", "target_accuracy=null", "stop_at_target=true").stop_at_target


def test_a_loss_of_no_classes_may_be_any_number():
    of_targets.check_reachable(Target(metric="loss", value=-1.0), has_classes=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["target.loss=3", "target.f1=0.5"], "got target.f1 and target.loss: leave one"),
        (["target.loss=3", "target_accuracy=0.5"], "target_accuracy and target.loss: leave one"),
        (["target.top_5=1.5"], r"target.top_5 must be a fraction in \(0, 1\], got 1.5"),
        (["target.loss=-1"], "target.loss must be at least 0, since no run gets below, got -1"),
        (["target.perplexity=0.9"], "target.perplexity must be at least 1, since .*, got 0.9"),
        (["target_accuracy=null", "stop_at_target=true"], "ends a run at its target, .* is none"),
        (["target.loss=inf"], "target.loss must be a finite number"),
        (["target.rouge=0.5"], "there is no key 'target.rouge'"),
    ],
)
def test_targets_that_there_are_not_are_refused(words, sentence):
    with pytest.raises(UserError, match=sentence):
        plan_of(*words)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("net.rate_mbit=fast", "net.rate_mbit takes a number, not 'fast'"),
        ("optim.lr=1e-3x", "optim.lr takes a number, not '1e-3x'"),
        ("model.hidden=wide", "model.hidden takes a whole number, not 'wide'"),
    ],
)
def test_a_text_where_a_class_takes_a_number_is_told_by_its_key(override, sentence):
    with pytest.raises(UserError, match=f"^{sentence}$"):
        plan_of(override)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algo.interval=2.5", "algo.interval takes a whole number, not 2.5"),
        ("algo.interval=1e1", "algo.interval takes a whole number, not 10.0"),
        ("algo.interval=nan", "algo.interval takes a whole number, not nan"),
        ("algo.interval=true", "algo.interval takes a whole number, not True"),
        ("cluster.threads_per_worker=1.5", "cluster.threads_per_worker takes a whole number, .*"),
        ("task.context=128.5", "task.context takes a whole number, not 128.5"),
        ("algo.compressor.bits=1.5", "algo.compressor.bits takes a whole number, not 1.5"),
    ],
)
def test_a_fraction_where_a_class_takes_a_whole_number_is_told_by_its_key(override, sentence):
    with pytest.raises(UserError, match=f"^{sentence}$"):
        plan_of("algo=diloco_int8", "algo.compressor=qsgd", "task=text", "task.path=x", override)


@pytest.mark.parametrize(
    "override",
    [
        *("workers=0", "batch_size=0", "max_steps=0", "eval_every=0", "log_every=0", "seed=-1"),
        *("streams=0", "streams=17", "streams=2.5", "streams=many", "streams=true", "pattern=tree"),
        *("bucket_bytes=0", "target_accuracy=0", "target_accuracy=nan", "cluster.timeout_s=0"),
        *("cluster.timeout_s=inf", "cluster.timeout_s=1e12"),
        *("cluster.threads_per_worker=0", "net.rate_mbit=inf", "model.hidden=0"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused_by_name(override):
    key = override.split("=")[0].split(".")[-1]
    with pytest.raises(UserError, match=key):
        plan_of(override)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["backend=sim", "streams=auto"], "streams=auto is measured between real workers: say"),
        (["backend=sim", "pattern=auto"], "pattern=auto is measured between real workers: say"),
        (["backend=gloo", "cluster.net_plugin=bagua"], "net_plugin=bagua is NCCL's: leave"),
        (["backend=sim", "cluster.net_plugin=bagua"], "or take backend=nccl"),
        (["cluster.net_plugin=fast"], "net_plugin must be one of bagua, null, got fast"),
        (["algo=torch_ddp", "pattern=auto"], "torch_ddp is PyTorch's own code, whose all-reduces"),
        (["pieces=true"], "pieces=true is for several streams: give streams=2 to 16, or auto, too"),
        (["backend=sim", "streams=8", "pieces=true"], "pieces=true is of real workers, simulated"),
        (["algo=torch_ddp", "streams=8", "pieces=true"], "take algo=allreduce pattern=direct"),
        (["backend=sim", "autotune=true"], "autotune=true measures real workers' steps"),
        (["backend=sim", "pattern=direct"], "simulated ones have ring and halving_doubling"),
        (
            ["algo=torch_ddp", "autotune=true"],
            "torch_ddp is PyTorch's own code, which makes its own",
        ),
        (["algo=torch_ddp_bf16", "streams=2"], "torch_ddp_bf16: PyTorch's hooks have one stream"),
    ],
)
def test_streams_that_nothing_would_use_are_refused(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        plan_of(*overrides)


def test_a_run_by_one_stream_is_known_as_before_there_were_several():
    config = plain(compose_config(["algo=allreduce"]))
    assert config["streams"] == 1
    older = {key: value for key, value in config.items() if key not in ADDED}
    assert config_text(config) == config_text(older)
    for streams in (2, "auto", True):
        assert config_text(config | {"streams": streams}) != config_text(older)
    for pieces in (True, False):
        assert config_text(config | {"pieces": pieces}) != config_text(older)


def test_a_run_by_linuxs_own_tcp_is_known_as_before_there_was_another():
    config = plain(compose_config(["algo=allreduce", "net=wan", "net.workers={0: {delay_ms: 3}}"]))
    tcp = ("tcp_slow_start_after_idle", "tcp_wmem_max_kb", "tcp_rmem_max_kb", "mtu")
    older = config | {"net": {k: v for k, v in config["net"].items() if k not in tcp}}
    assert len(config["net"]) - len(older["net"]) == 4
    assert config_text(config) == config_text(older)
    read = yaml.safe_load(config_text(config))
    assert "net" in read and not set(tcp) & set(read["net"])
    assert completed(read) == config
    for key, value in zip(tcp, (False, 64, 64, 9000), strict=True):
        other = config | {"net": config["net"] | {key: value}}
        assert config_text(other) != config_text(older)
        assert completed(yaml.safe_load(config_text(other))) == other


def test_a_run_without_a_plugin_is_known_as_before_there_was_one():
    config = plain(compose_config(["algo=allreduce"]))
    cluster = {key: value for key, value in config["cluster"].items() if key != "net_plugin"}
    assert config_text(config) == config_text(config | {"cluster": cluster})
    chosen = config["cluster"] | {"net_plugin": "bagua"}
    assert "net_plugin: bagua" in config_text(config | {"cluster": chosen})


def test_a_plus_before_a_group_or_a_key_at_the_top_means_the_same_without():
    given = ["-m", "+algo=a,b", "++seed=1", "net=x", "+net.delay_ms=1", "+hydra.x=1"]
    meant = ["-m", "algo=a,b", "seed=1", "net=x", "+net.delay_ms=1", "+hydra.x=1"]
    assert normalize_overrides(given) == meant
    assert normalize_overrides(["+experiment=smoke"]) == ["experiment=smoke"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+max_step=7", "'max_step': did you mean max_steps?"),
        ("++max_step=7", "'max_step': did you mean max_steps?"),
        ("+foo.bar=1", "'foo.bar': --cfg job"),
        ("+tune.x=1", "'tune.x': --cfg job"),
        ("+target.los=1", "'target.los': did you mean target.loss?"),
        ("+names.algorithm=x", "'names.algorithm': did you mean names.algo?"),
        ("+experiment.x=1", "'experiment.x': --cfg job"),
    ],
)
def test_a_plus_makes_no_key_where_all_are_known(word, said):
    with pytest.raises(UserError) as raised:
        compose_config(["algo=allreduce", word])
    assert str(raised.value).startswith(f"there is no key {said}")


def test_no_experiment_is_null():
    smoke = "experiment=smoke"
    assert normalize_overrides(["seed=1", "experiment=null"]) == ["seed=1"]
    for none in ("experiment=null", "+experiment=null", "~experiment"):
        assert normalize_overrides([smoke, none]) == []
    assert normalize_overrides(["experiment=null", smoke])[-1] == smoke
    assert compose_config(["algo=allreduce", "experiment=null", smoke]).max_steps == 10


@pytest.mark.parametrize("value", ["true", "3", ""])
def test_what_names_no_experiment_is_refused_with_those_that_there_are(value):
    with pytest.raises(UserError, match=rf"^.*{value}.*: choose experiment=bert_squad, "):
        compose_config(["algo=allreduce", f"experiment={value}"])


def test_a_dot_before_a_folder_of_choices_means_the_choice():
    given = ["algo.topology=ring,exponential", "+algo.topology=ring", "algo.topology.seed=1"]
    meant = ["algo/topology=ring,exponential", "algo/topology=ring", "algo.topology.seed=1"]
    assert normalize_overrides(given) == meant
    as_they_are = ["algo.topology={_target_:a.B}", "algo/topology=ring", "algo.interval=2", "-m"]
    assert normalize_overrides(as_they_are) == as_they_are
    for null in ("cluster/jitter=null", "cluster.jitter=null"):  # a value, and no file's name
        assert normalize_overrides([null]) == ["cluster.jitter=null"]


@pytest.mark.parametrize("word", ["hydra.run.dir=", "hydra.run.dir=''", "hydra.sweep.dir= "])
def test_a_folder_without_a_name_is_refused(word):
    with pytest.raises(UserError, match=r"names no folder: write hydra\.\w+\.dir=FOLDER"):
        normalize_overrides(["algo=bytegrad", word])


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("workers=2", "workers", "2"),
        ("+net.delay_ms=1", "net.delay_ms", "1"),
        ("~model.hidden", "model.hidden", ""),
        ("resume='a folder'", "resume", "a folder"),
        ("net.workers={0: {rate_mbit: 10}}", "net.workers", "{0: {rate_mbit: 10}}"),
        ("--cfg", "", ""),
    ],
)
def test_a_word_of_the_command_line_is_read_as_hydra_reads_it(text, key, value):
    word = read_word(text)
    assert (word.key, word.value) == (key, value)
    assert word.is_of("net") == key.startswith("net")


def test_the_last_value_of_a_key_counts():
    assert values_of(["-m", "seed=1", "+seed=2"]) == {"seed": "2"}

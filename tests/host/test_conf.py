"""Files of one's own beside those of the project, by Hydra and by all that lists choices."""

import pytest

from experiments.advise.tuning.draws import read_contestants
from experiments.advise.tuning.ranges import read_ranges
from experiments.plan.compose import compose_config
from experiments.plan.messages import choices
from experiments.plan.overrides import normalize_overrides
from experiments.runs.parts import load_parts
from host import conf
from host.errors import UserError
from netsim.conditions.presets import preset_names, read_condition

NET = (conf.PACKAGED / "net" / "wan.yaml").read_text()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a file below conf/ of the folder where commands are started."""
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)

    def write(path, text):
        file = tmp_path / "conf" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_a_choice_of_ones_own_is_composed_and_listed_beside_all_others(own):
    before = choices("algo")
    own("algo/mine.yaml", "_target_: mine.Mine\nrate: 3\n")
    assert choices("algo") == sorted([*before, "mine"])
    config = compose_config(["algo=mine", "algo.rate=4", "net=wan"])
    assert config.algo == {"_target_": "mine.Mine", "rate": 4}
    assert config.names.algo == "mine" and config.net.delay_ms == 25


def test_a_network_of_ones_own_serves_netsim_too(own):
    assert "delay_ms: 25" in NET
    own("net/mine.yaml", NET.replace("delay_ms: 25", "delay_ms: 7"))
    assert "mine" in preset_names()
    assert read_condition("mine").delay_ms == 7
    assert compose_config(["net=mine", "algo=allreduce"]).net.delay_ms == 7


def test_a_group_of_choices_and_ranges_of_ones_own(own):
    own("algo/shape/round.yaml", "_target_: mine.Round\n")
    own("tune/mine.yaml", "optim.lr: {low: 0.1, high: 0.2}\n")
    assert normalize_overrides(["algo.shape=round"]) == ["algo/shape=round"]
    assert read_ranges("mine")["optim.lr"].high == 0.2


def test_what_has_the_name_of_ours_never_takes_its_place(own):
    own("config.yaml", "workers: 3000\n")  # another project's
    assert compose_config(["algo=allreduce"]).workers == 4
    own("algo/bytegrad.yaml", "_target_: mine.Mine\n")
    for ask in (lambda: choices("net"), lambda: compose_config(["algo=bytegrad"])):
        with pytest.raises(UserError, match=r"conf/algo/bytegrad\.yaml has the name of one of"):
            ask()


def test_a_key_that_there_is_not_is_told_by_its_file(own):
    own("experiment/mine.yaml", "# @package _global_\nmax_step: 3\n")
    said = r"^conf/experiment/mine\.yaml: there is no key 'max_step': did you mean max_steps\?$"
    with pytest.raises(UserError, match=said):
        compose_config(["algo=allreduce", "experiment=mine"])
    own("mine/keys.yaml", "a: 1\n")
    with pytest.raises(UserError, match=r"^conf/mine/keys\.yaml: there is no key 'mine': "):
        compose_config(["algo=allreduce", "+mine=keys"])


def test_a_group_of_ones_own_may_set_keys_that_there_are(own):
    own("mine/short.yaml", "# @package _global_\nmax_steps: 3\n")
    assert compose_config(["algo=allreduce", "+mine=short"]).max_steps == 3


@pytest.mark.parametrize("name", ["1", "1.5", "null", "True"])
def test_a_file_that_no_word_names_is_no_choice(own, name):
    before = choices("algo")
    own(f"algo/{name}.yaml", "_target_: mine.Mine\n")
    own("algo/folder.yaml/round.yaml", "_target_: mine.Round\n")
    assert choices("algo") == before
    said = rf"^algo={name} is no choice, since {name} is no text: rename .*/{name}\.yaml$"
    with pytest.raises(UserError, match=said):
        compose_config([f"algo={name}"])


def test_a_part_that_no_group_has_is_refused_with_those_it_has(own):
    own("algo/mine.yaml", "defaults:\n  - nope: qsgd\n_target_: mine.Mine\n")
    own("experiment/mine.yaml", "# @package _global_\ndefaults:\n  - /nope: qsgd\n")
    said = "there is no algo/nope named 'qsgd': the parts of algo are compressor, topology$"
    with pytest.raises(UserError, match=said):
        compose_config(["algo=mine"])
    with pytest.raises(UserError, match="there is no nope named 'qsgd': the groups are algo, net"):
        compose_config(["algo=allreduce", "experiment=mine"])


@pytest.mark.parametrize(
    ("folder", "read"),
    [
        ("net", read_condition),
        ("study", load_parts),
        ("tune", read_ranges),
        ("contestants", read_contestants),
    ],
)
def test_a_file_that_is_no_yaml_is_named_with_its_line_whoever_reads_it(folder, read, own):
    own(f"{folder}/mine.yaml", "a: 1\nb: [1\n")
    with pytest.raises(UserError, match=rf"conf/{folder}/mine\.yaml, line 3, is no YAML: expected"):
        read("mine")


def test_a_checkout_has_no_files_of_its_own(monkeypatch):
    monkeypatch.chdir(conf.PACKAGED.parent)
    assert conf.folders() == [conf.PACKAGED]

import pytest
import yaml
from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from experiments.plan import search_path
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from host.conf import PACKAGED
from host.errors import UserError


@pytest.fixture
def compositions(monkeypatch) -> list[list[str]]:
    """The overrides of each composition, from `compose_once` on."""
    seen, compose = [], Hydra.compose_config
    monkeypatch.setattr(Hydra, "get_mode", Hydra.get_mode)  # as it was, after the test

    def counted(self, config_name, overrides, **options):
        seen.append(list(overrides))
        return compose(self, config_name, overrides, **options)

    monkeypatch.setattr(Hydra, "compose_config", counted)
    search_path.find_own_files()
    search_path.compose_once()
    return seen


def mode(*words: str) -> RunMode | None:
    with initialize_config_dir(str(PACKAGED), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        return hydra.get_mode("config", list(words))


def test_nothing_is_composed_to_find_that_no_mode_was_asked_for(compositions):
    assert mode("algo=allreduce", "hydra.run.dir=x") is None
    assert compositions == []


def test_a_mode_is_found_in_the_words_and_in_ones_own_files(compositions, tmp_path, monkeypatch):
    assert mode("algo=allreduce", "hydra.mode=MULTIRUN") == RunMode.MULTIRUN
    own = tmp_path / "conf" / "experiment" / "many.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n")
    monkeypatch.chdir(tmp_path)
    assert mode("algo=allreduce", "experiment=many") == RunMode.MULTIRUN
    assert len(compositions) == 2


def test_no_file_of_ours_sets_a_mode():
    for file in PACKAGED.rglob("*.yaml"):
        content = yaml.safe_load(file.read_text()) or {}
        assert "mode" not in (content.get("hydra") or {}), file
        is_of_hydra = "@package hydra" in file.read_text()
        assert not (is_of_hydra and "mode" in content), file


def test_a_file_is_read_again_only_where_it_has_changed(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "net" / "mine.yaml"
    own.parent.mkdir(parents=True)
    text = (PACKAGED / "net" / "wan.yaml").read_text()
    own.write_text(text)
    monkeypatch.chdir(tmp_path)
    read, load = [], OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda file: read.append(file.name) or load(file))

    def composed(net: str) -> tuple[object, list[str]]:
        read.clear()
        config = compose_config(["algo=allreduce", f"net={net}"])
        places = [str(PACKAGED), str(own.parent)]
        return config.net.rate_mbit, [name for name in read if name.startswith(tuple(places))]

    rate_mbit, _ = composed("mine")
    assert composed("mine") == (rate_mbit, [])
    assert rate_mbit == composed("wan")[0]
    own.write_text(text.replace(f"rate_mbit: {rate_mbit}", f"rate_mbit: {rate_mbit + 1}"))
    assert composed("mine") == (rate_mbit + 1, [str(own)])


def test_files_of_ones_own_that_are_none_keep_no_key_from_being_named(tmp_path, monkeypatch):
    (tmp_path / "conf" / "net").mkdir(parents=True)
    for name, text in {"empty": "", "list": "- 5", "broken": "a: [", "number": "5: 5"}.items():
        (tmp_path / "conf" / "net" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"did you mean net\.delay_ms\?"):
        compose_config(["algo=allreduce", "net.delay=5"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [1", r"mine\.yaml, line 1, is no YAML: expected ',' or '\]'"),
        (b"a: 1\n\na: 2", r"mine\.yaml, line 3, is no YAML: found duplicate key a$"),
        (b"a: 1\n\tb: 1", r"mine\.yaml, line 2, is no YAML: "),
        (b"a: 1\nb: \xff", r"mine\.yaml, line 2, is no YAML: .* byte 0xff "),
        (b"a: 1\n" * 2_000 + b"b: \xff", r"mine\.yaml, line 2001, is no YAML: .* byte 0xff "),
        (b"a: 1\nb: \0", r"mine\.yaml, line 2, is no YAML: unacceptable character"),
        (b"a: !!int x", r"mine\.yaml is no YAML: invalid literal"),
        (b"3.5", r"mine\.yaml cannot be read: "),
        (b"defaults: 5", "defaults must be a list"),
        (b"a: ${", "no viable alternative at input"),
    ],
)
@pytest.mark.parametrize("group", ["net", "experiment"])
def test_a_file_of_ones_own_that_is_no_yaml_is_named_with_its_line(
    group, content, said, tmp_path, monkeypatch
):
    own = tmp_path / "conf" / group / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as refused:
        compose_config(["algo=allreduce", f"{group}=mine"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["rate_mbit: 5", "- 5"])
def test_a_file_of_ones_own_without_a_target_is_refused_in_a_line(text, tmp_path, monkeypatch):
    (tmp_path / "conf" / "optim").mkdir(parents=True)
    (tmp_path / "conf" / "optim" / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        make_plan(compose_config(["algo=allreduce", "optim=mine", "backend=sim"]), tmp_path)
    assert "optim" in str(refused.value) and "\n" not in str(refused.value)

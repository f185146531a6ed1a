import pytest
import yaml
from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from experiments.plan import search_path
from host.conf import PACKAGED


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

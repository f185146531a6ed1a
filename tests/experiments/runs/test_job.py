from experiments.runs.job import _remove_empty


def test_the_folder_where_a_command_works_is_not_removed(tmp_path, monkeypatch):
    """As `hydra.run.dir=.` names it: torch's libraries are not found in a folder that is gone."""
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    for folder in (here, other, tmp_path):
        _remove_empty(folder)
    assert here.is_dir() and not other.exists()

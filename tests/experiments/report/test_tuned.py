"""What a search has left: a tuning.json that no search has written is named, and left out."""

import json

import pytest

from experiments.report.data import ReportData
from experiments.report.sections.tuning import section
from experiments.report.tuned import FILE, TunedTrial, Tuning, load_tunings
from tests.experiments.recorded import write_run


@pytest.fixture
def tuning(tmp_path):
    trial = TunedTrial(
        number=0, state="complete", fields={"lr_scale": 1.0}, values=[2.0], is_default=True
    )
    other = TunedTrial(number=2, state="pruned", fields={}, values=[], is_default=False)
    found = Tuning(
        folder=str(tmp_path),
        command="python -m experiments.tune",
        objectives=[("steps_per_s", "steps/s", True)],
        trials=[trial, other],
        best=[0],
        commands=["python -m experiments"],
        importances={"steps_per_s": {"lr_scale": 1.0}},
    )
    found.save()
    return found


TRIAL = {"number": 0, "state": "complete", "fields": {}, "values": [2.0], "is_default": True}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"best": [7]}, "best is 7, and no completed trial"),
        ({"best": [2]}, "best is 2, and no completed trial"),
        ({"best": "0"}, "best must be a list"),
        ({"commands": []}, "best and commands must be equally many: 1 are best"),
        ({"commands": [3]}, "a command must be text"),
        ({"objectives": []}, "a search has one objective or two, got 0"),
        ({"objectives": [["a", "", "no"]]}, "an objective is maximized or not: true or false"),
        ({"importances": None}, "importances must be a mapping"),
        ({"importances": {"a": {"b": "c"}}}, "importances of a must be numbers"),
        ({"trials": {}}, "trials must be a list"),
        ({"trials": [TRIAL, TRIAL]}, "two trials have one number"),
        ({"trials": [TRIAL | {"values": []}]}, "trial 0 must have 1 value, each a number"),
        ({"trials": [TRIAL | {"values": [None]}]}, "trial 0 must have 1 value, each a number"),
        ({"trials": [TRIAL | {"values": [10**400]}]}, "int too large to convert to float"),
        ({"trials": [TRIAL | {"fields": []}]}, "fields of trial 0 must be a mapping"),
        ({"trials": [TRIAL | {"number": "0"}]}, "the number of a trial must be whole, got '0'"),
        (
            {"trials": [TRIAL | {"state": "done"}]},
            "trial 0 must have a state, complete, pruned and failed, and is_default",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_no_search_has_written_is_named_beside_a_whole_report(edit, told, tuning, tmp_path):
    file = tmp_path / FILE
    assert load_tunings(tmp_path) == ([tuning], [])
    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
    assert load_tunings(tmp_path) == ([], [f"{file} cannot be read: {told}."])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "it has no objectives and trials"),
        ("[]", "it must be a mapping"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
    ids=["empty", "list", "deep"],
)
def test_a_file_of_another_form_is_named(text, told, tmp_path):
    (tmp_path / FILE).write_text(text)
    tunings, (problem,) = load_tunings(tmp_path)
    assert not tunings and problem.startswith(f"{tmp_path / FILE} cannot be read: {told}")


def test_a_report_says_which_search_it_leaves_out(tuning, tmp_path):
    write_run(tmp_path / "a")
    assert section(ReportData.load(tmp_path)).tables
    (tmp_path / FILE).write_text(
        (tmp_path / FILE).read_text().replace('"best": [\n  0', '"best": [\n  7')
    )
    data = ReportData.load(tmp_path)
    assert section(data).finding.startswith("No settings were searched")
    assert data.problems == [
        f"{tmp_path / FILE} cannot be read: best is 7, and no completed trial."
    ]

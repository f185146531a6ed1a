import pytest

from experiments.plan.compose import compose_config
from experiments.plan.messages import choices
from experiments.plan.schema import GROUPS
from experiments.runs.actions import Command, SideBySide
from experiments.runs.parts import StudyPart, choose_parts, load_parts
from host import conf
from host.errors import UserError

STUDY = r"""
words: {all: "a,b", more: "x=1 y=2"}
parts:
  first:
    what: Makes.
    took: 1 min
    common: experiment=e net=none
    actions:
      - sweep: algo=${words.all} ${words.more}
      - calibrate: algo=a workers=4
        out: profiles/{algo}.yaml
      - each: {algo: [a, b], net: [lan, 10]}
        sweep: algo={algo} net={net} name=\${names.algo}
  second:
    what: Compares.
    actions:
      - at_once: 3
        actions:
          - each: {page: [p, q]}
            command: module {page}
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a study named `s` for `load_parts`."""
    folder = tmp_path / "conf" / "study"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def write(text):
        (folder / "s.yaml").write_text(text)

    return write


def test_parts_are_the_commands_that_they_describe(written):
    written(STUDY)
    first, second = load_parts("s")
    assert (first.name, first.what, first.took) == ("first", "Makes.", "1 min")
    assert (first.took_s, second.took_s) == (60, None)
    assert [action.size for action in first.actions] == [2, 4, 1, 1, 1, 1]
    assert [action.size for action in second.actions] == [2 / 3]
    assert [line for action in first.actions for line in action.lines()] == [
        "python -m experiments -m experiment=e net=none algo=a,b x=1 y=2",
        "python -m experiments.calibrate experiment=e net=none algo=a workers=4"
        " --out 'profiles/{algo}.yaml'",
        *(
            "python -m experiments -m experiment=e net=none"
            f" algo={algo} net={net} 'name=${{names.algo}}'"
            for algo in ("a", "b")
            for net in ("lan", "10")
        ),
    ]
    commands = tuple(Command(arguments=("module", page)) for page in ("p", "q"))
    assert second.actions == (SideBySide(commands=commands, at_once=3),)
    assert second.took == ""


def test_commands_are_as_large_as_they_say_they_took(written):
    written(
        "parts:\n  p:\n    what: W.\n    actions:\n"
        "    - {copy: a, to: b}\n"
        "    - each: {far: [1 h 2 min], net: [lan, wan]}\n"
        "      actions: [{sweep: 'net={net} seed=0,1', took: '{far}'}]\n"
        "    - {at_once: 2, actions: [{command: m, took: 40 s}, {command: n, took: 5 min}]}\n"
    )
    (part,) = load_parts("s")
    assert [action.size for action in part.actions] == [0.1, 3720, 3720, 170]
    assert part.took_s == pytest.approx(0.1 + 3720 + 3720 + 170)


def test_values_that_go_together_are_a_mapping(written):
    written(
        "parts:\n  p:\n    what: W.\n    actions:\n"
        "    - each: {workers: [{workers: 8, s: 2 s}, {workers: 32, s: 5 s}], net: [lan, wan]}\n"
        "      actions: [{sweep: 'net={net} workers={workers}', took: '{s}'}]\n"
    )
    (part,) = load_parts("s")
    assert [(action.size, *action.lines()) for action in part.actions] == [
        (took, f"python -m experiments -m net={net} workers={workers}")
        for workers, took in ((8, 2), (32, 5))
        for net in ("lan", "wan")
    ]


def test_a_number_is_no_duration(written):
    written("parts: {p: {what: W., took: 30, actions: []}}")
    (part,) = load_parts("s")
    assert (part.took, part.took_s) == ("30", None)


def test_parts_are_run_in_the_order_of_the_study(written):
    written(STUDY)
    assert [part.name for part in choose_parts("s", [])] == ["first", "second"]
    assert [part.name for part in choose_parts("s", ["second", "first"])] == ["first", "second"]
    assert [part.name for part in choose_parts("s", ["second"])] == ["second"]


def test_a_name_that_there_is_not_is_told_with_those_there_are(written):
    written(STUDY)
    with pytest.raises(
        UserError, match="no study 'other': choose map, partitions, real_and_simulated, reference"
    ):
        choose_parts("other", [])
    with pytest.raises(UserError, match="no part 'third': choose first, second"):
        choose_parts("s", ["first", "third"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parts: {p: {what: W., why: X., actions: []}}", "unknown key 'why'"),
        ("parts: {p: {what: W., actions: [{shell: ls}]}}", "no action of the keys shell"),
        ("parts: {p: {what: W., actions: [{copy: a}]}}", "no action of the keys copy"),
        ("parts: {p: {what: W., actions: [{sweep: a, to: b}]}}", "no action of the keys"),
        ("parts: {p: {what: W., actions: [{copy: a, to: b, took: 1 s}]}}", "no action of the keys"),
        *(
            (
                f"parts: {{p: {{what: W., actions: [{{sweep: a, took: {took}}}]}}}}",
                rf"p has took: {took}, which is no duration such as 40 s",
            )
            for took in ("fast", "0 s", "3 s or so")
        ),
        (
            "parts: {p: {what: W., actions: [{sweep: a, took: 1 s}, {sweep: b}]}}",
            "part p has took beside some of its commands",
        ),
        *(
            (f"parts: {{p: {{what: W., actions: [{{each: {each}, sweep: a}}]}}}}", f"p has {said}")
            for each, said in (
                ("{net: lan}", "each: net, which is no list of values"),
                ("{net: [{net: a, seed: 0}], seed: [1]}", "each: net, seed, seed, of which one"),
            )
        ),
        ("parts: {p: {actions: []}}", "what"),
        ("parts: {p: {what: W., actions: [{sweep: '${words.a}'}]}}", "words.a"),
        ("no: parts", "parts"),
        ("[parts]", "it has no parts"),
        ("parts: {p: {what: W., actions: [{copy: 3, to: b}]}}", "of which one is no text"),
        *(
            (
                f"parts: {{p: {{what: W., actions: [{{at_once: {number}, actions: []}}]}}}}",
                f"p has at_once={number}, which must be a whole number, at least 1",
            )
            for number in ("0", "two", "1.5")
        ),
        (
            "parts: {p: {what: W., actions: [{at_once: 2, actions: [{unpack: a, to: b}]}]}}",
            "no com",
        ),
    ],
)
def test_a_file_that_is_no_study_is_one_sentence(written, text, said):
    written(text)
    with pytest.raises(UserError, match=rf"(?s)s\.yaml does not describe a study: .*{said}"):
        load_parts("s")


@pytest.mark.parametrize("name", conf.files("study"))
def test_every_override_of_every_study_fits(name):
    """One command for each set of keys is composed; of the others the names of files are looked
    up.
    """
    by_keys = {}
    for overrides in _of_app(load_parts(name)):
        pairs = [override.split("=", 1) for override in overrides]
        by_keys[tuple(key for key, _ in pairs)] = [f"{k}={v.split(',')[0]}" for k, v in pairs]
        for group, values in pairs:
            if group in (*GROUPS, "experiment"):
                assert set(values.split(",")) <= set(choices(group)), overrides
    assert by_keys
    for overrides in by_keys.values():
        compose_config(overrides)


def _of_app(of_study):
    """The overrides of each sweep, each calibration, and all runs of settings."""
    for part in of_study:
        for action in part.actions:
            commands = action.commands if isinstance(action, SideBySide) else [action]
            for command in commands:
                match getattr(command, "arguments", ()):
                    case ["experiments", "-m", *overrides]:
                        yield overrides
                    case ["experiments.calibrate", *words, "--out", _]:
                        yield [word for word in words if "=" in word]
                    case ["experiments.equal_tuning", "run", *words]:
                        yield ["algo=allreduce", *(word for word in words if "=" in word)]


@pytest.mark.parametrize(
    ("took", "seconds"),
    [
        ("1 h 34 min for 231 runs, two to five sweeps at a time", 5640),
        ("1 h for 249 runs", 3600),
        ("20 min for 324 runs, then 14 min for async", 1200),
        ("22 s for 4 runs", 22),
        ("seconds for 270 copies", None),
        ("", None),
    ],
)
def test_the_seconds_of_a_part_are_those_that_it_took(took, seconds):
    assert StudyPart(name="a", what="", took=took, actions=()).took_s == seconds

"""All commands by one name, in processes that have imported nothing."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from experiments.commands.relaxlab import programs, usage
from tests.paths import ROOT


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.relaxlab", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_program_is_listed_with_what_it_is_for():
    known = programs()
    assert {"run", "advise", "report", "compare", "bench", "netsim", "bagua_net"} <= set(known)
    lines = usage(known).splitlines()
    for name in known:
        [line] = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line.split()) > 3 and not line.endswith((".", ":")) and "`python" not in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["advice"], "error: relaxlab has no command 'advice': did you mean advise?"),
        (["zzz"], "error: relaxlab has no command 'zzz': choose run, advise, "),
        (["run", "+algo=bytgrad"], "error: there is no algo named 'bytgrad': choose algo="),
        (
            ["run", "+algo=bytegrad", "workers=two"],
            "error: workers takes a whole number, not 'two'",
        ),
        (["report"], "error: DIR is missing: relaxlab report --help says what there is"),
        (["advise", "--seeds", "many"], "error: --seeds takes a whole number, not 'many'"),
        (["advise", "--workers", "4"], "error: there is no option --workers: write workers=VALUE"),
        (["tune", "+algo=qsgd", "--trials"], "error: there is no option --trials: write trials="),
        (["netsim", "prob"], "netsim: usage: relaxlab netsim "),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(words, said):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(said)


@pytest.mark.parametrize("name", ["run", "report", "advise", "study"])
def test_help_names_the_command_as_it_was_called(name):
    assert run(name, "--help").stdout.startswith(f"usage: relaxlab {name} ")


def test_modules_and_files_that_a_help_names_are_there():
    rooms, num_names = ROOT / "experiments", 0
    for file in (*rooms.glob("*/__main__.py"), *rooms.glob("commands/**/*.py")):
        said = ast.get_docstring(ast.parse(file.read_text())) or ""
        for name in re.findall(r"`((?:experiments|results)[./][a-z_./]+)`", said):
            assert (ROOT / name).exists() or importlib.util.find_spec(name), f"{file}: {name}"
            num_names += 1
    assert num_names > 2


HEAVY = ("torch", "pandas", "scipy", "matplotlib", "numba", "pyroute2", "rich")
"""What takes longer to import than Python and Hydra together."""

MISTAKES = [
    ("run", "+algo=bytgrad"),
    ("run", "+algo=bytegrad", "wokers=2"),
    ("run", "+algo=bytegrad", "workers=0", "hydra.run.dir=FOLDER/run"),
    ("run", "+algo=bytegrad", "net.rate_mbit=-1", "hydra.run.dir=FOLDER/run"),
    ("advise", "task=mnst"),
    ("advise", "+algo=bytegrad,qsgd", "accumulate=3"),
    ("advise", "--on", "net=wna"),
    ("advise", "--seeds", "0"),
    ("advise", "--verify", "-1"),
    ("surface", "--rates", "1:0:1"),
    ("calibrate", "algo=glob(*)", "clip_norm=0", "--out", "x.yaml"),
    ("tune", "+algo=bytegrad", "trials=0"),
    ("predict", "device=v100", "model=vgg17"),
    ("predict", "device=v100", "model=vgg16", "+algo=bytgrad"),
    ("locate", "compute_ms=a"),
    ("study", "referense"),
    *(((name, "FOLDER/none")) for name in ("report", "watch", "compare", "convergence")),
    ("netsim", "probe", "net=wna"),
    ("bagua_net", "--halp"),
]


def one_after_the_other(commands, tmp_path):
    """The exit code of each `relaxlab COMMAND`, and what of `HEAVY` it has left imported. One fresh
    process: what no command imports, none has imported before."""
    code = (
        "import json, os, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from experiments.commands import relaxlab\n"
        "import experiments.plan.compose  # Hydra, once for all\n"
        "pipe = int(sys.argv[2])\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.stdout.flush()\n"
        "    if (pid := os.fork()) == 0:\n"
        "        sys.argv[1:] = words\n"
        "        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
        "        sys.stderr = open(os.devnull, 'w')\n"
        "        code = None\n"
        "        try: relaxlab.start()\n"
        "        except SystemExit as error: code = error.code\n"
        f"        heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "        os.write(pipe, (json.dumps([code, heavy]) + chr(10)).encode())\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    words = json.dumps(
        [[word.replace("FOLDER", str(tmp_path)) for word in own] for own in commands]
    )
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", code, words, str(writing)],
        cwd=tmp_path,
        pass_fds=[writing],
        capture_output=True,
        text=True,
        timeout=280,
    )
    os.close(writing)
    with open(reading) as pipe:
        found = [json.loads(line) for line in pipe]
    assert len(found) == len(commands), done.stderr
    return found


def test_no_help_and_no_mistake_waits_for_an_import_that_takes_long(tmp_path):
    helps = [(name, "--help") for name in programs()]
    calibrate = ("netsim", "calibrate", "--help")
    *found, of_links = one_after_the_other([*helps, *MISTAKES, calibrate], tmp_path)
    expected = [[0, []]] * len(helps) + [[2, []]] * len(MISTAKES)
    named = dict(zip([*helps, *MISTAKES], found, strict=True))

    assert named == dict(zip([*helps, *MISTAKES], expected, strict=True))
    assert of_links == [0, ["pyroute2"]]  # it makes links, whose module takes a tenth of a second
    assert not (tmp_path / "run").exists()


def test_a_sweep_begins_in_any_folder(tmp_path):
    words = ["-m", "+algo=allreduce", "seed=0,1", "workers=0", f"hydra.sweep.dir={tmp_path}/runs"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "error: workers must be at least 1, got 0"
    assert done.returncode == 2

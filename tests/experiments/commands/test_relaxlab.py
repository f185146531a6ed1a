"""All commands by one name, in processes that have imported nothing."""

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
        (["netsim", "prob"], "netsim: usage: python -m netsim "),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(words, said):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(said)


@pytest.mark.parametrize("words", [["--help"], ["+algo=bytgrad"], ["+algo=bytegrad", "wokers=2"]])
def test_help_and_mistakes_import_no_torch(words):
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = {words}\n"
        "try: runpy.run_module('experiments', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'pandas', 'numba') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


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

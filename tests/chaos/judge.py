"""What must hold after every case, whatever was done."""

import json
import re
from pathlib import Path

from experiments.runs.load import load_runs
from experiments.runs.summary import CTRL_C, NOT_ENDED, SIGTERM
from tests.chaos.case import TIMEOUT_S, Case
from tests.chaos.programs import RUN, is_complete
from tests.chaos.room import Ended

LONGEST_S = {"torchrun": 150.0}
"""How long a command may go on after it was struck, by its kind."""

USUAL_LONGEST_S = 60.0 + 10 * TIMEOUT_S + 20

UNKNOWN = "This error is not known to relaxlab"


def limit_s(case: Case) -> float:
    """How long a command may take before it was struck, and after."""
    return LONGEST_S.get(case.kind, USUAL_LONGEST_S)


def faults(case: Case, ended: Ended, work: Path) -> list[str]:
    """What is wrong with how the command of a case has ended, a sentence each."""
    found = [f"left: {what}" for what in ended.left]
    if not found and is_unproved(ended):
        return []
    if ended.code is None:
        found.append(f"hung: still running {limit_s(case):.0f} s after {ended.done}")
    output = ended.output + ended.errors
    if UNKNOWN in output or ("Traceback" in output and case.kind != "torchrun"):
        found.append(f"a traceback: {_last_lines(output)}")
    if ended.code not in (0, None) and not _is_told(ended, output):
        found.append(f"exit code {ended.code} without a word")
    if ended.code not in codes(case, ended):
        found.append(f"exit code {ended.code}: {_last_lines(output)}")
    if ended.code == 0 and (missing := is_complete(case, work)):
        found.append(f"exit code 0, but {missing}")
    return found + _faults_of_records(case, ended, work)


def is_unproved(ended: Ended) -> bool:
    """Whether the host was too busy for the run's network, which the run has refused."""
    return ended.code == 1 and "free the host's processors" in ended.output


def codes(case: Case, ended: Ended) -> set[int | None]:
    """The exit codes that a command may have, None for one that hangs: said elsewhere."""
    done, usual = ended.done or "", {0, None}
    of_launcher = re.search(r" to (launcher|all)\b", done) is not None
    match case.strike:
        case "full disk":
            return usual | {1, 2}
        case "link down":
            return usual | {1}
        case "memory":  # libraries that find none abort
            return usual | {1, 2, -6, -9, -11}
    if case.strike not in done:
        return usual
    match case.strike:
        case "SIGKILL":
            return usual | ({-9} if of_launcher else {1, 2})  # 2: in the trial before a run
        case "SIGINT" | "SIGTERM" if case.kind == "torchrun":  # which shows them as its own errors
            return usual | {1, 130, 143, -2, -15}
        case "SIGTERM":
            return usual | ({143, -15} if of_launcher else {1, 2})
        case "SIGINT":
            return usual | ({130, -2} if of_launcher else {1})
        case "SIGSTOP":
            return usual | {1}
    return usual


def _is_told(ended: Ended, output: str) -> bool:
    return (ended.code or 0) < 0 or ended.code == 143 or bool(output.strip())


def _faults_of_records(case: Case, ended: Ended, work: Path) -> list[str]:
    found = []
    if not any(work.rglob("summary.json")):
        return []
    found += [f"a record: {said}" for said in load_runs(work).attrs["problems"]]
    summary = work / RUN / "summary.json"
    if case.kind != "sweep" and summary.exists():
        record = json.loads(summary.read_text())
        if ended.code == 0 and record["status"] == "failed":
            found.append(f"exit code 0, and its record says {record['reason']}")
        if ended.code != 0 and record["status"] == "failed":
            found += _faults_of_reason(case, ended, record["reason"] or "")
        found += _faults_of_names(case, ended, record)
    return found


def _faults_of_names(case: Case, ended: Ended, record: dict) -> list[str]:
    """Who was struck is named."""
    done, reason = ended.done or "", record["reason"] or ""
    if record["status"] != "failed" or case.kind != "real" or NOT_ENDED in reason:
        return []
    named = re.search(r"to (worker \d)", done)
    if named and "SIG" in done and "SIGCONT" not in done and named[1] not in reason:
        return [f"the reason names another than {named[1]}: {reason}"]
    return []


def _faults_of_reason(case: Case, ended: Ended, reason: str) -> list[str]:
    done = ended.done or ""
    of_launcher = " to launcher" in done and case.kind != "torchrun"
    expected = {"SIGINT": (CTRL_C, NOT_ENDED), "SIGTERM": (SIGTERM, NOT_ENDED)}.get(case.strike)
    if of_launcher and expected and not reason.startswith(expected):
        return [f"the reason is none of {expected}: {reason}"]
    if "Traceback" in reason or ("stopped by " in reason and "Error:" in reason):
        return [f"the reason is no sentence: {reason}"]
    return [] if reason.strip() else ["no reason"]


def _last_lines(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-4:])[-500:]

"""Several pieces of work side by side, each in a forked child with its share of the cores."""

import os
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from host.cores import THREADS, usable_cores
from host.errors import Failure
from host.forks.child import answer_reporting
from host.processes import end_of, fork, kill

Answer = TypeVar("Answer")


def side_by_side(
    works: Sequence[Callable[[], Answer]],
    at_once: int,
    on_answer: Callable[[Answer], None],
    sizes: Sequence[float] = (),
    on_told: Callable[[int, Any], None] = lambda number, value: None,
) -> list[Answer]:
    """What each of `works` returns, in their order.

    At most `at_once` of them run at a time, each in a child for which OMP_NUM_THREADS is its share
    of the cores. `on_answer` is given each answer here as it comes, and `on_told` a work's number
    and what it says by `tell`. The largest by `sizes` begin, if these are given, so that no large
    one is left for the end.

    Raises:
        UserError: as a work did.
        Failure: a work's process died.
        RuntimeError: another error of a work, whose traceback its child prints. In any case all
            children are gone.
    """
    answers: dict[int, Answer] = {}
    running: dict[Connection, tuple[int, int]] = {}
    numbers = range(len(works))
    left = sorted(numbers, key=lambda number: -sizes[number] if sizes else 0.0)[::-1]
    threads = max(1, usable_cores() // max(1, min(at_once, len(works))))
    try:
        while left or running:
            while left and len(running) < max(1, at_once):
                number = left.pop()
                ours, theirs = Pipe()
                pid = fork(lambda w=works[number], o=ours, t=theirs: _answer(w, threads, o, t))
                theirs.close()
                running[ours] = (number, pid)
            for ours in wait(list(running)):
                assert isinstance(ours, Connection)
                number, pid = running.pop(ours)
                is_answer, value = _received(ours, pid)
                if not is_answer:
                    running[ours] = number, pid
                    on_told(number, value)
                    continue
                ours.close()
                kill(pid)
                answers[number] = value
                on_answer(value)
    finally:
        for ours, (_, pid) in running.items():
            ours.close()
            kill(pid)
    return [answers[number] for number in numbers]


_report: Callable[[object], None] | None = None
"""In a child: how it tells its parent."""


def tell(value: object) -> None:
    """Say it to `on_told`, from within a work. Elsewhere nobody hears of it."""
    if _report is not None:
        _report(value)


def _answer(work: Callable[[], object], threads: int, parents: Connection, own: Connection) -> int:
    os.environ[THREADS] = str(threads)

    def reporting(report: Callable[[object], None]) -> object:
        global _report
        _report = report
        return work()

    return answer_reporting(reporting, (), parents, own)


def _received(ours: Connection, pid: int) -> tuple[bool, Any]:
    """Whether a child's word is its answer, and the word. Raises what it raised, or `Failure`; then
    it is gone.
    """
    try:
        kind, value = ours.recv()
    except EOFError as error:
        raise Failure(f"a process that worked for this one {end_of(pid)}") from error
    if kind == "error":
        ours.close()
        kill(pid)
        raise value
    return kind == "answer", value

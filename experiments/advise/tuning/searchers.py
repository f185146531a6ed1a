"""A search by as many processes as this host has room for: trials of simulated workers are at work
side by side, each with its share of the cores. Real ones are one after the other.
"""

from __future__ import annotations

from functools import partial

from experiments.advise.tuning.request import Request
from experiments.advise.tuning.search import Search
from experiments.plan.identity import plain
from experiments.report.tuned import Tuning
from experiments.runs.side_by_side import fitting, needs_host, refuse_alone
from host.commands import say
from host.forks.side_by_side import side_by_side


def search(request: Request) -> Tuning:
    """Take trials until there are as many as were asked for; returns what was found. Raises as
    `Search` and its `run`, and `Failure` where a process died.
    """
    config = request.config({})
    if request.at_once not in (None, 1) and needs_host(config):
        refuse_alone(request.trials, "leave out at_once")
    own = Search(request)
    at_once = own.num_left
    if at_once > 1:
        at_once = min(at_once, request.at_once or fitting([plain(config)]))
    if at_once <= 1:
        return own.run()
    say(f"{at_once} trials at a time")
    side_by_side([partial(_take_part, request)] * at_once, at_once, lambda _: None)
    return own.save()


def _take_part(request: Request) -> None:
    Search(request, is_one_of_several=True).take_all()

import json
import os
import time

from host.processes import end_of, fork
from netsim.proof.temporary_network import _write


def test_long_answers_of_several_workers_do_not_mix():
    """Each is longer than a pipe has room for."""
    reader, writer = os.pipe()

    def answer(rank: int) -> int:
        _write(writer, rank, str(rank) * 300_000)
        return 0

    pids = [fork(lambda rank=rank: answer(rank)) for rank in range(4)]
    os.close(writer)
    time.sleep(0.2)  # all of them write by now
    with os.fdopen(reader) as lines:
        answers = dict(json.loads(line) for line in lines)
    assert answers == {rank: str(rank) * 300_000 for rank in range(4)}
    assert {end_of(pid) for pid in pids} == {"ended with exit code 0"}

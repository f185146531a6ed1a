"""All-reduces in turn, by gloo in place of NCCL, over a real network."""

import os
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest

from experiments.validation.nccl.measure import Extent, measure
from netsim.conditions.condition import NetworkCondition
from netsim.errors import ProbeError
from netsim.links.netlink import INTERFACE

SHAPED = NetworkCondition(rate_mbit=400, delay_ms=1, jitter_ms=0, loss_pct=0, queue_ms=100)


@dataclass(frozen=True, kw_only=True)
class Gloo:
    """In place of NCCL; leaves a note of what the environment was."""

    name: str
    notes: Path
    variables: dict[str, str] = field(default_factory=dict)
    used: str = ""

    backend = "gloo"

    def environment(self, rank, folder):
        with (self.notes / self.name).open("a") as notes:
            notes.write(f"{rank} {os.environ.get('BAGUA_NET_STREAMS')} {os.getpid()}\n")
        return {"GLOO_SOCKET_IFNAME": INTERFACE, **self.variables}

    def check(self, folder):
        if self.used:
            raise ValueError(f"NCCL used {self.used}")


@pytest.mark.root
def test_rounds_alternate_and_all_have_the_sizes_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("BAGUA_NET_STREAMS", "3")  # of a user, for whom it counts in no worker
    transports = [Gloo(name=name, notes=tmp_path) for name in ("first", "second")]
    extent = Extent(sizes_mb=(1, 2, 256), rounds=2, longest_s=2.0)
    *_, transfers = measure("some", SHAPED, transports, extent)
    assert transfers.rounds == 2
    assert list(transfers.seconds) == ["first", "second"]
    for of in transfers.seconds.values():
        assert {mb: len(seconds) for mb, seconds in of.items()} == {1: 2, 2: 2}
        # 2 MiB take 42 ms at 400 Mbit/s, and no network is faster than its shape but by a burst.
        assert all(0.02 < took_s < 30 for took_s in of[2])
    for expected in transfers.left_out.values():
        assert list(expected) == [256]
        assert expected[256] > 2.0
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert {line.split()[1] for line in lines} == {"None"}
    pids = [line.split()[2] for line in lines]
    assert len(set(pids)) == len(pids) == 8, "NCCL reads its environment once a process"


@pytest.mark.root
def test_no_round_begins_for_which_there_is_no_time(tmp_path):
    extent = Extent(sizes_mb=(1,), rounds=3, budget_s=0.01)
    [transfers] = measure("some", SHAPED, [Gloo(name="one", notes=tmp_path)], extent)
    assert transfers.rounds == 1


@pytest.mark.root
def test_a_refusal_of_two_workers_on_one_gpu_is_what_was_found(tmp_path):
    """Torch's message, as NCCL 2.27 words it."""

    class Refused(Gloo):
        def environment(self, rank, folder):
            raise RuntimeError(
                "NCCL error in: NCCLUtils.cpp:77, invalid usage\nncclInvalidUsage: This usually "
                "reflects invalid usage of NCCL library.\nLast error:\n"
                "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000\n"
            )

    one = Refused(name="own sockets, 1", notes=tmp_path)
    [transfers] = measure("some", SHAPED, [one], Extent(sizes_mb=(1,)), is_shared=True)
    assert transfers.refused == (
        "NCCL refused two workers on one GPU: Duplicate GPU detected : rank 0 and rank 1 both on "
        "CUDA device 1b000"
    )
    assert transfers.seconds == {}


@pytest.mark.root
def test_what_nccl_did_otherwise_is_an_error(tmp_path):
    one = Gloo(name="bagua_net, 8", notes=tmp_path, used="NET/Socket")
    with pytest.raises(ProbeError, match=r"^bagua_net, 8: NCCL used NET/Socket$"):
        next(measure("some", SHAPED, [one], Extent(sizes_mb=(1,))))


@pytest.mark.root
def test_a_worker_that_fails_is_one_sentence(tmp_path):
    one = Gloo(name="one", notes=tmp_path, variables={"GLOO_SOCKET_IFNAME": "nothing"})
    with pytest.raises(ProbeError, match=r"^one, worker [01]: "):
        next(measure("some", SHAPED, [one], Extent(sizes_mb=(1,))))


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"longest_s": 0.0}, {"longest_s": -inf}])
def test_an_extent_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Extent(**wrong)

import importlib
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.streams import (
    StreamTrial,
    check_streams,
    conclusion,
    with_streams,
)
from tests import app


@pytest.mark.parametrize(
    ("turns", "chosen", "seconds"),
    [
        ([[[1.0, 1.2], [0.9, 1.1]]], 1, {1: 1.1, 8: 1.0}),  # too little is saved
        ([[[1.0, 1.2], [0.5, 0.7]]], 8, {1: 1.1, 8: 0.6}),
        ([[[1.0, 1.2], [0.5, 0.7]], [[1, 1], [9, 9]]], 8, {1: 1.1, 8: 0.6}),  # new ones count alone
        ([[[1, 1], [1, 1]], [[2, 4], [2, 2]], [[6, 9], [2, 2]]], 8, {1: 5, 8: 2}),
        ([[[1, 1], [1, 1]], [[2, 2], [1, 9]], [[2, 2], [2, 2]]], 1, {1: 2, 8: 2}),
    ],
)
def test_several_streams_have_to_pay_over_new_or_over_rested_connections(turns, chosen, seconds):
    trial = conclusion(turns)
    assert trial.streams == chosen
    assert trial.seconds == pytest.approx(seconds)
    assert trial.num_turns == len(turns)


@pytest.mark.parametrize("streams", [0, 17, -1, 1.0, True, None, "8", "Auto"])
def test_what_is_no_number_of_streams_is_refused(streams):
    with pytest.raises(ValueError, match="streams must be 1 to 16, or auto, got"):
        check_streams(streams)


def test_pieces_are_for_several_streams():
    with pytest.raises(
        ValueError, match=r"pieces=true is for several .*: give streams=2 to 16, or"
    ):
        check_streams(1, True)
    with pytest.raises(ValueError, match="pieces must be true, false, or left out, got 'yes'"):
        check_streams(2, "yes")


@pytest.mark.parametrize(
    ("streams", "pieces", "found", "taken"),
    [
        ("auto", None, 8, True),
        ("auto", False, 8, False),
        ("auto", None, 1, False),
        ("auto", True, 1, False),
        (8, None, None, False),
        (8, True, None, True),
    ],
)
def test_pieces_go_where_several_streams_pay_or_they_are_asked_for(
    monkeypatch, tmp_path, streams, pieces, found, taken
):
    module = importlib.import_module("bagua_algos.communication.streams")
    trial = StreamTrial(streams=found or 0, num_bytes=1, seconds={}, num_turns=1)
    monkeypatch.setattr(module, "_may_have_several", lambda workers: True)
    monkeypatch.setattr(module, "try_streams", lambda workers: trial)
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as workers:
        communicator, _ = with_streams(workers, streams, pieces)
    assert communicator.streams == (found or streams)
    assert communicator.pieces == taken


def test_stacked_workers_have_no_pieces():
    with pytest.raises(ValueError, match=r"pieces=true are of real .*Stacked.*: leave pieces out"):
        with_streams(StackedCommunicator(2), "auto", True)


@pytest.mark.parametrize("streams", [1, "auto"])
def test_stacked_workers_have_one_stream(streams):
    workers = StackedCommunicator(2)
    assert with_streams(workers, streams) == (workers, None)


def test_what_cannot_be_trained_is_refused_before_anything_is_measured(monkeypatch):
    def measured(*arguments):
        raise AssertionError("it was measured")

    module = importlib.import_module("bagua_algos.distribute")  # the function has the same name
    monkeypatch.setattr(module, "with_streams", measured)
    monkeypatch.setattr(module, "with_pattern", measured)
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters())
    with pytest.raises(ValueError, match="parameter"):
        bagua_algos.distribute(
            *(model, optimizer, bagua_algos.AllReduce(), StackedCommunicator(1)),
            streams="auto",
            pattern="auto",
        )


def test_sockets_and_threads_of_streams_end_with_the_process_group(tmp_path):
    _open_and_close(tmp_path / "first", streams=1)  # torch keeps some for itself
    before = _open()
    during = _open_and_close(tmp_path / "second", streams=8)
    assert all(there - earlier for there, earlier in zip(during, before, strict=True))

    def have_ended() -> bool:  # others, of earlier tests, may end meanwhile
        return not any(there - earlier for there, earlier in zip(_open(), before, strict=True))

    app.wait_for(have_ended, 60, "end of threads and files")


def _open_and_close(store: Path, streams: int) -> tuple[set[str], set[str]]:
    with file_rendezvous(
        str(store), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as communicator:
        communicator.with_transport(streams=streams).duplicate().close()
        return _open()


def _open() -> tuple[set[str], set[str]]:
    """Files and threads of this process."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder that has just been listed
            files.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return files, set(os.listdir("/proc/self/task"))

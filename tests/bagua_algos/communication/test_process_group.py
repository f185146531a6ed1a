"""Real workers: three of them over gloo, and what one can say by itself."""

import threading
import warnings
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from bagua_algos.communication import process_group as module
from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.connections.groups import Groups
from bagua_algos.communication.connections.joining import NotShared
from bagua_algos.communication.pieces import Pieces
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.cases import collectives
from tests.bagua_algos.communication.three_workers import NUM_ELEMENTS
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.recorder import Recorder

NUM_WORKERS = 3


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    program = "tests.bagua_algos.communication.three_workers"
    return run_program_once(tmp_path_factory, program, NUM_WORKERS)


def test_every_collective_is_that_of_stacked_workers(workers):
    for name, expected in collectives(StackedCommunicator(NUM_WORKERS)).items():
        ours = torch.cat([worker["collectives"][name] for worker in workers])
        torch.testing.assert_close(ours, expected)


def test_how_numbers_lie_in_memory_changes_nothing(workers):
    """gloo moves what lies without a gap: another worker's may lie otherwise."""
    for worker in workers:
        for name, (plain, other) in worker["laid out"].items():
            assert torch.equal(plain, other), name


def test_where_no_back_end_is_named_gloo_serves_the_cpu():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        whole = ProcessGroupCommunicator(streams=2, halving_doubling_bytes=9)
        for workers in (whole.duplicate(), whole.with_transport(fixed_order=True).duplicate()):
            x_w = torch.arange(5.0)[None]
            workers.all_reduce_mean_(x_w)
            assert workers.streams == 2 and x_w.tolist() == [[0, 1, 2, 3, 4]]
            workers.close()
    finally:
        dist.destroy_process_group()


def test_workers_of_one_host_share_a_node(workers):
    assert [worker["hosts"] for worker in workers] == [((0, 1, 2),)] * NUM_WORKERS
    assert [worker["two hosts"] for worker in workers] == [((0, 2), (1,))] * NUM_WORKERS


@pytest.mark.parametrize("way", ["halving and doubling", "directly", "directly by two streams"])
def test_every_element_is_added_up_in_one_order(workers, way):
    for worker in workers:
        torch.testing.assert_close(worker["sums"][way], torch.full((1, NUM_ELEMENTS), 1 / 3))


@pytest.mark.parametrize("way", ["ring", "a byte too large"])
def test_what_is_larger_goes_by_the_ring_whose_order_depends_on_the_place(workers, way):
    for worker in workers:
        assert len(worker["sums"][way].unique()) > 1


def test_streams_change_between_operations_and_no_element_is_lost(workers):
    for worker in workers:
        assert worker["striped"]["streams"] == [(1, 1), (3, 3), (2, 2)]
        assert worker["striped"]["told"] == [1, 3, 2]
        for streams in (1, 2, 3):
            expected = torch.arange(float(NUM_ELEMENTS)) + 1e5 * torch.arange(3.0)[:, None]
            assert torch.equal(worker["striped"][f"gathered by {streams}"], expected[None])


def test_the_mean_of_fp16_is_there_where_the_sum_is_not(workers):
    assert all(worker["fp16"].eq(48_000).all() for worker in workers)


def test_a_sum_that_was_begun_is_there_when_its_future_is(workers):
    assert all(worker["begun"].eq(1 + 2 + 3).all() for worker in workers)


def test_a_part_is_a_world_of_its_own_of_which_the_whole_hears(workers):
    together, alone = (0, 2), (1,)
    for rank, worker in enumerate(workers):
        part = worker["parts"]
        assert part["mean"].eq(1).all()
        assert part["members"] == (alone if rank == 1 else together)
        assert part["heard"] == [("all_reduce_mean", 12, part["members"])]
        assert part["transport"] == (2, 7, True)


def test_only_connections_that_all_have_left_are_used_again(workers):
    for worker in workers:
        assert worker["again"]["is used again"]
        assert worker["again"]["mean"].eq(1).all()


def test_groups_of_some_workers_that_a_script_has_made_are_in_nobodys_way(workers):
    """torch names a group by how many a process has, and not all have made as many."""
    for rank, worker in enumerate(workers):
        assert worker["own groups"]["whole"].eq(1).all()
        assert worker["own groups"]["part"].eq(1).all(), rank


@pytest.fixture
def alone(tmp_path):
    """The only worker of its world."""
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as communicator:
        yield communicator


def test_the_first_connections_are_never_given_away(alone):
    duplicate = alone.duplicate()
    alone.close()
    duplicate.close()
    other = ProcessGroupCommunicator(timeout=timedelta(seconds=9)).duplicate()
    again = alone.duplicate()
    assert again.group is duplicate.group, "what was closed serves the next one"
    assert other.group is not duplicate.group, "but none with another limit of time"
    assert alone.duplicate().group is not duplicate.group, "and one only"


def test_a_transport_differs_in_what_is_given(alone):
    kept = {"streams": 2, "halving_doubling_bytes": 5, "fixed_order": True, "pieces": True}
    every = alone.with_transport(**kept)
    for changes in (
        *({"streams": 3}, {"halving_doubling_bytes": 0}, {"fixed_order": False}),
        {"pieces": False},
    ):
        other = every.with_transport(**changes)
        assert {name: getattr(other, name) for name in kept} == kept | changes
        duplicate = other.duplicate()
        assert {name: getattr(duplicate, name) for name in kept} == kept | changes
        assert len(duplicate.stripes.groups) == (kept | changes)["streams"]
        assert isinstance(duplicate.stripes, Pieces) == (kept | changes)["pieces"]


def test_who_is_told_of_streams_is_told_whatever_the_transport(alone):
    told = []
    alone.on_streams = told.append
    workers = alone.with_transport(fixed_order=True).duplicate()
    workers.use_transport(streams=2, halving_doubling_bytes=0, fixed_order=False, pieces=False)
    assert told == [2]


def test_a_change_to_a_transport_that_cannot_be_is_refused_before_anything_changes(alone):
    kept = {"streams": 1, "halving_doubling_bytes": 0, "fixed_order": False, "pieces": False}
    on_gpu = ProcessGroupCommunicator(device=torch.device("cuda"))
    for workers, changes, sentence in (
        (alone.duplicate(), {"streams": 17}, "streams must be 1 to 16, got 17"),
        (on_gpu, {"streams": 2}, "only gloo's operations are striped"),
        (on_gpu, {"halving_doubling_bytes": 9}, "only gloo's all-reduces have another pattern"),
        (on_gpu, {"fixed_order": True}, "only gloo's all-reduces have another pattern"),
    ):
        with pytest.raises(ValueError, match=sentence):
            workers.use_transport(**kept | changes)
        assert {name: getattr(workers, name) for name in kept} == kept
        workers.use_transport(**kept)


def test_another_transport_shares_the_nodes_connections_with_the_first(monkeypatch, alone):
    """It is a template, which nobody closes: the nodes' connections are made for duplicates."""
    made_for, hierarchy = [], object()
    monkeypatch.setattr(
        "bagua_algos.communication.workers.make_hierarchy",
        lambda workers, nodes: made_for.append(nodes),
    )
    alone.nodes, alone.hierarchy = ((0,),), hierarchy
    other = alone.with_transport(fixed_order=True)
    assert (other.nodes, other.hierarchy, made_for) == (alone.nodes, hierarchy, [None])
    assert other.duplicate().nodes == made_for[1] == alone.nodes


class Broken:
    """Connections to workers that are gone."""

    def send_and_receive(self, *_):
        raise RuntimeError("[/gloo/pair.cc:1] Connection closed. This is typically caused by rain")

    all_reduce_ = all_gather = broadcast_ = send_and_receive


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (lambda c, x: c.all_reduce_mean_(x), "all_reduce_mean with workers 4, 9"),
        (lambda c, x: c.all_gather(x), "all_gather with workers 4, 9"),
        (lambda c, x: c.broadcast_(x), "broadcast with workers 4, 9"),
        (lambda c, x: c.exchange(x, (1, 2, 0)), "exchange with worker 9"),
    ],
)
def test_an_error_names_the_worker_its_operation_and_whom_it_was_with(alone, operation, told):
    seconds = iter([5.0, 7.25])
    alone.stripes, alone.clock = Broken(), lambda: next(seconds)
    alone.ranks, alone.members, alone.world_size = (1,), (4, 7, 9), 3
    sentence = f"^worker 7: {told} failed after 2.2 s: Connection closed$"
    with pytest.raises(CommunicationError, match=sentence):
        operation(alone, torch.zeros(1, 2))


def test_an_operation_reports_how_long_it_took_and_an_exchange_with_oneself_nothing(alone):
    seconds = iter([5.0, 7.25])
    alone.observer, alone.clock = Recorder(), lambda: next(seconds)
    alone.all_reduce_mean_(torch.zeros(1, 2))
    x_w = torch.ones(1, 2)
    assert torch.equal(alone.exchange(x_w, (0,)), x_w)
    assert [(o.name, o.num_bytes, o.seconds) for o in alone.observer.operations] == [
        ("all_reduce_mean", 8, 2.25)
    ]


@pytest.mark.parametrize(("ends_with_worker_0", "holder"), [(True, 0), (False, None)])
def test_worker_0_holds_the_store_that_ends_with_it(monkeypatch, alone, ends_with_worker_0, holder):
    holders, names = [], []

    def departures(store, name, rank, world_size, holder):
        holders.append(holder)
        names.append(name)

    monkeypatch.setattr(module, "ends_with_worker_0", lambda store: ends_with_worker_0)
    monkeypatch.setattr(module, "Departures", departures)
    duplicate = ProcessGroupCommunicator().duplicate()
    assert holders == [holder] * 2
    assert names == [dist.group.WORLD.group_name, duplicate.group.group_name], "not to be confused"


def test_the_end_of_a_process_with_workers_waits_for_threads(monkeypatch, alone):
    made = threading.Event()
    monkeypatch.setattr(module, "has_process_groups", made)
    ProcessGroupCommunicator()
    assert made.is_set()


def test_the_threads_of_pieces_end_where_they_are_no_longer_used(monkeypatch, alone):
    closed = []
    monkeypatch.setattr(Pieces, "close", lambda stripes: closed.append(stripes))
    workers = alone.with_transport(streams=2, pieces=True).duplicate()
    first = workers.stripes
    workers.use_transport(streams=3, halving_doubling_bytes=0, fixed_order=False, pieces=True)
    assert closed == [first]
    workers.close()
    assert closed == [first, workers.stripes] and len(workers.stripes.groups) == 3


def test_connections_of_parts_are_left_with_those_of_the_whole(alone):
    whole = alone.duplicate()
    [part] = whole.split([[0]])
    groups = {whole.group, part.communicator.group}
    whole.close()
    assert {alone.duplicate().group, alone.duplicate().group} == groups


@pytest.fixture
def second(monkeypatch, alone):
    """Of three workers the second, who makes duplicates and parts; and what it has heard of memory:
    where it stands among whom, and what they say.
    """

    class Three(Groups):
        rank, members = 1, (4, 7, 9)

        def __init__(self, *_):
            self.group = self.origin = self.timeout = None
            self.device = torch.device("cpu")

        def all_say(self, own):
            return [f"{own} of {member}" for member in self.members]

        def take(self, parts, number):
            return number * [alone.group]

    heard = []

    def join(rank, members, all_say, limit_s):
        heard.append((rank, members, all_say("word")))
        return second.found

    monkeypatch.setattr(module, "Groups", Three)
    monkeypatch.setattr(module, "join", join)
    second = SimpleNamespace(heard=heard, found=None)
    return second


@pytest.mark.parametrize("asked", [True, None])
def test_whoever_is_of_a_duplicate_or_of_a_part_shares_its_memory(second, asked):
    second.found = SimpleNamespace()
    workers = ProcessGroupCommunicator(shared_memory=asked)
    assert workers.duplicate().shares_memory
    [part] = workers.split([[0], [1, 2]])
    assert part.communicator.shares_memory
    assert second.heard == [
        (1, (4, 7, 9), ["word of 4", "word of 7", "word of 9"]),
        (0, (7, 9), ["word of 7", "word of 9"]),
    ]


def test_no_memory_is_shared_unless_it_is_asked_for_or_by_one_alone(second):
    assert not ProcessGroupCommunicator().duplicate().shares_memory
    alone = ProcessGroupCommunicator(shared_memory=True)
    alone.world_size = 1
    assert not alone.duplicate().shares_memory
    assert second.heard == []


def test_memory_of_all_that_cannot_be_shared_is_refused_where_it_is_asked_for(second):
    second.found = NotShared("two hosts", surprises=False)
    workers = ProcessGroupCommunicator(shared_memory=True)
    with pytest.raises(ValueError, match=r"^shared_memory=True cannot be: two hosts$"):
        workers.duplicate()
    [part] = workers.split([[0], [1, 2]])
    assert not part.communicator.shares_memory


@pytest.mark.parametrize("surprises", [False, True])
def test_memory_that_is_not_shared_on_one_host_is_worth_a_warning(second, surprises):
    second.found = NotShared("a full disk", surprises)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not ProcessGroupCommunicator(shared_memory=None).duplicate().shares_memory
    said = ["all-reduces go over gloo, not through shared memory: a full disk"]
    assert [str(one.message) for one in told] == (said if surprises else [])

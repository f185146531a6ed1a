import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.tasks.batches import Batches, shard
from experiments.tasks.partitions import Shares
from experiments.tasks.samplers import SHUFFLED, Balanced, InOrder, Order
from host.errors import UserError


def batches(
    ranks: tuple[int, ...] = (0, 1, 2), *, seed: int = 7, num_examples: int = 103
) -> Batches:
    return Batches(num_examples=num_examples, world_size=3, ranks=ranks, batch_size=4, seed=seed)


def test_an_epoch_repeats_no_example_and_the_shards_are_disjoint():
    b = batches()
    assert b.steps_per_epoch == 103 // (3 * 4)
    for epoch in range(3):
        steps = range(epoch * b.steps_per_epoch, (epoch + 1) * b.steps_per_epoch)
        epoch_nwb = np.stack([b.indices(step) for step in steps])
        assert epoch_nwb.shape == (8, 3, 4)
        assert len(np.unique(epoch_nwb)) == epoch_nwb.size
        assert epoch_nwb.min() >= 0 and epoch_nwb.max() < 103


def test_a_worker_sees_what_its_row_of_a_simulated_run_sees():
    for step, rank in itertools.product([0, 5, 8, 100], range(3)):
        np.testing.assert_array_equal(
            batches((rank,)).indices(step)[0], batches().indices(step)[rank]
        )
    np.testing.assert_array_equal(batches((2, 0)).indices(3), batches().indices(3)[[2, 0]])


def test_worker_r_reads_every_world_size_th_example_of_the_permutation():
    b = Batches(num_examples=10, world_size=1, ranks=(0,), batch_size=10, seed=1)
    permutation = b.indices(2)[0]  # Step 2 is all of epoch 2.
    assert sorted(permutation) == list(range(10))
    for rank in range(3):
        own = Batches(num_examples=10, world_size=3, ranks=(rank,), batch_size=1, seed=1)
        seen = [own.indices(step)[0, 0] for step in range(6, 9)]
        assert seen == list(permutation[rank::3][:3])


def test_equal_global_batches_on_any_number_of_workers():
    one = Batches(num_examples=100, world_size=1, ranks=(0,), batch_size=12, seed=3)
    four = Batches(num_examples=100, world_size=4, ranks=(0, 1, 2, 3), batch_size=3, seed=3)
    for step in (0, 7, 8, 30):
        assert set(one.indices(step).flat) == set(four.indices(step).flat)


def test_indices_do_not_depend_on_the_steps_before():
    b = batches()
    in_order = [batches().indices(step) for step in range(40)]
    for step in (33, 0, 12):
        np.testing.assert_array_equal(b.indices(step), in_order[step])


def test_seeds_and_epochs_give_different_orders():
    orders = [batches(seed=s).indices(e * 8).tobytes() for s in (0, 1, 2) for e in (0, 1, 2)]
    assert len(set(orders)) == 9


def test_indices_may_be_written_without_harm():
    b = batches()
    first = b.indices(0).copy()
    b.indices(0)[:] = 0
    np.testing.assert_array_equal(b.indices(0), first)
    assert b.indices(0).flags.c_contiguous and b.indices(0).dtype == np.int64


def test_too_few_examples_are_a_user_error_with_numbers():
    with pytest.raises(UserError, match=r"^11 training examples .* of 4 on each of 3 workers"):
        batches(num_examples=11)
    assert batches(num_examples=12).steps_per_epoch == 1


@pytest.mark.parametrize("ranks", [(), (3,), (-1,), (0, 0)])
def test_impossible_ranks(ranks: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"0\.\.2"):
        batches(ranks)
    with pytest.raises(ValueError, match=r"0\.\.2"):
        shard(num_examples=5, world_size=3, ranks=ranks)


@pytest.mark.parametrize(("batch_size", "seed", "what"), [(0, 1, "batch_size"), (1, -1, "seed")])
def test_impossible_numbers(batch_size: int, seed: int, what: str):
    with pytest.raises(ValueError, match=what):
        Batches(num_examples=9, world_size=1, ranks=(0,), batch_size=batch_size, seed=seed)


@pytest.mark.parametrize("num_examples", [0, 1, 3, 4, 5, 1000, 1003])
def test_shards_cover_every_example_once(num_examples: int):
    indices_ws, mask_ws = shard(num_examples=num_examples, world_size=4, ranks=(0, 1, 2, 3))
    assert sorted(indices_ws[mask_ws]) == list(range(num_examples))
    sizes = mask_ws.sum(1)
    assert sizes.max() - sizes.min() <= 1
    assert mask_ws.shape[1] == sizes.max()
    assert (indices_ws[~mask_ws] == num_examples - 1).all()
    for rank in range(4):
        own = shard(num_examples=num_examples, world_size=4, ranks=(rank,))
        np.testing.assert_array_equal(own.indices, indices_ws[[rank]])
        np.testing.assert_array_equal(own.mask, mask_ws[[rank]])


ORDERS = [SHUFFLED, InOrder(), Balanced().order(np.random.default_rng(0).integers(5, 90, 103))]


def of_workers(num_workers: int, order: Order = SHUFFLED, batch_size: int = 4) -> Batches:
    ranks = tuple(range(num_workers))
    sizes = {"num_examples": 103, "world_size": num_workers, "batch_size": batch_size}
    return Batches(**sizes, ranks=ranks, seed=7, order=order)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 20)), min_size=2),
    st.sampled_from(ORDERS),
)
def test_an_epoch_repeats_no_example_whenever_the_number_of_workers_changes(starts, order):
    own, step, seen, passes = None, 0, {}, [0.0]
    for num_workers, batch_size, num_steps in starts:
        workers = of_workers(num_workers, order, batch_size)
        own = workers if own is None else workers.going_on(own.state_dict(step), step)
        for _ in range(num_steps):
            epoch = own.state_dict(step)["epoch"]
            seen.setdefault(epoch, []).append(own.indices(step).ravel())
            step += 1
            passes.append(own.passes(step))
    assert passes == sorted(passes)
    assert list(seen) == list(range(len(seen)))  # none is skipped
    largest = max(num_workers * batch_size for num_workers, batch_size, _ in starts)
    for epoch, parts in seen.items():
        examples = np.concatenate(parts)
        assert len(np.unique(examples)) == len(examples)
        if epoch < len(seen) - 1:  # less than a batch of those who ended it is left out
            assert len(examples) > 103 - largest


@pytest.mark.parametrize("order", ORDERS)
def test_those_who_go_on_as_they_were_see_what_they_would_have_seen(order):
    two = of_workers(2, order)
    three = of_workers(3, order).going_on(two.state_dict(17), 17)  # in the middle of epoch 1
    for own, step in ((two, 5), (two, 12), (three, 18), (three, 40)):
        again = of_workers(own.world_size, order).going_on(own.state_dict(step), step)
        for later in range(step, step + 30):
            np.testing.assert_array_equal(again.indices(later), own.indices(later))
            assert again.passes(later) == own.passes(later)


def test_another_number_of_workers_does_not_go_on_with_examples_that_were_shared_out():
    shares = Shares(np.array_split(np.arange(103), 2), np.zeros(103, int))
    two = of_workers(2, shares)
    assert two.going_on(two.state_dict(3), 3).indices(3).tolist() == two.indices(3).tolist()
    with pytest.raises(UserError, match=r"^data.partition gives .* as many as the checkpoint has$"):
        of_workers(3, shares).going_on(two.state_dict(3), 3)


def test_a_checkpoint_does_not_go_on_with_other_examples():
    state = batches().state_dict(5)
    with pytest.raises(
        UserError, match=r"^the checkpoint is of 103 training examples, .* has 102:"
    ):
        batches(num_examples=102).going_on(state, 5)
    del state["num_examples"]  # an old one
    assert batches().going_on(state, 5).indices(5).tolist() == batches().indices(5).tolist()

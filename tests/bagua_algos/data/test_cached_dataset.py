"""Examples are the data set's own, each computed once, whoever asks and whatever fails."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from bagua_algos.data import CachedDataset, DiskStore, RedisStore
from bagua_algos.data.named_store import opened
from bagua_algos.data.store import FIRST_PAUSE_S, Guarded, StoreError, StoreFullError
from tests.bagua_algos.data.examples import Sequences


class MemoryStore:
    """A store in this process, which may fail."""

    def __init__(self):
        self.entries, self.error, self.num_asked = {}, None, 0

    def read(self, dataset, keys):
        self._fail(StoreFullError)
        return [self.entries.get((dataset, key)) for key in keys]

    def write(self, dataset, entries):
        self._fail(None)
        self.entries |= {(dataset, key): entry for key, entry in entries.items()}

    def close(self):
        pass

    def _fail(self, allowed):
        self.num_asked += 1
        if self.error is not None and type(self.error) is not allowed:
            raise self.error


class Scaled:
    def __init__(self, data, factor):
        self.data, self.factor = data, factor

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"x": self.data[index] * self.factor, "index": index, "y": (1.5, "é", None)}


class Tens:
    """0 and 10; computes what nobody should ask for, too."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return 10 * index


@pytest.fixture
def disk(tmp_path):
    store = DiskStore(folder=tmp_path / "cache")
    yield store
    store.close()


def test_each_example_is_computed_once_by_all_processes_of_a_loader(disk):
    data = Sequences()
    cached = CachedDataset(data, disk)
    loader = DataLoader(cached, batch_size=4, num_workers=2, collate_fn=list)
    for _ in range(2):
        examples = [example for batch in loader for example in batch]
        assert all(x.equal(y) for x, y in zip(examples, data.examples, strict=True))
    assert [cached[i].tolist() for i in range(50)] == [x.tolist() for x in data.examples]
    assert cached.num_computed == data.num_read == 0, "here: all was read"


def test_a_changed_transform_is_never_served_stale(disk):
    data = Sequences()
    twice, thrice = (CachedDataset(Scaled(data, factor), disk) for factor in (2, 3))
    for _ in range(2):
        assert twice[4]["x"].equal(2 * data.examples[4])
        assert thrice[4]["x"].equal(3 * data.examples[4])
    assert twice.num_computed == thrice.num_computed == 1
    again = CachedDataset(Scaled(Sequences(), 2), disk)
    assert again[4]["x"].equal(twice[4]["x"])
    assert again.num_computed == 0
    assert again[4]["y"] == (1.5, "é", None)


def test_a_name_of_ones_own_stands_for_data_and_transform(disk):
    data = Sequences()
    first, second, third = (
        CachedDataset(Scaled(data, factor), disk, fingerprint=name)
        for factor, name in ((2, "v1"), (3, "v1"), (3, "v2"))
    )
    assert first[0]["x"].equal(second[0]["x"]) and second.num_computed == 0
    assert third[0]["x"].equal(3 * data.examples[0])


def test_indices_mean_what_they_mean_to_the_data_set():
    cached = CachedDataset(list(torch.arange(5.0)), MemoryStore())
    assert cached[4] == 4 and cached[np.int64(4)] == 4 and cached[torch.tensor(4)] == 4
    assert cached.num_computed == 1
    assert cached[-1] == 4
    assert [float(x) for x in cached] == [0, 1, 2, 3, 4], "ends by an IndexError"
    with pytest.raises(IndexError):
        cached[5]
    with pytest.raises(TypeError):
        cached[1:3]


@pytest.mark.parametrize("indices", [(-1, 1), (1, -1)])
def test_a_negative_index_need_not_be_the_last_one(indices):
    data = Scaled(Tens(), 1)
    cached = CachedDataset(data, MemoryStore())
    assert [cached[i] for i in (*indices, *indices)] == [data[i] for i in (*indices, *indices)]
    assert cached.num_computed == 2


def test_strings_can_be_indices():
    words = {"a": torch.tensor(1), "b" * 1000: torch.tensor(2)}
    cached = CachedDataset(words, MemoryStore())
    for _ in range(2):
        assert [int(cached[key]) for key in words] == [1, 2]
    assert cached.num_computed == 2


def test_what_a_data_set_gets_at_once_is_asked_for_at_once():
    class AtOnce(Sequences):
        def __getitems__(self, indices):
            asked.append(indices)
            return [self[i] for i in indices]

    asked = []
    cached = CachedDataset(Subset(AtOnce(), range(10, 20)), MemoryStore(), fingerprint="")
    cached[3]
    batch = cached.__getitems__([2, 3, 4])
    assert asked == [[13], [12, 14]]
    assert [x.tolist() for x in batch] == [AtOnce()[i].tolist() for i in (12, 13, 14)]


def test_a_store_that_fails_costs_one_warning_and_no_example():
    data, store = Sequences(), MemoryStore()
    cached = CachedDataset(data, store)
    now_s = [0.0]
    cached.store._clock = lambda: now_s[0]
    store.error = StoreError("gone")
    with pytest.warns(RuntimeWarning, match="^gone: examples are computed anew$") as warned:
        for seconds in range(200):
            now_s[0] = seconds
            assert cached[seconds % 50].equal(data.examples[seconds % 50])
    assert len(warned) == 1 and cached.num_computed == 200
    assert store.num_asked == 5, "at 0 s, and 10, 20, 40 and 80 s after it was last asked"
    store.error = None
    now_s[0] = 1000.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(cached[i].equal(data.examples[i]) for i in range(50))
        assert all(cached[i].equal(data.examples[i]) for i in range(50))
    assert cached.num_computed == 250


def test_a_full_store_is_read_on():
    data, store = Sequences(), MemoryStore()
    cached = CachedDataset(data, store)
    for i in range(20):
        cached[i]
    store.error = StoreFullError("full")
    with pytest.warns(RuntimeWarning, match="^full") as warned:
        for _ in range(2):
            assert all(cached[i].equal(data.examples[i]) for i in range(50))
    assert len(warned) == 1 and cached.num_computed == 20 + 2 * 30


def test_guarded_waits_longer_from_time_to_time():
    store, now_s = MemoryStore(), [0.0]
    guarded = Guarded(store, clock=lambda: now_s[0])
    store.error = StoreError("gone")
    with pytest.warns(RuntimeWarning):
        guarded.read(b"", [b""])
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S):
        asked = store.num_asked
        now_s[0] += pause_s - 1
        assert guarded.read(b"", [b""]) == [None] and store.num_asked == asked
        now_s[0] += 1
        assert guarded.read(b"", [b""]) == [None] and store.num_asked == asked + 1


def test_an_example_that_needs_pickle_is_refused_with_its_place():
    data = [{"image": object()}]
    with pytest.raises(ValueError, match=r"example 0 cannot be cached: it\['image'\] is a object"):
        CachedDataset(data, MemoryStore(), fingerprint="")[0]


def test_pickle_by_an_explicit_switch():
    data, store = [slice(1), slice(2)], MemoryStore()
    cached = CachedDataset(data, store, allow_pickle=True)
    assert [cached[0], cached[0], cached.num_computed] == [slice(1), slice(1), 1]
    with pytest.raises(ValueError, match="allow_pickle=True"):
        CachedDataset(data, store)[0]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: CachedDataset(Stream()), "a Stream cannot be cached, since its examples"),
        (lambda: CachedDataset(iter([])), "a list_iterator cannot be cached"),
        (lambda: CachedDataset([], "memory"), 'cache must be "disk", "redis://host:port" or'),
        (lambda: CachedDataset([], "redis://a:b:c"), "is no address of a Redis server"),
        (lambda: CachedDataset([(i for i in "a")], MemoryStore()), "changes cannot be seen"),
    ],
)
def test_what_cannot_be_cached_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def test_words_for_stores():
    assert opened("disk") == DiskStore()
    assert opened("redis://host:1") == RedisStore(address="redis://host:1")
    store = MemoryStore()
    assert opened(store) is store


def test_a_cached_data_set_can_be_sent_to_another_process(disk):
    data = Sequences()
    cached = CachedDataset(data, disk)
    cached[0]
    sent = pickle.loads(pickle.dumps(cached))
    assert sent[0].equal(data.examples[0]) and sent.num_computed == 1
    assert sent.dataset.num_read == 0

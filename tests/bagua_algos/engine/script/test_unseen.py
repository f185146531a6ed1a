"""Changes of weights of which torch keeps no count."""

import pytest
import torch

from bagua_algos import SGP, AllReduce, Decentralized, LocalSGD
from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.script.unseen import UnseenChanges
from tests.bagua_algos.engine.test_engine import engine_of, layers

X = torch.ones(2, 3)


def clamp(model: torch.nn.Module) -> None:
    """As the original WGAN does."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_a_change_of_data_while_the_average_travels_is_refused(bucket_bytes):
    """Also where it is in one bucket of several."""
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, Decentralized(), bucket_bytes=bucket_bytes)
    model(X).sum().backward()
    optimizer.step()
    loss = model(X).sum()
    model[1].weight.data[0, 0] += 1
    with pytest.raises(ValueError, match=r"^weights were changed through parameter\.data after a"):
        loss.backward()
    engine.close()


def test_other_memory_while_the_average_travels_is_refused():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, Decentralized())
    loss = model(X).sum()
    model[1].weight.data = model[1].weight.data.clamp(-0.01, 0.01)
    with pytest.raises(ValueError, match=r"^'1\.weight' .* was changed after a forward pass"):
        loss.backward()
    engine.close()


def test_one_that_is_taken_back_is_none():
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, Decentralized())
    for _ in range(2):
        loss = model(X).sum()
        before = model[0].weight.data.clone()
        clamp(model[0])
        model[0].weight.data.copy_(before)
        loss.backward()
        optimizer.step()
    engine.close()


def test_before_the_forward_pass_and_after_the_step_weights_may_change():
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, Decentralized())
    for _ in range(2):
        clamp(model)
        model(X).sum().backward()
        clamp(model)
        optimizer.step()
        clamp(model)
    engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=1), SGP(overlap=True)])
def test_it_is_taken_where_no_average_replaces_weights(algorithm):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, algorithm)
    for _ in range(2):
        loss = model(X).sum()
        clamp(model)
        loss.backward()
        optimizer.step()
    engine.close()


def test_it_is_taken_in_steps_between_averages():
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, Decentralized(interval=2))
    for step in range(4):
        loss = model(X).sum()
        if step % 2:
            clamp(model)
        loss.backward()
        optimizer.step()
    engine.close()


def test_weights_that_are_not_all_on_the_cpu_are_not_looked_at():
    """On a GPU the host would wait. None is here: weights without values, which nobody can look at,
    stand for those on one.
    """
    parameters = [torch.nn.Parameter(torch.zeros(3, device=device)) for device in ("cpu", "meta")]
    buckets = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=1)
    assert {bucket.weights.device.type for bucket in buckets} == {"cpu", "meta"}
    unseen = UnseenChanges()
    unseen.note(buckets)
    unseen.check(buckets)

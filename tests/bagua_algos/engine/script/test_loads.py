"""Weights that a script loads beside a picture of others, in one bucket of several."""

import pytest

from bagua_algos import ChocoSGD
from tests.bagua_algos.engine.test_engine import ONE_BYTE, engine_of, layers


@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_that_is_loaded_is_refused_where_all_others_are_as_before(number):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, ChocoSGD(), bucket_bytes=ONE_BYTE)
    assert len(engine.context.buckets) == 2
    layer = model[number]
    layer.load_state_dict({name: x + 1 for name, x in layer.state_dict().items()})
    with pytest.raises(ValueError, match=r"^weights were loaded into the distributed model"):
        optimizer.step()
    engine.close()

"""What is said of a word that nobody knows."""

import pytest

from experiments.plan.messages import sentence


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("wokers", "did you mean workers?"),
        ("algo.compresor", "did you mean algo.compressor?"),
        ("algo.compressor.bit", "did you mean algo.compressor.bits?"),
        ("algo.compressor.bits", "others in conf/algo/compressor have it; write +algo.compressor."),
        ("target.los", "did you mean target.loss?"),
        ("names.mdel", "did you mean names.model?"),
        ("target.accuracy", "write target_accuracy=VALUE"),
        ("data.sampler.batch_size", "--cfg job shows those there are"),
        ("algo.inner.workers", "--cfg job shows those there are"),
        ("hydra.seed", "--cfg job shows those there are"),
    ],
)
def test_a_key_that_there_is_not(key, said):
    found = sentence(ValueError(f"Could not override '{key}'"))
    assert found.startswith(f"there is no key {key!r}: {said}")

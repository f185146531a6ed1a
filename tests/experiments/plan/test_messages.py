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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Interpolation key 'workrs' not found\n    full_key: seed\n    object_type=Schema",
            "seed=${workrs} names no key: did you mean workers?",
        ),
        (
            "Unsupported interpolation type nope\n    full_key: names.algo\n"
            "    reference_type=NamesSchema\n    object_type=NamesSchema",
            "Unsupported interpolation type nope, at names.algo",
        ),
    ],
)
def test_a_value_that_stands_for_nothing_is_told_in_plain_words(text, said):
    assert sentence(ValueError(text)) == said

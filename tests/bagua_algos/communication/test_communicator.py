import pytest

from bagua_algos.communication.communicator import CommunicationError, telling_failures


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer",
            "Connection closed by peer",
        ),
        (
            "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:"
            "311] Connect timeout [none]",
            "Gloo connectFullMesh failed with Connect timeout [none]",
        ),
        ("Application timeout caused pair closure", "Application timeout caused pair closure"),
    ],
)
def test_what_gloo_says_through_torchs_own_code_is_of_lost_workers(said, told):
    with pytest.raises(CommunicationError) as raised, telling_failures(2):
        raise RuntimeError(said)
    assert str(raised.value) == f"worker 2: {told}"


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes") as raised, telling_failures(0):
        raise RuntimeError("the shapes do not fit")
    assert type(raised.value) is RuntimeError

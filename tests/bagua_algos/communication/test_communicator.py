import pytest

from bagua_algos.communication.communicator import CommunicationError, telling_failures


@pytest.mark.parametrize(
    "said",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer",
        "Application timeout caused pair closure",
    ],
)
def test_what_gloo_says_through_torchs_own_code_is_of_lost_workers(said):
    with (
        pytest.raises(CommunicationError, match=f"worker 2: {said.rpartition('] ')[2]}"),
        telling_failures(2),
    ):
        raise RuntimeError(said)


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes") as raised, telling_failures(0):
        raise RuntimeError("the shapes do not fit")
    assert type(raised.value) is RuntimeError

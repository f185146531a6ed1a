import pytest

from experiments.training.torch_ddp import TorchDDP


def test_a_state_without_a_hook_is_refused():
    with pytest.raises(ValueError, match="is the state of no hook: set comm_hook too"):
        TorchDDP(comm_hook_state=object)


@pytest.mark.parametrize("cap", [0, -1.0, float("nan")])
def test_a_bucket_without_room_is_refused(cap):
    with pytest.raises(ValueError, match=f"bucket_cap_mb must be more than 0 or null, got {cap}"):
        TorchDDP(bucket_cap_mb=cap)

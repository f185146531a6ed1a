import pytest
import yaml

from netsim.conditions.condition import NetworkCondition
from netsim.links import switch
from netsim.timeline.transport import GLOO, NCCL, SWITCH_BULK_BYTES, Transport
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import cost_of
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"operation_s": -1}, "operation_s has to be a finite number from 0 up, not -1"),
        ({"bytes_per_s": 0}, "bytes_per_s=0 moves nothing: choose more"),
        ({"local_bytes_per_s": 0}, "local_bytes_per_s=0 moves nothing: choose more"),
        ({"messages_per_s": 0}, "messages_per_s=0 moves nothing: choose more"),
        ({"local_messages_per_s": 0}, "local_messages_per_s=0 moves nothing: choose more"),
        ({"switch_messages_per_s": 0}, "switch_messages_per_s=0 moves nothing: choose more"),
        ({"switch_bytes_per_s": 0}, "switch_bytes_per_s=0 moves nothing: choose more"),
        ({"initial_window_bytes": 0}, "initial_window_bytes=0 moves nothing: choose more"),
        ({"straggling_bytes": -1}, "straggling_bytes has to be a finite number from 0 up, not -1"),
        ({"max_window_bytes": 0}, "max_window_bytes=0 moves nothing: choose more"),
        ({"streams": 0}, "streams has to be at least 1, not 0"),
        ({"num_segments": 0}, "num_segments has to be at least 1, not 0"),
        ({"segment_bytes": 0}, "segment_bytes=0 moves nothing: choose more"),
        ({"gather_segment_bytes": 0}, "gather_segment_bytes has to be at least 1, or null for no"),
        ({"chunk_bytes": 0}, "chunk_bytes has to be at least 1, or null for a tree, not 0"),
    ],
)
def test_refuses_what_is_no_transport(values, reason):
    with pytest.raises(ValueError, match=reason):
        Transport(**values)


def test_the_switch_naps_as_it_does():
    assert GLOO.switch_nap_s == pytest.approx(switch._NAP_S / 2)
    assert switch._BULK_BYTES == SWITCH_BULK_BYTES


def test_nccl_starts_a_byte_in_40_us_and_waits_for_no_word_as_gloo_does():
    operation = of_all("exchange", 1, 2, shift=1)
    by_nccl, by_gloo = (
        cost_of(operation, NetworkCondition(delay_ms=10), 2, transport)
        for transport in (NCCL, GLOO)
    )
    assert by_nccl.seconds == pytest.approx([0.01004] * 2, abs=1e-9)
    assert by_nccl.notice_s == pytest.approx([0, 0])
    assert by_gloo.notice_s == pytest.approx([0.01 + GLOO.message_s] * 2)


def test_gloo_has_the_constants_that_calibration_has_written():
    text = (ROOT / "results" / "validation" / "gloo.yaml").read_text()
    assert Transport(**yaml.safe_load(text)) == GLOO


def test_nccl_cuts_a_channel_s_buffer_into_eight_steps():
    """A chunk of a broadcast is one of them, a segment of an all-gather two."""
    assert NCCL.own_buffer_bytes == 4 * 2**20
    assert NCCL.chunk_bytes == NCCL.own_buffer_bytes / 8
    assert NCCL.gather_segment_bytes == 2 * NCCL.own_buffer_bytes / 8


def test_a_chunk_may_be_a_byte():
    assert Transport(chunk_bytes=1).chunk_bytes == 1


def test_without_a_word_of_the_receiver_a_connection_rests_for_a_delay_alone():
    assert GLOO.unused_s(0.5) == 0.5
    assert NCCL.unused_s(0.5) == 0.25

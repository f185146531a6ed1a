import pytest
import torch

from bagua_algos.communication.communicator import check_permutation
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.primitives import Residuals, compressed_all_reduce_mean_
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors.compressor import ErrorFeedback
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from tests.bagua_algos.recorder import Recorder

NUM_WORKERS, NUMEL, PADDED = 4, 50, 64


def gradients(offset=0.0):
    torch.manual_seed(0)
    x_wn = torch.zeros(NUM_WORKERS, PADDED)
    x_wn[:, :NUMEL] = torch.randn(NUM_WORKERS, NUMEL) + offset
    return x_wn


def test_the_mean_is_right_up_to_the_two_codes():
    x_wn = gradients()
    exact = x_wn.mean(0)
    step = (x_wn.max() - x_wn.min()).item() / 255
    compressed_all_reduce_mean_(x_wn, NUMEL, StackedCommunicator(NUM_WORKERS), MinMaxUInt8())
    # Half a step for each worker's code, averaged, and half a step for the owner's.
    assert (x_wn - exact)[:, :NUMEL].abs().max() <= step
    assert torch.equal(x_wn, x_wn[:1].expand_as(x_wn))


def test_padding_does_not_widen_the_range_of_a_chunk():
    """Far from zero, a padding of zeros would cost all precision of the last chunks."""
    x_wn = gradients(offset=1000.0)
    exact = x_wn.mean(0)
    compressed_all_reduce_mean_(x_wn, NUMEL, StackedCommunicator(NUM_WORKERS), MinMaxUInt8())
    assert (x_wn - exact)[:, :NUMEL].abs().max() < 0.05


@pytest.mark.parametrize("hierarchical", [False, True])
def test_a_bucket_without_an_element_is_not_sent(hierarchical):
    recorder, x_wn = Recorder(), torch.zeros(NUM_WORKERS, PADDED)
    workers = StackedCommunicator(NUM_WORKERS, recorder, nodes=((0, 1), (2, 3)))
    compressed_all_reduce_mean_(x_wn, 0, workers, MinMaxUInt8(), hierarchical=hierarchical)
    assert recorder.messages == [] and x_wn.eq(0).all()


def test_messages_are_as_long_as_predicted():
    recorder, compressor = Recorder(), MinMaxUInt8()
    communicator = StackedCommunicator(NUM_WORKERS, observer=recorder)
    compressed_all_reduce_mean_(gradients(), NUMEL, communicator, compressor)
    chunk_bytes = compressor.wire_bytes(PADDED // NUM_WORKERS)
    assert recorder.messages == [
        ("all_to_all", NUM_WORKERS * chunk_bytes),
        ("all_gather", chunk_bytes),
    ]


def test_what_was_sent_and_the_residuals_add_up_to_what_there_was():
    compressor = MinMaxUInt8()
    torch.manual_seed(0)
    x, residual = torch.randn(3, 40), torch.randn(3, 40)
    expected = x + residual
    payload = ErrorFeedback(compressor).compress(x, residual)
    torch.testing.assert_close(compressor.decompress(payload, 40) + residual, expected)


def test_error_feedback_makes_the_sum_over_time_exact():
    """With feedback the accumulated error stays one code's; without, it grows with every step."""
    communicator, compressor = StackedCommunicator(NUM_WORKERS), MinMaxUInt8()
    num_steps, errors = 200, {}
    for name in ("with", "without"):
        total = torch.zeros(PADDED)
        residuals = Residuals.zeros_like(gradients(), communicator) if name == "with" else None
        for _ in range(num_steps):
            x_wn = gradients()
            compressed_all_reduce_mean_(x_wn, NUMEL, communicator, compressor, residuals)
            total += x_wn[0]
        errors[name] = (total - num_steps * gradients().mean(0))[:NUMEL].abs().max().item()
    step = (gradients().max() - gradients().min()).item() / 255
    assert errors["with"] < 3 * step
    assert errors["without"] > 10 * step


def test_one_workers_nan_is_everyones():
    x_wn = gradients()
    x_wn[2, 7] = float("nan")
    compressed_all_reduce_mean_(x_wn, NUMEL, StackedCommunicator(NUM_WORKERS), MinMaxUInt8())
    assert x_wn[:, 7].isnan().all()


def test_error_feedback_forgets_a_gradient_that_overflowed():
    """Or one infinity, which a loss scale meets now and then, would be there for ever."""
    communicator, compressor = StackedCommunicator(NUM_WORKERS), MinMaxUInt8()
    residuals = Residuals.zeros_like(gradients(), communicator)
    overflowed = gradients()
    overflowed[1, 3] = float("inf")
    for x_wn in (overflowed, gradients()):
        compressed_all_reduce_mean_(x_wn, NUMEL, communicator, compressor, residuals)
    assert overflowed[:, 3].isnan().all()
    step = (gradients().max() - gradients().min()).item() / 255
    assert (x_wn - gradients().mean(0))[:, :NUMEL].abs().max() < 2 * step


@pytest.mark.parametrize("peers", [[0, 0, 1, 2], [0, 1, 2], [1, 2, 3, 4]])
def test_an_exchange_that_is_no_permutation_is_refused(peers):
    with pytest.raises(ValueError, match=r"permutation of 0\.\.3"):
        check_permutation(peers, 4)


@pytest.mark.parametrize("kind", [StackedCommunicator, LoopbackCommunicator])
def test_rows_of_an_exchange_are_those_that_arrive_and_are_sent_once(kind):
    communicator = kind(3, Recorder())
    x_wn = torch.randn(len(communicator.ranks), 5)
    rows = communicator.exchange_rows(x_wn, (1, 2, 0))
    [operation] = communicator.observer.operations
    assert (operation.name, operation.num_bytes, operation.peers) == ("exchange", 20, (1, 2, 0))
    assert torch.stack(list(rows)).equal(communicator.exchange(x_wn, (1, 2, 0)))


def test_a_world_without_workers_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        StackedCommunicator(0)

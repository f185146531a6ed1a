"""Batch normalization by hand is that of one worker after the other, in one pass over the data."""

import pytest
import torch
from torch.nn import functional

from bagua_algos.worker_axis.by_hand import LayersByHand

NUM_WORKERS, CHANNELS = 3, 4
SHAPES = {"features": (5,), "sequences": (5, 6), "images": (5, 3, 2)}


def passes(y):
    """What autograd calls on the way back, views and sums of gradients too."""
    found, nodes = [], [y.grad_fn]
    while nodes:
        node = nodes.pop()
        found.append(node.name())
        nodes += [next_node for next_node, _ in node.next_functions if next_node is not None]
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("training, has_statistics", [(True, True), (True, False), (False, True)])
def test_values_gradients_and_statistics_are_each_workers_own(
    shape, has_weights, training, has_statistics
):
    batch, *rest = SHAPES[shape]
    x_wb = torch.randn(NUM_WORKERS, batch, CHANNELS, *rest, requires_grad=True)
    names = ["weight", "bias"] if has_weights else []
    own = {name: torch.randn(NUM_WORKERS, CHANNELS, requires_grad=True) for name in names}
    statistics = ["running_mean", "running_var"] if has_statistics else []
    before = {name: torch.rand(NUM_WORKERS, CHANNELS) for name in statistics}
    after = {name: x.clone() for name, x in before.items()}

    def layer(x, given):
        none = dict.fromkeys(["running_mean", "running_var"])
        return functional.batch_norm(x, **(none | given), training=training, momentum=0.3)

    with LayersByHand():
        y_wb = torch.func.vmap(layer)(x_wb, own | after)
    rows = [{name: x[i] for name, x in (own | before).items()} for i in range(NUM_WORKERS)]
    expected = torch.stack([layer(x, row) for x, row in zip(x_wb, rows, strict=True)])
    torch.testing.assert_close(y_wb, expected)
    torch.testing.assert_close(after, before)  # each worker's layer has changed its rows of these
    of_layers = {"NativeBatchNormBackward0", "MulBackward0", "AddBackward0"}
    assert [name for name in passes(y_wb) if name in of_layers] == ["NativeBatchNormBackward0"]
    weights = torch.randn_like(expected)
    asked = [x_wb, *own.values()]
    gradients = (torch.autograd.grad(y, asked, weights) for y in (y_wb, expected))
    torch.testing.assert_close(*gradients)


def test_what_all_workers_share_is_each_workers_too():
    x_b, weight_w = torch.randn(5, CHANNELS), torch.randn(NUM_WORKERS, CHANNELS)

    def layer(x, weight):
        return functional.batch_norm(x, None, None, weight, training=True)

    with LayersByHand():
        y_wb = torch.func.vmap(layer, in_dims=(None, 0))(x_b, weight_w)
    torch.testing.assert_close(y_wb, torch.stack([layer(x_b, weight) for weight in weight_w]))


def test_bfloat16_under_autocast_is_left_to_torch():
    x_wb, weight_wc = torch.randn(NUM_WORKERS, 5, CHANNELS), torch.ones(NUM_WORKERS, CHANNELS)

    def layer(x, weight):
        return functional.batch_norm(x, None, None, weight, training=True)

    with torch.autocast("cpu"):
        expected = torch.func.vmap(layer)(x_wb.bfloat16(), weight_wc)
        with LayersByHand():
            y_wb = torch.func.vmap(layer)(x_wb.bfloat16(), weight_wc)
    assert torch.equal(y_wb, expected)


def test_statistics_that_cannot_be_changed_in_place_are_refused():
    x_wb = torch.randn(NUM_WORKERS, 5, CHANNELS)
    mean_cw, var_cw = torch.zeros(CHANNELS, NUM_WORKERS), torch.ones(CHANNELS, NUM_WORKERS)

    def layer(x, mean, var):
        return functional.batch_norm(x, mean, var, training=True)

    with LayersByHand(), pytest.raises(RuntimeError, match="view"):
        torch.func.vmap(layer, in_dims=(0, 1, 1))(x_wb, mean_cw, var_cw)

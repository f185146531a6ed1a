"""The page that holds the model against measurements that others have published."""

from experiments.predict.device import Device
from experiments.predict.dry_run import meta_buckets
from experiments.predict.published_rows import (
    ALL_REDUCE,
    BATCH_SIZE,
    BYTEGRAD,
    DELAY_MS,
    NUM_NODES,
    NUM_WORKERS,
    QADAM,
    Comparison,
    nic_gbit,
    plugin_gbit,
    step_s,
)
from experiments.predict.shapes import vgg16
from host.markdown import table

TOLERANCE = 0.15
UNEXPLAINED = "No explanation is known."

_HEADERS = (
    *("row", "Gbit/s", "published (images/s)", "predicted", "error"),
    *("step (ms)", "predicted"),
)


def explanation(comparison: Comparison) -> str:
    """Why a row is far off: what can be told from the table and the model, and no more."""
    row, gbit = comparison.row, comparison.gbit
    if row is ALL_REDUCE and gbit == 100:
        return (
            "BAGUA's rows at 100 Gbit/s were measured with its TCP plugin, torch DDP's was not. "
            f"With {plugin_gbit():.1f} Gbit/s through a NIC instead of the {nic_gbit():.1f} fitted "
            "to DDP this row would be met; no prediction uses that rate."
        )
    if row in (QADAM, BYTEGRAD) and gbit == 100:
        return (
            "What is missing is not the network, see below. The model lets kernels of "
            "communication (compression, sums inside a machine) run at the peak rates of memory "
            "and NVLink and take nothing from backward, on the same GPU."
        )
    if row in (QADAM, BYTEGRAD) and gbit == 10:
        return _below_the_bound(comparison)
    return UNEXPLAINED


def _below_the_bound(comparison: Comparison) -> str:
    model = vgg16()
    buckets = meta_buckets(model, NUM_WORKERS, comparison.row.bucket_bytes)
    forward_s = Device.load("v100").compute_times(model, buckets, BATCH_SIZE).forward_s
    code_bytes = 2 * (NUM_NODES - 1) / NUM_NODES * model.num_parameters
    moving_s = 8 * code_bytes / 10e9
    bound_s = forward_s + moving_s
    return (
        f"A leader sends {code_bytes / 1e6:.0f} MB of codes a step, 2 x 15/16 of a byte for each "
        f"parameter: {1e3 * moving_s:.0f} ms at 10 Gbit/s without any header, and none of them "
        f"before forward is over, after {1e3 * forward_s:.0f} ms. So this schedule cannot pass "
        f"{NUM_WORKERS * BATCH_SIZE / bound_s:,.0f} images/s, and {comparison.published:,.0f} are "
        "published. Either more than 10 Gbit/s passed in that measurement, or less was sent, or "
        "codes travelled beside the next forward; the table's all-reduce rows agree with 10 Gbit/s."
        f" The prediction is {1e3 * (comparison.predicted.step_s - bound_s):.0f} ms above that "
        "bound: headers, uneven sharing, and the work inside a machine, which has one lane with "
        "the NIC's."
    )


def _with_plugin() -> str:
    """What is right for the wrong reason."""
    ours = {row: row.predict(plugin_gbit()).examples_per_s for row in (QADAM, BYTEGRAD)}
    published_ms = [1e3 * step_s(row.images_per_s[0]) for row in ours]
    figures = " and ".join(
        f"{row.name} {x:,.0f} ({x / row.images_per_s[0] - 1:+.0%})" for row, x in ours.items()
    )
    return (
        f"At the {plugin_gbit():.1f} Gbit/s that the all-reduce row takes (a second fit, so no "
        f"prediction), the model has {figures} images/s at 100 Gbit/s. So what agrees there agrees "
        "in part because a NIC too slow and kernels too cheap cancel. How dear an algorithm's own "
        "work was shows between these two published rows, which send equal bytes: steps of "
        f"{published_ms[0]:.0f} and {published_ms[1]:.0f} ms."
    )


def markdown(rows: list[Comparison]) -> str:
    """The page: what was fitted, the table, and a sentence on each row that is far off."""
    far = [row for row in rows if abs(row.error) > TOLERANCE]
    lines = [
        "# Predicted against published",
        "",
        "`python -m experiments.published --out results/validation`",
        "",
        "VGG16 (138.4 M parameters), batch 32 a GPU, 16 machines of 8 V100, NVLink inside, one TCP "
        "NIC each. Published: Gan et al., arXiv 2107.01499, images/s read off a chart (+- 62). "
        "Predicted: timeline only, from shapes, by the algorithms' own code on meta tensors.",
        "",
        "Fitted: compute, to the async row at 100 Gbit/s, and what a NIC carries at 100 Gbit/s, "
        f"{nic_gbit():.1f} Gbit/s, to the row of torch DDP there. At 10 Gbit/s a NIC carries 10. "
        "Not fitted: peak rates of memory and NVLink, constants of NCCL (estimates), a delay of "
        f"{DELAY_MS} ms.",
        "",
        table(_HEADERS, [_cells(row) for row in rows], "lrrrrrr"),
    ]
    lines += ["", f"Rows more than {TOLERANCE:.0%} off:" if far else "No row is far off.", ""]
    lines += [
        f"- **{r.row.name}, {r.gbit} Gbit/s** ({r.error:+.0%}). {explanation(r)}" for r in far
    ]
    return "\n".join([*lines, "", _with_plugin()]) + "\n"


def _cells(comparison: Comparison) -> list[str]:
    predicted, published = comparison.predicted, comparison.published
    remark = " (fitted)" if comparison.is_fitted else ""
    return [
        comparison.row.name,
        str(comparison.gbit),
        f"{published:,.0f}",
        f"{predicted.examples_per_s:,.0f}",
        f"{comparison.error:+.1%}{remark}",
        f"{1e3 * step_s(published):.0f}",
        f"{1e3 * predicted.step_s:.0f}",
    ]

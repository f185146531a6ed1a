from dataclasses import replace

import numpy as np
import pytest
import yaml

from experiments.predict.device import (
    FOLDER,
    SHARES,
    Device,
    Figure,
    Shares,
    known_devices,
)
from experiments.predict.dry_run import meta_buckets
from experiments.predict.fit_shares import error, fit_shares, leave_one_out, trace_figure
from experiments.predict.load_model import known_models, trace_model
from experiments.predict.shares_table import DeviceFit, digest, page, unfitted
from experiments.predict.step_trace import KINDS, Work
from host.errors import UserError

TRUE_SHARES: dict[str, float] = dict(zip(KINDS, (0.4, 0.5, 0.6, 0.45, 0.45, 1.2), strict=True))


def device(**changes):
    values = {
        "device": "x",
        "source": "here",
        "memory_gb_per_s": 100,
        "nvlink_gb_per_s": None,
        "pcie_gb_per_s": 10,
        "peak_tflops": {"float32": 1.0},
        "tensor_cores": (),
        "shares": {"float32": Shares(by_kind=TRUE_SHARES, basis="known")},
    }
    return Device(**values | changes)


@pytest.mark.parametrize("name", known_devices())
def test_every_device_says_what_it_rests_on(name):
    known = Device.load(name)
    assert set(known.shares) == set(known.peak_tflops)
    for precision, shares in known.shares.items():
        figures = [
            f for f in known.figures if (f.precision == "float32") == (precision == "float32")
        ]
        models = {figure.model for figure in figures}
        assert models <= set(known_models())
        assert ("estimate from the data sheet alone" in shares.basis) == (not figures)
        if figures:
            assert len(models) >= 3
            assert f"figures {digest(figures)}" in shares.basis, "python -m experiments.devices"
        assert all("http" in f.source or " " in f.source for f in figures)
    assert set(yaml.safe_load(SHARES.read_text())) == set(known_devices())
    assert (FOLDER / f"{name}.yaml").read_text().startswith("# python -m experiments.predict")


def test_an_operation_takes_its_flops_or_its_bytes():
    work = Work()
    work.add("matrix", 6e9, 1e6)  # 10 ms at 0.6 TFLOPS
    work.add("matrix", 6e6, 1.2e9)  # 10 ms at 120 GB/s
    work.add("elementwise", 0, 1.2e8)
    np.testing.assert_allclose(device().seconds(work, "float32"), [0.01, 0.01, 0.001])


def test_half_precision_moves_half_the_bytes():
    work = Work()
    work.add("elementwise", 0, 1.2e9)
    shares = {p: Shares(by_kind=TRUE_SHARES, basis="") for p in ("float32", "float16")}
    both = device(peak_tflops={"float32": 1.0, "float16": 4.0}, shares=shares)
    assert both.seconds(work, "float32") == 2 * both.seconds(work, "float16")


def test_buckets_are_ready_in_order_and_the_last_with_backward():
    trace = trace_model({"model": "resnet50"}, 4)
    buckets = meta_buckets(trace.parameters, 8, 1 << 20)
    compute = Device.load("v100").compute_times(trace, buckets, "float32")
    assert len(compute.bucket_ready_s) == len(buckets) > 10
    assert list(compute.bucket_ready_s) == sorted(compute.bucket_ready_s)
    assert compute.bucket_ready_s[0] < 0.1 * compute.backward_s
    assert compute.bucket_ready_s[-1] == pytest.approx(compute.backward_s)


def figures_of(true):
    """What a device of known shares would have published."""
    figures = [
        Figure(
            model=model,
            precision="float32",
            batch_size=2,
            examples_per_s=1,
            source="made up",
            words=words,
        )
        for model, words in (
            ("vgg16", {}),
            ("resnet50", {}),
            ("lstm", {"tokens": 4}),
            ("gpt2", {"tokens": 64, "model.config.n_layer": 2}),
        )
    ]
    times = [
        sum(
            true.seconds(getattr(trace_figure(f), part), "float32").sum()
            for part in ("forward", "backward")
        )
        for f in figures
    ]
    return [replace(f, examples_per_s=2 / s) for f, s in zip(figures, times, strict=True)]


def test_a_fit_meets_what_a_device_of_known_shares_has_published():
    true = device()
    figures = figures_of(true)
    fitted = fit_shares(true, figures)
    assert all(abs(error(true, figure, fitted)) < 0.03 for figure in figures)
    left_out = leave_one_out(true, figures)
    assert all(x is not None and abs(x) < 1 for x in left_out)
    wrong = [replace(figures[0], examples_per_s=2 * figures[0].examples_per_s), *figures[1:]]
    assert leave_one_out(true, wrong)[0] == pytest.approx((1 + (left_out[0] or 0)) / 2 - 1)
    fit = DeviceFit(
        name="x",
        device=true,
        precision="float32",
        by_kind=fitted,
        basis="Made up.",
        figures=tuple(figures),
        errors=(0.0,) * 4,
        left_out=(0.125,) + (None,) * 3,
    )
    assert "| vgg16, batches of 2 |" in page([fit])
    assert "+12%" in page([fit]) or "+13%" in page([fit])


def test_one_model_alone_cannot_be_left_out():
    true = device()
    assert leave_one_out(true, figures_of(true)[:1]) == [None]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"memory_gb_per_s": 0}, "memory_gb_per_s=0 moves nothing"),
        ({"nvlink_gb_per_s": 0}, "nvlink_gb_per_s=0 moves nothing"),
        ({"peak_tflops": {"float32": 0}}, "peak_tflops.float32=0 moves nothing"),
    ],
)
def test_rates_that_no_device_has_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        device(**changes)


def test_figures_that_no_device_has_are_refused():
    figure = unfitted("v100").figures[0]
    for changes, complaint in (
        ({"examples_per_s": 0}, "examples_per_s=0 trains nothing"),
        ({"precision": "int8"}, "precision=int8 is none of float32"),
        ({"source": ""}, "source is empty"),
    ):
        with pytest.raises(ValueError, match=complaint):
            replace(figure, **changes)
    with pytest.raises(ValueError, match="a share of 0 never ends"):
        Shares(by_kind=TRUE_SHARES | {"matrix": 0}, basis="")


def test_links_and_precisions_that_a_device_lacks_are_refused():
    with pytest.raises(UserError, match="has none, take inside=pcie"):
        device().link_gb_per_s("nvlink")
    with pytest.raises(UserError, match="inside=token_ring is no link: choose nvlink, pcie"):
        device().link_gb_per_s("token_ring")
    assert device().link_gb_per_s() == 10
    assert device(nvlink_gb_per_s=50).link_gb_per_s() == 50
    with pytest.raises(UserError, match="precision=bfloat16 is not known of NVIDIA V100"):
        Device.load("v100").shares_of("bfloat16")


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "it is no mapping"), ("[1]", "it is no mapping"), ("device: x", "it has no shares")],
)
def test_a_file_of_no_device_is_refused_in_plain_words(text, why, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=rf"^device={file} cannot be read \({why}\): choose "):
        Device.load(str(file))


def test_a_device_of_the_system_is_no_file():
    with pytest.raises(UserError, match=r"^device=/dev/null cannot be read \(it is no regular "):
        Device.load("/dev/null")

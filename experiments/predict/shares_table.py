"""The shares of all devices: fitted where there are figures, and tables of how well they fit."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import yaml

from experiments.predict.device import FOLDER, Device, Figure, known_devices
from experiments.predict.fit_shares import error, fit_shares, leave_one_out
from experiments.predict.step_trace import KINDS
from host.markdown import table

_HEADERS = ("figure", "examples/s", "fitted", "from other models")


@dataclass(frozen=True, kw_only=True)
class DeviceFit:
    """A device in one precision: its shares, and each figure's error with them and without it."""

    name: str
    device: Device
    precision: str
    by_kind: dict[str, float]
    basis: str
    figures: tuple[Figure, ...] = ()
    errors: tuple[float, ...] = ()
    left_out: tuple[float | None, ...] = ()

    def entry(self) -> dict[str, Any]:
        """What `shares.yaml` keeps of it."""
        by_kind = {kind: float(f"{share:.3g}") for kind, share in self.by_kind.items()}
        return {"by_kind": by_kind, "basis": self.basis}


def unfitted(name: str) -> Device:
    """A known device without its shares."""
    values: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    figures = tuple(Figure(**figure) for figure in values.pop("figures", ()))
    values["shares"] = {}
    return Device(**values, figures=figures)


def digest(figures: Sequence[Figure]) -> str:
    """Of figures: tells a fit to others."""
    text = json.dumps([asdict(figure) for figure in figures], sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fit_all() -> list[DeviceFit]:
    """Every known device in every precision that it computes in."""
    fitted = [fit for name in known_devices() for fit in _fits(name)]
    done = {(fit.name, fit.precision) for fit in fitted}
    estimates = [
        _estimate(name, device, precision, fitted)
        for name, device in ((name, unfitted(name)) for name in known_devices())
        for precision in device.peak_tflops
        if (name, precision) not in done
    ]
    return sorted([*fitted, *estimates], key=lambda fit: (fit.name, fit.precision))


def page(fits: Sequence[DeviceFit]) -> str:
    """Tables in Markdown."""
    lines = []
    for fit in fits:
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in fit.by_kind.items())
        lines += [f"## {fit.device.device}, {fit.precision}", "", f"Shares: {shares}.", fit.basis]
        rows = zip(fit.figures, fit.errors, fit.left_out, strict=True)
        cells = [
            [
                _name(f),
                f"{f.examples_per_s:,.4g}",
                f"{e:+.0%}",
                "-" if out is None else f"{out:+.0%}",
            ]
            for f, e, out in rows
        ]
        lines += ["", table(_HEADERS, cells, "lrrr"), ""] if cells else [""]
    return "\n".join(lines)


def _fits(name: str) -> list[DeviceFit]:
    return fits_of(name, unfitted(name))


def fits_of(name: str, device: Device, where: str = "published") -> list[DeviceFit]:
    """Fits to the figures of a device, which are `where` says: published, or measured."""
    groups = (("float32",), ("float16", "bfloat16"))  # matrix units are as fast in both
    fits = []
    for group in groups:
        figures = tuple(f for f in device.figures if f.precision in group)
        if figures:
            by_kind = fit_shares(device, figures)
            fit = DeviceFit(
                name=name,
                device=device,
                precision=figures[0].precision,
                by_kind=by_kind,
                basis="",
                figures=figures,
                errors=tuple(error(device, figure, by_kind) for figure in figures),
                left_out=tuple(leave_one_out(device, figures)),
            )
            fit = replace(fit, basis=_basis(fit, where))
            fits += [replace(fit, precision=p) for p in group if p in device.peak_tflops]
    return fits


def _basis(fit: DeviceFit, where: str) -> str:
    models = {figure.model for figure in fit.figures}
    what = "inference (of training none was found)" if fit.figures[0].forward_only else "training"
    left_out = [abs(x) for x in fit.left_out if x is not None]
    return (
        f"fitted to {len(fit.figures)} {where} throughputs of {what}, {len(models)} models; the "
        f"error of a model that is left out is {np.mean(left_out):.0%} on the mean and "
        f"{max(left_out):.0%} at the most (figures {digest(fit.figures)})"
    )


def _estimate(name: str, device: Device, precision: str, fits: Sequence[DeviceFit]) -> DeviceFit:
    """The geometric mean of what others achieve that compute by units of the same sort."""
    has_units = precision in device.tensor_cores
    others = [
        fit
        for fit in fits
        if fit.precision != "bfloat16" and (fit.precision in fit.device.tensor_cores) == has_units
    ]
    means = np.exp(np.mean([[np.log(fit.by_kind[k]) for k in KINDS] for fit in others], axis=0))
    named = ", ".join(dict.fromkeys(fit.name for fit in others))
    return DeviceFit(
        name=name,
        device=device,
        precision=precision,
        by_kind=dict(zip(KINDS, map(float, means), strict=True)),
        basis=(
            "an estimate from the data sheet alone: no published throughput of this device was "
            f"found, so it is taken to achieve the mean share of others ({named})"
        ),
    )


def _name(figure: Figure) -> str:
    words = [f"{key}={value}" for key, value in figure.words.items()]
    kind = ["inference"] if figure.forward_only else []
    return ", ".join([figure.model, *words, f"batches of {figure.batch_size}", *kind])

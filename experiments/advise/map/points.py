"""Where clusters lie on the map, for one model: BERT-Base, 32 x 128 tokens a worker and step.

A step's compute is what `python -m experiments.predict model=bert_base batch_size=32 net=dc_100g
workers=2 +algo=allreduce device=v100 precision=float16` says, by device, with bfloat16 for the
newer ones: fitted to published throughputs, 14 to 20 % off on the mean. Gradients are in float32.
A ring crosses each machine's NIC once, so the link of a worker is the machine's NIC.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.advise.map.job import Job

MODEL_MB = 440.0
_STEP_MS = {"V100": 57.8, "A100": 19.3, "H100": 9.0}
_SWITCH_MS = 0.02
"""Of a switched Ethernet, one way: an assumption."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place on the map: a sign for the figure, what it is, and where that is known from."""

    sign: str
    name: str
    source: str
    job: Job


def points() -> list[Point]:
    """All that the figure shows."""
    bagua = [
        Point(
            sign=f"B{gbit}",
            name=f"BAGUA's cluster: 16 machines of 8 V100, NICs of {gbit} Gbit/s",
            source="machines and rates: Gan et al., arXiv 2107.01499; delay: assumed",
            job=_job("V100", 128, 1000.0 * gbit, _SWITCH_MS),
        )
        for gbit in (10, 25, 100)
    ]
    return [
        *bagua,
        Point(
            sign="H",
            name="8 H100 in one machine, NVLink",
            source="450 GB/s each way: NVIDIA's data sheet; delay of 2 us: assumed",
            job=_job("H100", 8, 8 * 450_000.0, 0.002),
        ),
        Point(
            sign="A",
            name="4 machines of 8 A100, NICs of 25 Gbit/s",
            source="typical, assumed",
            job=_job("A100", 32, 25_000.0, _SWITCH_MS),
        ),
        Point(
            sign="S",
            name="4 sites with one A100 each, 1 Gbit/s, 50 ms",
            source="typical, assumed",
            job=_job("A100", 4, 1_000.0, 50.0),
        ),
    ]


def _job(device: str, workers: int, rate_mbit: float, delay_ms: float) -> Job:
    return Job(
        compute_ms=_STEP_MS[device],
        model_mb=MODEL_MB,
        workers=workers,
        rate_mbit=rate_mbit,
        delay_ms=delay_ms,
    )

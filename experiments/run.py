"""One run from its configuration to its record."""

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.config import Plan, make_plan
from experiments.errors import Terminated, UserError
from experiments.launch import Network, RunDivergedError, RunFailedError, launch
from experiments.progress import ProgressView, progress_view
from experiments.records import RunFolder, time_to_accuracy
from experiments.resume import check_resumable, rows_until
from experiments.simulate import simulate
from experiments.tasks.base import TaskData
from experiments.trace import TraceFile
from experiments.train import DivergedError, Result
from netsim.errors import NamespaceError
from netsim.namespaces import check_permitted


def run(config: DictConfig, folder: Path, overrides: Sequence[str] = ()) -> str:
    """Plan, launch, record; returns the status that the record has.

    `overrides` are what the command line changed, for the record.

    Raises `UserError` before any worker starts, and lets through what stopped the run from
    outside, both with nothing left undone.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    try:
        plan = make_plan(config, folder)
        data = _checked(plan)
        recorder = _Recorder(plan, _plain(config), overrides)
    except UserError:
        with suppress(OSError):
            folder.rmdir()  # Hydra has made it; if it is not empty it is not ours
        raise
    return recorder.run(data)


class _Recorder:
    """Launches a plan and keeps its record."""

    def __init__(self, plan: Plan, config: dict[str, Any], overrides: Sequence[str]) -> None:
        self._plan = plan
        self._evaluations: list[dict[str, Any]] = []
        self._summary: dict[str, Any] = {}
        self._started_s = time.monotonic()
        earlier = []
        if plan.resume is not None:
            num_processes = 1 if plan.backend.is_simulated else plan.workers
            earlier = rows_until(plan.resume, check_resumable(config, plan.resume, num_processes))
        self._record = RunFolder.create(plan.folder, config, _known(plan), overrides)
        for row in earlier:
            self._take(row)

    def run(self, data: TaskData) -> str:
        """Launch; whatever happens, the record is finished and says what."""
        name = f"{self._plan.names['algo']} on {self._plan.names['net']}"
        print(f"{name}: {self._record.path}", flush=True)
        try:
            view = progress_view(name, self._plan.max_steps)
            self._train(data, view)
            if self._plan.trace:
                TraceFile(self._plan.folder).join()
            return self._finish("completed")
        except (RunDivergedError, DivergedError) as error:
            return self._finish("diverged", str(error))
        except RunFailedError as error:
            if error.details:
                print(error.details, flush=True)
            return self._finish("failed", str(error))
        except BaseException as error:
            self._finish("failed", f"stopped by {_named(error)}")
            raise

    def _train(self, data: TaskData, view: ProgressView) -> None:
        def on_row(row: dict[str, Any]) -> None:
            self._summary.setdefault("first_step_s", time.monotonic() - self._started_s)
            self._take(row)
            view.show(row)

        # Entered after the fork: a live view has a thread.
        def on_network(network: Network | None) -> None:
            self._on_network(network)
            view.__enter__()

        start = simulate if self._plan.backend.is_simulated else launch
        try:
            self._add_results(start(self._plan, data, on_network, on_row))
        finally:
            view.__exit__(None, None, None)

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "evaluation":
            self._evaluations.append(row)
        self._record.log(row)

    def _on_network(self, network: Network | None) -> None:
        """None: it is simulated."""
        if network is None:
            return
        self._summary |= {
            "net_backend": network.backend,
            "congestion_control": network.tcp.congestion_control,
            "tcp": asdict(network.tcp),
            "links": [asdict(link) for link in network.links],
        }
        if network.links:
            rates = [link.achieved_rate_mbit for link in network.links]
            self._summary["achieved_rate_mbit"] = statistics.median(rates)
            rtts = [link.achieved_rtt_ms for link in network.links]
            self._summary["achieved_rtt_ms"] = statistics.median(rtts)
            print(_described(self._plan, network), flush=True)

    def _add_results(self, results: list[Result]) -> None:
        first = results[0]
        self._summary |= {
            "steps": first.steps,
            "steps_per_s": first.steps / first.time_s,
            "final_accuracy": first.test_accuracy,
            "validation_accuracy": first.validation_accuracy,
            "bytes_sent_per_worker": statistics.mean(r.bytes_sent for r in results),
            "exposed_communication_s": statistics.mean(r.exposed_communication_s for r in results),
            "spread": first.spread,
        }

    def _finish(self, status: str, reason: str | None = None) -> str:
        target = self._plan.target_accuracy
        reached_s = time_to_accuracy(self._evaluations, target) if status == "completed" else None
        self._record.finish(
            self._summary
            | {
                "time_to_accuracy_s": reached_s,
                "status": status,
                "reason": reason,
                "duration_s": time.monotonic() - self._started_s,
            }
        )
        print(f"{status}{': ' + reason if reason else ''}", flush=True)
        return status


def _checked(plan: Plan) -> TaskData:
    """The data of a run that can be launched here."""
    try:
        if not plan.backend.is_simulated:
            check_permitted(plan.net, plan.workers)
        data = plan.task.load()
        plan.batches(data, (0,))
    except (NamespaceError, ValueError) as error:
        raise UserError(str(error)) from error
    return data


def _known(plan: Plan) -> dict[str, Any]:
    """The fields of the summary that are known before the run."""
    return plan.names | {
        "workers": plan.workers,
        "seed": plan.seed,
        "target_accuracy": plan.target_accuracy,
        "lr_scale": plan.lr_scale,
        "asked_rate_mbit": plan.net.rate_mbit,
        "evaluated_model": "average of the workers' models",
        "resumed_from": None if plan.resume is None else str(plan.resume),
    }


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _named(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            return "Ctrl-C (SIGINT)"
        case Terminated():
            return "SIGTERM"
    return f"{type(error).__name__}: {error}"


def _described(plan: Plan, network: Network) -> str:
    """Such as "network by tbf: asked 100 Mbit/s, RTT 0 ms; achieved 99.7 to 99.9, 0.1 to 0.2"."""
    asked = network.links[0]
    rate = "no limit" if plan.net.rate_mbit is None else f"{asked.asked_rate_mbit:g} Mbit/s"
    rates = [link.achieved_rate_mbit for link in network.links]
    rtts = [link.achieved_rtt_ms for link in network.links]
    return (
        f"network by {network.backend}, {len(network.links)} links: "
        f"asked {rate}, RTT {asked.asked_rtt_ms:g} ms; "
        f"achieved {min(rates):.1f} to {max(rates):.1f} Mbit/s, "
        f"RTT {min(rtts):.1f} to {max(rtts):.1f} ms"
    )

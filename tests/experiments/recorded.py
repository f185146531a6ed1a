"""Folders as recorded runs leave them, of made-up numbers that follow from the arguments alone."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import yaml
from pyarrow import parquet

from experiments.runs import journal
from experiments.runs.fields import field_types
from experiments.runs.summary import Summary
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, reaching

TARGET = 0.9
NETS = {"slow_tcp": 100.0, "wan": 50.0, "lan_1g": 1000.0, "dc_10g": 10000.0}
ALGOS = {  # MB a step, the rate of learning
    "torch_ddp": (1.6, 1.0),
    "torch_ddp_bf16": (0.8, 1.0),
    "torch_ddp_powersgd": (0.2, 0.8),
    "allreduce": (1.6, 1.0),
    "bytegrad": (0.4, 0.97),
    "local_sgd": (0.1, 0.7),
}


def write_run(
    folder, algo="allreduce", net="wan", seed=0, workers=4, limit=0.98, num_rows=20, **fields
):
    """A run of `num_rows` evaluations, 10 steps apart; returns its summary.

    Its accuracy approaches `limit`, sooner for an algorithm that learns faster, and its steps take
    as long as its bytes need. `fields` are of the summary; `options`, of the algorithm; `cluster`,
    of the workers; `of_net`, of the network; `of_model`, of the model; `lr`, of its optimizer;
    `stop_at_target` and `of_run`, of the run;
    `shared_training`: it learns on every network the same. Where it reaches its target,
    `time_to_accuracy_s` moves its rows, so that it does so then, by an evaluation at the target.
    `lead`: by how many steps the mean worker is before the last.
    """
    options, cluster = fields.pop("options", {}), fields.pop("cluster", {})
    of_net, stops = fields.pop("of_net", {}), fields.pop("stop_at_target", False)
    of_model, of_run = fields.pop("of_model", {}), fields.pop("of_run", {})
    lr, lead = fields.pop("lr", 0.1), fields.pop("lead", None)
    mb_a_step, rate = ALGOS[algo]
    of_chance = 0 if fields.pop("shared_training", False) else len(net)
    chance = np.random.default_rng([seed, workers, len(algo), of_chance])
    pace = 1 + 0.05 * chance.standard_normal()
    step_s = pace * (0.02 + 8 * mb_a_step / NETS[net])
    if fields.get("steps_per_s"):
        step_s = 1 / fields["steps_per_s"]
    target = fields.pop("target", Target(value=fields.get("target_accuracy", TARGET)))
    metrics = []
    for k in range(1, num_rows + 1):
        accuracy = limit - 0.9 * math.exp(-0.3 * rate * k) + 0.001 * chance.standard_normal()
        row = {"step": 10 * k, "epoch": k / 4, "time_s": 10 * k * step_s}
        row |= {"bytes_sent": int(1e7 * mb_a_step * k), "exposed_communication_s": k * step_s}
        evaluated = {"accuracy": accuracy, "validation_loss": 1.1 - accuracy, "spread": 0.0}
        if target.metric == "loss":
            evaluated["score"] = 1.1 - accuracy
        if lead is not None:
            evaluated["mean_step"] = 10 * k + lead
        metrics += [
            row | {"kind": "step", "loss": 1 - accuracy},
            row | {"kind": "evaluation", **evaluated},
        ]
    reached = reaching([MetricsRow(**r) for r in metrics], target)
    if fields.get("time_to_accuracy_s") is not None and reached is not None:
        _put_on_target(metrics, reached.step, target)
        _stretch(metrics, reached.time_s, fields["time_to_accuracy_s"])
        step_s = metrics[-1]["time_s"] / (10 * num_rows)
    summary = dict.fromkeys(field_types(Summary)) | {
        **{"algo": algo, "net": net, "task": "mnist5k", "model": "cnn", "optim": "sgd"},
        **{"backend": "gloo", "workers": workers, "seed": seed, "status": "completed"},
        **{"steps": 10 * num_rows, "steps_per_s": 1 / step_s, "target_accuracy": target.value},
        **{"final_accuracy": metrics[-1]["accuracy"] - 0.01, "spread": 0.0},
        **{"validation_accuracy": metrics[-1]["accuracy"], "lr_scale": 1.0},
        **{"validation_loss": metrics[-1]["validation_loss"], "final_loss": 1.2 - limit},
        **{"bytes_sent_per_worker": metrics[-1]["bytes_sent"], "asked_rate_mbit": NETS[net]},
        **{"exposed_communication_s": num_rows * step_s, "achieved_rate_mbit": 0.99 * NETS[net]},
        "time_to_accuracy_s": None if reached is None else reached.time_s,
        "evaluated_model": "average of the workers' models",
        **fields,
    }
    if target.metric == "loss":
        summary |= {"metric": "loss", "target_score": target.value, "target_accuracy": None}
        summary |= {f"{part}_score": summary[f"{part}_loss"] for part in ("final", "validation")}
    if summary["status"] != "completed":
        summary["time_to_accuracy_s"] = None
    config = {"seed": seed, "workers": workers, "cluster": cluster}
    config |= {"net": {"rate_mbit": summary["asked_rate_mbit"]} | of_net}
    config |= {"names": {"backend": summary["backend"]}, "model": of_model, "clip_norm": None}
    config |= {"optim": {"lr": lr}, "lr_scale": summary["lr_scale"], "stop_at_target": stops}
    config |= of_run
    config["algo"] = {"_target_": _target(algo)} | options
    environment = {"cpu": "A CPU", "cores": 2, "packages": {"torch": "2.13.0"}, "host": "a-host"}
    environment |= {"git_commit": "c0ffee", "overrides": [f"+algo={algo}", f"net={net}"]}
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text(json.dumps(environment))
    parquet.write_table(journal.table(metrics), folder / "metrics.parquet")
    return summary


def at_target(evaluations, target, names=("time_s",)):
    """What columns come to where a line between two evaluations is at this accuracy; None for a
    miss. The evaluations are rows as dicts.
    """
    scored = [row for row in evaluations if row["accuracy"] is not None]
    first = next((k for k, row in enumerate(scored) if row["accuracy"] >= target), None)
    if first is None:
        return None
    pair = scored[max(first - 1, 0) : first + 1]
    accuracies = [row["accuracy"] for row in pair]
    return {name: np.interp(target, accuracies, [row[name] for row in pair]) for name in names}


def _put_on_target(metrics, step, target):
    """The evaluation of that step to the target itself, where no line is drawn to it."""
    (row,) = (row for row in metrics if row["step"] == step and row["kind"] == "evaluation")
    if target.metric == "loss":
        row["score"] = target.value
    else:
        row["accuracy"] = target.value


def _stretch(metrics, reached_s, asked_s):
    """The time until the target, at `reached_s`, to that asked for; what follows lasts as long."""
    for row in metrics:
        after_s = max(row["time_s"] - reached_s, 0.0)
        before_s = row["time_s"] - after_s
        row["time_s"] = asked_s * (before_s / reached_s) + after_s


def _target(algo):
    if algo.startswith("torch_ddp"):
        return "experiments.training.torch_ddp.TorchDDP"
    return f"bagua_algos.algorithms.{algo}.Made"


def write_study(root, num_seeds=3):
    """Every algorithm on every network: 72 runs, of which one failed, one diverged and one missed
    the target.
    """
    odd = {
        ("bytegrad", "wan", 1): {"status": "failed", "reason": "worker 2 died", "num_rows": 4},
        ("local_sgd", "lan_1g", 2): {"status": "diverged", "reason": "the loss is nan at step 70"},
        ("allreduce", "slow_tcp", 0): {"limit": 0.85},
    }
    for algo, net, seed in product(ALGOS, NETS, range(num_seeds)):
        write_run(root / f"{algo}_{net}_s{seed}", algo, net, seed, **odd.get((algo, net, seed), {}))


def write_trace(folder: Path, num_workers=2, num_steps=5, step_us=30_000.0):
    """A trace of equal steps."""
    parts = (  # lane, name, begin, end: parts of a step
        *((-1, "forward", 0.0, 0.2), (-1, "backward", 0.2, 0.6), (-1, "wait", 0.6, 0.9)),
        *((-1, "optimizer", 0.9, 1.0), (0, "kernel", 0.4, 0.5), (0, "all_to_all", 0.5, 0.85)),
    )
    events = [
        {"name": name, "ph": "X", "pid": worker, "tid": lane + 1}
        | {"ts": (step + begin) * step_us, "dur": (end - begin) * step_us}
        for worker in range(num_workers)
        for step in range(num_steps)
        for lane, name, begin, end in parts
    ]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))

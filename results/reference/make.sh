#!/usr/bin/env bash
# Makes results/reference/ again, from the repository's root: profiles, simulated, real, report.
# Stopped, it goes on where it was. README.md says how long each part took.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
runs=results/runs/reference
# By the learning rate that was best in results/convergence/table.md, times that of the optimizer.
times_1=allreduce,allreduce_fp8,bytegrad,diloco,diloco_int8,low_precision_decentralized,post_local_sgd,power_sgd,qsgd,sgp
times_3=choco_sgd,decentralized,local_sgd,one_bit_adam,qadam,slowmo,top_k
baselines=torch_ddp,torch_ddp_bf16,torch_ddp_powersgd

profiles() { # of a worker's own work, one at a time on a quiet host
    local algo workers
    for algo in ${times_1//,/ } ${times_3//,/ } ef_signsgd async; do
        for workers in 16 64; do
            "$python" -m experiments.calibrate experiment=reference algo="$algo" workers="$workers" \
                profile=null --out "results/reference/profiles/${algo}_w$workers.yaml" >/dev/null
        done
    done
}

sweep() {
    "$python" -m experiments -m experiment=reference "$@"
}

simulated() { # $1 workers; several may run at once
    sweep workers="$1" algo="$times_1"
    sweep workers="$1" algo="$times_3" lr_scale=3
    sweep workers="$1" algo=ef_signsgd lr_scale=0.3
    sweep workers="$1" algo=async algo.interval_ms=50
}

real() { # four workers on this host, which has to be quiet
    local four=(workers=4 batch_size=32 backend=gloo profile=null stop_at_target=true)
    sweep "${four[@]}" net=none,lan_1g,slow_tcp algo="$baselines,allreduce,bytegrad,power_sgd"
    sweep "${four[@]}" net=none,lan_1g,slow_tcp algo=decentralized,local_sgd,qadam lr_scale=3
    sweep "${four[@]}" net=none,lan_1g,slow_tcp algo=async algo.interval_ms=50
}

report() {
    "$python" -m experiments.report "$runs" --out results/reference/report
}

"$@"

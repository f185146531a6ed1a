#!/usr/bin/env bash
# Makes results/reference/ again, from the repository's root, part by part: profiles, simulated,
# movies_profiles, movies, real, report. A part that was stopped goes on where it was. README.md
# says how long each took.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
# By the learning rate that was best in results/convergence/table.md, times that of the optimizer.
times_1=allreduce,allreduce_fp8,bytegrad,diloco,diloco_int8,low_precision_decentralized,post_local_sgd,power_sgd,qsgd,sgp
times_3=choco_sgd,decentralized,local_sgd,one_bit_adam,qadam,slowmo,top_k
baselines=torch_ddp,torch_ddp_bf16,torch_ddp_powersgd

calibrate() { # $1 experiment, $2 the file's prefix, $3 workers: on a quiet host
    local algo
    for algo in ${times_1//,/ } ${times_3//,/ } ef_signsgd async; do
        "$python" -m experiments.calibrate experiment="$1" algo="$algo" workers="$3" profile=null \
            --out "results/reference/profiles/$2${algo}_w$3.yaml" >/dev/null
    done
}

sweep() { # $1 experiment
    "$python" -m experiments -m experiment="$@"
}

profiles() {
    calibrate reference "" 16
}

simulated() {
    sweep reference algo="$times_1"
    sweep reference algo="$times_3" lr_scale=3
    sweep reference algo=ef_signsgd lr_scale=0.3
    sweep reference algo=async algo.interval_ms=50
}

movies_profiles() {
    calibrate reference_movies movies_ 16
}

movies() { # all by Adam, at one learning rate
    sweep reference_movies algo="$times_1,$times_3,ef_signsgd"
    sweep reference_movies algo=async algo.interval_ms=50
}

real() { # four workers on this host, which has to be quiet
    local four=(workers=4 batch_size=32 backend=gloo profile=null stop_at_target=true
        net=none,lan_1g,slow_tcp hydra.sweep.dir=results/runs/reference_real)
    sweep reference "${four[@]}" algo="$baselines,allreduce,bytegrad,power_sgd"
    sweep reference "${four[@]}" algo=decentralized,local_sgd,qadam lr_scale=3
    sweep reference "${four[@]}" algo=async algo.interval_ms=50
}

report() { # and the records of the runs; SVG, LaTeX and notebook are left out for their size
    local study
    for study in reference reference_real reference_movies; do
        "$python" -m experiments.report "results/runs/$study" --out "results/reference/$study"
    done
    rm results/reference/reference*/*.{svg,tex,ipynb}
    tar --exclude=.trainings -cJf results/reference/runs.tar.xz -C results/runs \
        reference reference_real reference_movies
}

"$@"

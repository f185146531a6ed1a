#!/usr/bin/env bash
# Makes results/reference/ again, from the repository's root, part by part: profiles, simulated,
# scaling, many, movies_rates, movies, minilm, real, real_far, real_movies, report. A part that was
# stopped goes on where it was. README.md says how long each took.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
networks=none,lan_1g,slow_tcp,wan,lossy,one_slow_worker
# By the learning rate that was best in results/convergence/table.md, times that of the optimizer.
times_1=allreduce,allreduce_fp8,bytegrad,diloco,diloco_int8,low_precision_decentralized,post_local_sgd,power_sgd,qsgd,sgp
times_3=choco_sgd,decentralized,local_sgd,one_bit_adam,qadam,slowmo,top_k
baselines=torch_ddp,torch_ddp_bf16,torch_ddp_powersgd
# On the movie snippets: gradients are compressed, or weights averaged.
gradients=allreduce,allreduce_fp8,bytegrad,power_sgd,qsgd,top_k
others=ef_signsgd,one_bit_adam,qadam
averages=choco_sgd,decentralized,diloco,diloco_int8,local_sgd,low_precision_decentralized,sgp,slowmo

sweep() { # $1 experiment
    "$python" -m experiments -m experiment="$@"
}

calibrate() { # $1 the profile's name, $2 experiment, $3 algorithm, then overrides
    "$python" -m experiments.calibrate experiment="$2" algo="$3" "${@:4}" \
        --out "results/reference/profiles/$1.yaml" >/dev/null
}

profiles() { # on a quiet host
    local algo
    for algo in ${times_1//,/ } ${times_3//,/ } ef_signsgd async; do
        calibrate "${algo}_w16" reference "$algo" profile=null
        calibrate "movies_${algo}_w16" reference_movies "$algo" profile=null
    done
    for algo in ${times_1//,/ } ${times_3//,/ } ef_signsgd; do
        calibrate "${algo}_w64" reference "$algo" profile=null workers=64
    done
    for algo in allreduce bytegrad qsgd local_sgd diloco_int8; do
        calibrate "${algo}_w128" reference "$algo" profile=null workers=128
    done
    for algo in allreduce bytegrad; do
        calibrate "minilm_${algo}_w16" movie_snippets "$algo" workers=16 precision=bfloat16
    done
}

simulated() {
    sweep reference algo="$times_1"
    sweep reference algo="$times_3" lr_scale=3
    sweep reference algo=ef_signsgd lr_scale=0.3
    sweep reference algo=async algo.interval_ms=50
}

scaling() {
    local many=(workers=16,64,128 stop_at_target=true hydra.sweep.dir=results/runs/reference_scaling)
    sweep reference "${many[@]}" algo=allreduce,bytegrad,qsgd,diloco_int8
    sweep reference "${many[@]}" algo=local_sgd lr_scale=3
}

many() { # 64 workers by all algorithms but async, which trains for every network anew
    local all=(workers=64 stop_at_target=true hydra.sweep.dir=results/runs/reference_64)
    mkdir -p results/runs/reference_64
    cp -r results/runs/reference_scaling/.trainings results/runs/reference_64/
    sweep reference "${all[@]}" algo="$times_1"
    sweep reference "${all[@]}" algo="$times_3" lr_scale=3
    sweep reference "${all[@]}" algo=ef_signsgd lr_scale=0.3
}

movies_rates() { # whose learning rate reaches the target in the fewest steps
    local all=(net=none hydra.sweep.dir=results/runs/movies_rates)
    sweep reference_movies "${all[@]}" algo="$gradients" lr_scale=0.3,1,3,10
    sweep reference_movies "${all[@]}" algo="$others" lr_scale=0.3,1,3
    sweep reference_movies "${all[@]}" algo="$averages" lr_scale=1,3,10,30,100
    sweep reference_movies "${all[@]}" algo=post_local_sgd lr_scale=1,3,10,30
    sweep reference_movies "${all[@]}" algo=async algo.interval_ms=50 lr_scale=1,3,10,30,100
}

movies() { # at those rates, the trainings of which serve all networks
    mkdir -p results/runs/reference_movies
    cp -r results/runs/movies_rates/.trainings results/runs/reference_movies/
    sweep reference_movies algo="$gradients,post_local_sgd,one_bit_adam" lr_scale=3
    sweep reference_movies algo=qadam,ef_signsgd
    sweep reference_movies algo=choco_sgd,decentralized,low_precision_decentralized,sgp,slowmo lr_scale=30
    sweep reference_movies algo=diloco,diloco_int8,local_sgd lr_scale=100
    sweep reference_movies algo=async algo.interval_ms=50 lr_scale=30
}

movies_gradient() { # its rank and entries: of 100 batches of a worker, at the first weights
    "$python" - <<'END'
from pathlib import Path
import statistics
import torch
from experiments.compose import compose_config
from experiments.config import make_plan

plan = make_plan(compose_config(["experiment=reference_movies", "algo=allreduce", "profile=null"]), Path())
train, ranks, entries = plan.task.load().train, [], []
for i in range(0, 800, 8):
    plan.model.zero_grad()
    outputs = plan.model(plan.task.inputs(torch.as_tensor(train.x[i : i + 8])))
    torch.nn.functional.cross_entropy(outputs, torch.as_tensor(train.y[i : i + 8]).long()).backward()
    gradients = [p.grad for p in plan.model.parameters()]
    entries.append(sum(int(g.count_nonzero()) for g in gradients))
    ranks.append(max(int(torch.linalg.matrix_rank(g)) for g in gradients if g.dim() == 2))
print(f"rank at most {max(ranks)}; entries: median {statistics.median(entries):g}, most {max(entries)}")
END
}

minilm() {
    sweep movie_snippets algo=allreduce,bytegrad net="$networks" seed=0,1,2 \
        backend=sim workers=16 precision=bfloat16 optim.lr=1e-4 max_steps=62 eval_every=4 \
        stop_at_target=true 'profile=results/reference/profiles/minilm_${names.algo}_w16.yaml' \
        hydra.sweep.dir=results/runs/reference_minilm
}

# Four workers on this host, which has to be quiet.
four=(workers=4 batch_size=32 backend=gloo profile=null stop_at_target=true)

real() {
    local near=(net=none,lan_1g,slow_tcp hydra.sweep.dir=results/runs/reference_real)
    sweep reference "${four[@]}" "${near[@]}" algo="$baselines,allreduce,bytegrad,power_sgd"
    sweep reference "${four[@]}" "${near[@]}" algo=decentralized,local_sgd,qadam lr_scale=3
    sweep reference "${four[@]}" "${near[@]}" algo=async algo.interval_ms=50
}

real_far() { # the best baseline, and who was faster than it on slow_tcp
    local far=(net=wan,lossy,one_slow_worker hydra.sweep.dir=results/runs/reference_real)
    sweep reference "${four[@]}" "${far[@]}" algo=torch_ddp_bf16,bytegrad
    sweep reference "${four[@]}" "${far[@]}" algo=local_sgd lr_scale=3
    sweep reference "${four[@]}" "${far[@]}" algo=async algo.interval_ms=50
}

real_movies() {
    local all=(net=none,lan_1g,slow_tcp hydra.sweep.dir=results/runs/reference_movies_real)
    sweep reference_movies "${four[@]}" "${all[@]}" lr_scale=3 \
        algo=torch_ddp,torch_ddp_bf16,bytegrad,qsgd
    sweep reference_movies "${four[@]}" "${all[@]}" algo=local_sgd lr_scale=10
    sweep reference_movies "${four[@]}" "${all[@]}" algo=async algo.interval_ms=50 lr_scale=10
}

report() { # and the records of the runs; SVG, LaTeX and notebook are left out for their size
    local study studies=(reference reference_scaling reference_64 reference_real reference_movies
        reference_movies_real reference_minilm)
    for study in "${studies[@]}"; do
        "$python" -m experiments.report "results/runs/$study" --out "results/reference/$study"
    done
    rm results/reference/reference*/*.{svg,tex,ipynb}
    "$python" -m experiments.report results/runs/movies_rates --out results/reports/movies_rates
    mkdir -p results/reference/movies_rates
    cp results/reports/movies_rates/way_to_accuracy.{csv,md} results/reference/movies_rates/
    tar --exclude=.trainings -cJf results/reference/runs.tar.xz -C results/runs \
        "${studies[@]}" movies_rates
}

"$@"

#!/usr/bin/env bash
# Makes results/reference/ again, from the repository's root, part by part: profiles, rates 16,
# simulated, rates 64, rates_128, many 64, many 128, scaling, movies_rates, movies, movies_rates_64,
# movies_many 64, movies_many 128, minilm, movies_rates_4, real, real_far, real_movies,
# real_movies_far, predicted, sixteen, steps, report. A part that was stopped goes on where it was.
# README.md says how long each took.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
networks=none,lan_1g,slow_tcp,wan,lossy,one_slow_worker
# Of four workers: by the learning rate that was best in results/convergence/table.md, times that of
# the optimizer.
times_1=allreduce,allreduce_fp8,bytegrad,diloco,diloco_int8,ef_signsgd,low_precision_decentralized,post_local_sgd,power_sgd,qsgd,sgp
times_3=choco_sgd,decentralized,local_sgd,one_bit_adam,qadam,slowmo,top_k
baselines=torch_ddp,torch_ddp_bf16,torch_ddp_powersgd
# On the movie snippets: gradients are compressed, or weights averaged.
gradients=allreduce,allreduce_fp8,bytegrad,power_sgd,qsgd,top_k
adams=one_bit_adam,qadam
averages=choco_sgd,decentralized,diloco,diloco_int8,local_sgd,low_precision_decentralized,sgp,slowmo
plain=(optim=plain_sgd optim.weight_decay=0) # for EF-SignSGD, which misses with Adam

sweep() { # $1 experiment
    "$python" -m experiments -m experiment="$@"
}

calibrate() { # $1 the profiles' names, $2 experiment, $3 algorithms, then overrides
    "$python" -m experiments.calibrate experiment="$2" algo="$3" "${@:4}" \
        --out "results/reference/profiles/$1.yaml"
}

profiles() { # on a quiet host
    local workers
    for workers in 16 64 128; do
        calibrate "{algo}_w$workers" reference "$times_1,$times_3,async" workers="$workers"
        calibrate "movies_{algo}_w$workers" reference_movies \
            "$gradients,$adams,$averages,post_local_sgd,async" workers="$workers"
        calibrate "movies_{algo}_w$workers" reference_movies ef_signsgd \
            workers="$workers" "${plain[@]}"
    done
    calibrate "minilm_{algo}_w16" movie_snippets allreduce,bytegrad workers=16 precision=bfloat16
}

rates() { # $1 workers, 16 or 64: whose learning rate reaches the target in the fewest steps
    local all=(net=none workers="$1" stop_at_target=true hydra.sweep.dir="results/runs/rates_$1")
    local low=allreduce,allreduce_fp8,bytegrad,choco_sgd,decentralized,ef_signsgd,local_sgd
    low+=,low_precision_decentralized,post_local_sgd,power_sgd,qsgd,sgp,slowmo,top_k
    local lowest=choco_sgd,decentralized,slowmo
    case $1 in
    16) low+=,one_bit_adam lowest+=,allreduce,local_sgd,post_local_sgd,power_sgd,qsgd,top_k ;;
    64) lowest+=,low_precision_decentralized ;;
    esac
    sweep reference "${all[@]}" algo="$times_1,$times_3" lr_scale=1,3,10
    sweep reference "${all[@]}" algo="$low" lr_scale=0.3
    sweep reference "${all[@]}" algo="$lowest" lr_scale=0.1
    sweep reference "${all[@]}" algo=async algo.interval_ms=50 lr_scale=0.1,0.3,1,3,10
}

simulated() { # at the rates of `rates 16`
    sweep reference algo=allreduce_fp8,bytegrad,ef_signsgd,low_precision_decentralized,one_bit_adam,sgp
    sweep reference algo=diloco,diloco_int8,qadam lr_scale=3
    sweep reference lr_scale=0.3 \
        algo=allreduce,choco_sgd,decentralized,local_sgd,post_local_sgd,power_sgd,qsgd,slowmo,top_k
    sweep reference algo=async algo.interval_ms=50
}

rates_128() { # which of the rates that tie with 64 workers
    sweep reference net=none workers=128 stop_at_target=true hydra.sweep.dir=results/runs/rates_128 \
        algo=allreduce,allreduce_fp8,bytegrad,ef_signsgd lr_scale=1,3
}

many() { # $1 workers, 64 or 128, at the rates found; their trainings serve all networks
    local all=(workers="$1" stop_at_target=true hydra.sweep.dir="results/runs/reference_$1")
    mkdir -p "results/runs/reference_$1"
    cp -r "results/runs/rates_$1/.trainings" "results/runs/reference_$1/"
    sweep reference "${all[@]}" \
        algo=bytegrad,ef_signsgd,local_sgd,post_local_sgd,power_sgd,sgp
    sweep reference "${all[@]}" lr_scale=3 \
        algo=allreduce,allreduce_fp8,diloco,diloco_int8,one_bit_adam,qadam,qsgd,top_k
    sweep reference "${all[@]}" lr_scale=0.3 \
        algo=choco_sgd,decentralized,low_precision_decentralized,slowmo
    sweep reference "${all[@]}" algo=async algo.interval_ms=50
}

scaling() { # the runs of five algorithms with each number of workers
    local algo
    mkdir -p results/runs/reference_scaling
    for algo in allreduce bytegrad diloco_int8 local_sgd qsgd; do
        cp -r results/runs/reference{,_64,_128}/"$algo"_{none,lan_1g,slow_tcp,wan,lossy,one_slow_worker}_w* \
            results/runs/reference_scaling/
    done
}

movies_rates() { # whose learning rate reaches the target in the fewest steps
    local all=(net=none hydra.sweep.dir=results/runs/movies_rates)
    sweep reference_movies "${all[@]}" algo="$gradients" lr_scale=0.3,1,3,10
    sweep reference_movies "${all[@]}" algo="$adams" lr_scale=0.3,1,3,10
    sweep reference_movies "${all[@]}" algo=ef_signsgd profile=null lr_scale=0.3,1,3
    sweep reference_movies "${all[@]}" algo=ef_signsgd profile=null "${plain[@]}" optim.lr=30,100,200,300,500,1000
    sweep reference_movies "${all[@]}" algo="$averages" lr_scale=1,3,10,30,100
    sweep reference_movies "${all[@]}" algo=post_local_sgd lr_scale=1,3,10,30
    sweep reference_movies "${all[@]}" algo=async algo.interval_ms=50 lr_scale=1,3,10,30,100
}

movies() { # at those rates, the trainings of which serve all networks
    mkdir -p results/runs/reference_movies
    cp -r results/runs/movies_rates/.trainings results/runs/reference_movies/
    sweep reference_movies algo="$gradients,$adams,post_local_sgd" lr_scale=3
    sweep reference_movies algo=ef_signsgd "${plain[@]}" optim.lr=300
    sweep reference_movies algo=choco_sgd,decentralized,low_precision_decentralized,sgp,slowmo lr_scale=30
    sweep reference_movies algo=diloco,diloco_int8,local_sgd lr_scale=100
    sweep reference_movies algo=async algo.interval_ms=50 lr_scale=30
}

movies_rates_64() { # as movies_rates, of 64 workers: rates for 128, too
    local all=(net=none workers=64 stop_at_target=true hydra.sweep.dir=results/runs/movies_rates_64)
    sweep reference_movies "${all[@]}" algo="$gradients" lr_scale=3,10,30
    sweep reference_movies "${all[@]}" algo="$adams,post_local_sgd" lr_scale=3,10
    sweep reference_movies "${all[@]}" algo="$averages" lr_scale=30,100,300
    sweep reference_movies "${all[@]}" algo=async algo.interval_ms=50 lr_scale=30,100,300
    sweep reference_movies "${all[@]}" algo=ef_signsgd profile=null "${plain[@]}" optim.lr=30,100,300,1000
}

movies_many() { # $1 workers, 64 or 128, at the rates of 64
    local all=(workers="$1" stop_at_target=true hydra.sweep.dir="results/runs/reference_movies_$1")
    mkdir -p "results/runs/reference_movies_$1"
    cp -r results/runs/movies_rates_64/.trainings "results/runs/reference_movies_$1/"
    sweep reference_movies "${all[@]}" algo="$gradients,$adams,post_local_sgd" lr_scale=10
    sweep reference_movies "${all[@]}" algo="$averages" lr_scale=100
    sweep reference_movies "${all[@]}" algo=async algo.interval_ms=50 lr_scale=100
    sweep reference_movies "${all[@]}" algo=ef_signsgd "${plain[@]}" optim.lr=100
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

# Four workers: real ones on this host, which has to be quiet, and simulated ones to compare.

movies_rates_4() { # as movies_rates, of four simulated workers: the rates that `rate` has
    local all=(net=none workers=4 batch_size=32 profile=null hydra.sweep.dir=results/runs/movies_rates_4)
    sweep reference_movies "${all[@]}" algo="$gradients,post_local_sgd" lr_scale=1,3,10
    sweep reference_movies "${all[@]}" algo="$adams" lr_scale=0.3,1,3,10
    sweep reference_movies "${all[@]}" algo=ef_signsgd lr_scale=0.3,1,3
    sweep reference_movies "${all[@]}" algo=ef_signsgd "${plain[@]}" optim.lr=100,300,1000
    sweep reference_movies "${all[@]}" algo="$averages" lr_scale=3,10,30
    sweep reference_movies "${all[@]}" algo=async algo.interval_ms=50 lr_scale=3,10,30
}

rate() { # $1 experiment, $2 algorithm: the overrides of its learning rate, and of async's interval
    case $1,$2 in
    reference,*) case ,$times_3, in *,$2,*) echo lr_scale=3 ;; esac ;;
    *,ef_signsgd) ;;
    *,torch_ddp* | *,allreduce* | *,bytegrad | *,power_sgd | *,post_local_sgd) echo lr_scale=3 ;;
    *,slowmo) echo lr_scale=30 ;;
    *) echo lr_scale=10 ;;
    esac
    [ "$2" != async ] || echo algo.interval_ms=50
}

four_workers() { # $1 experiment, $2 the study's folder, $3 networks, $4 algorithm, then overrides
    local overrides
    mapfile -t overrides < <(rate "$1" "$4")
    sweep "$1" workers=4 batch_size=32 profile=null stop_at_target=true \
        hydra.sweep.dir="results/runs/$2" net="$3" algo="$4" "${overrides[@]}" "${@:5}"
}

everyone=$baselines,$times_1,$times_3,async

near() { # one run after the other
    local algo
    for algo in ${everyone//,/ }; do
        four_workers "$1" "$2" none,lan_1g,slow_tcp "$algo" backend=gloo
    done
}

disturbed() { # $1 experiment, $2 algorithm, $3 network: whether others would slow its short steps
    case $1,$2,$3 in
    *,async,* | *,diloco*,* | *,local_sgd,* | *,slowmo,*) ;;
    *,qsgd,[lo]* | *,top_k,[lo]* | *,power_sgd,one* | *,torch_ddp_powersgd,one*) ;;
    reference,bytegrad,* | reference,torch_ddp_bf16,*) ;;
    reference,ef_signsgd,[lo]* | reference,one_bit_adam,[lo]*) ;;
    *) return 1 ;;
    esac
}

far() { # short steps alone; long ones six at a time, whose workers wait for the network, not a core
    local algo net
    for net in lossy one_slow_worker wan; do
        for algo in ${everyone//,/ }; do
            ! disturbed "$1" "$algo" "$net" || four_workers "$1" "$2" "$net" "$algo" backend=gloo
        done
    done
    for net in lossy one_slow_worker wan; do
        for algo in ${everyone//,/ }; do
            disturbed "$1" "$algo" "$net" || echo "$1 $2 $net $algo backend=gloo"
        done
    done | xargs -P 6 -L 1 "$0" four_workers
}

real() { near reference reference_real; }
real_far() { far reference reference_real; }
real_movies() { near reference_movies reference_movies_real; }
real_movies_far() { far reference_movies reference_movies_real; }

predicted() { # what simulation says of `real` and `real_far`, whose workers share this host
    local algo
    for algo in ${times_1//,/ } ${times_3//,/ } async; do
        four_workers reference reference_predicted "$networks" "$algo" seed=0 cluster.sharing=4
    done
}

predicted_error() { # predicted over measured time to accuracy, and how alike the orders are
    "$python" - <<'END'
from pathlib import Path
from scipy.stats import kendalltau
from experiments.records import load_runs
from experiments.settings import settings

measured, predicted = (
    settings(load_runs(Path("results/runs") / study).query("seed == 0")).pivot(
        index="name", columns="net", values="time_to_accuracy_s"
    )
    for study in ("reference_real", "reference_predicted")
)
nets = ["none", "lan_1g", "slow_tcp", "wan", "lossy", "one_slow_worker"]
names = measured[nets].loc[predicted.index].median(axis=1).sort_values().index
measured, predicted = measured.loc[names, nets], predicted.loc[names, nets]
ratio = predicted / measured
print("| algorithm |", " | ".join(nets), "|\n| --- |" + " ---: |" * len(nets))
for name in names:
    print(f"| {name} |", " | ".join(f"{ratio.loc[name, net]:.2f}" for net in nets), "|")
rows = {
    "median": [f"{ratio[net].median():.2f}" for net in nets],
    "mean absolute error": [f"{100 * (ratio[net] - 1).abs().mean():.0f} %" for net in nets],
    "Kendall's tau of the orders": [
        f"{kendalltau(measured[net], predicted[net]).statistic:.2f}" for net in nets
    ],
    "first, measured": [measured[net].idxmin() for net in nets],
    "first, predicted": [predicted[net].idxmin() for net in nets],
}
for name, cells in rows.items():
    print(f"| **{name}** |", " | ".join(cells), "|")
END
}

sixteen() { # how long steps of 16 workers take: real ones, eight to a core, and simulated ones
    local all=(net=lossy seed=0 max_steps=52 eval_every=26 hydra.sweep.dir=results/runs/reference_16)
    all+=('hydra.sweep.subdir=${names.algo}_${names.backend}')
    all+=(algo=allreduce,bytegrad,decentralized,diloco_int8,ef_signsgd,qsgd)
    sweep reference "${all[@]}"
    sweep reference "${all[@]}" backend=gloo profile=null
}

sixteen_error() { # simulated over measured seconds a step
    "$python" - <<'END'
from pathlib import Path
from experiments.records import load_runs

runs = load_runs(Path("results/runs/reference_16"))
seconds = (1 / runs.set_index(["algo", "backend"])["steps_per_s"]).unstack()
print("| algorithm | real | simulated | ratio |\n| --- | ---: | ---: | ---: |")
for name, (real, simulated) in seconds[["gloo", "sim"]].sort_values("gloo").iterrows():
    print(f"| {name} | {real:.3f} | {simulated:.3f} | {simulated / real:.2f} |")
END
}

steps() { # one step of real and of simulated workers
    sweep reference workers=4 batch_size=32 profile=null max_steps=60 seed=0 trace=true \
        hydra.sweep.dir=results/runs/reference_steps 'hydra.sweep.subdir=${names.algo}_${names.backend}' \
        net=slow_tcp algo=allreduce,bytegrad backend=gloo,sim
}

archive() { # $1 the archive's name, then studies
    tar --exclude=.trainings -cJf "results/reference/$1.tar.xz" -C results/runs "${@:2}"
}

report() { # and the records of the runs; SVG, LaTeX and notebook are left out for their size
    local study simulated=(reference reference_scaling reference_64 reference_128 reference_movies
        reference_movies_64 reference_movies_128 reference_minilm)
    local real=(reference_real reference_movies_real)
    for study in "${simulated[@]}" "${real[@]}"; do
        "$python" -m experiments.report "results/runs/$study" --out "results/reference/$study"
    done
    rm results/reference/reference*/*.{svg,tex,ipynb}
    local rates=(rates_16 rates_64 rates_128 movies_rates movies_rates_4 movies_rates_64)
    for study in "${rates[@]}" reference_steps; do
        "$python" -m experiments.report "results/runs/$study" --out "results/reports/$study"
    done
    for study in "${rates[@]}"; do
        mkdir -p "results/reference/$study"
        cp "results/reports/$study"/learning_rates.{csv,md} "results/reference/$study/"
        cp "results/reports/$study"/way_to_accuracy.{csv,md} "results/reference/$study/"
    done
    cp results/reports/reference_steps/timeline.png results/reference/steps.png
    predicted_error >results/reference/predicted.md
    sixteen_error >results/reference/sixteen.md
    archive runs_real "${real[@]}" reference_steps reference_16
    archive runs_simulated "${simulated[@]}" "${rates[@]}" reference_predicted
}

"$@"

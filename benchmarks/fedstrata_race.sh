#!/usr/bin/env bash
# FedStrata against its eight strongest rivals and two controls (server momentum on a class prior; training alone and
# FedAvg), equally tuned, in blocks that end before ten minutes are over.
#
#   bash benchmarks/fedstrata_race.sh RESULTS SETTING...     on a GPU; a setting that is not finished continues when it is named again
#   TINY=1 bash benchmarks/fedstrata_race.sh RESULTS all     a rehearsal on a CPU: 300 samples, 2 rounds, 2 rates, one seed
#
#   settings, and the minutes of an H200 that each is expected to take (estimated from docs/results/tuned.md, not measured):
#     cifar10-0.1 cifar10-0.5 cifar10-1      20 each      tiny-0.1 tiny-0.5      25 each
#     cifar100-0.1 cifar100-0.5 cifar100-1   20 each      news-0.1 news-0.5      15 each      hospitals   3, on a CPU
#
# DATA is the folder with cifar10, cifar100, tiny-imagenet, ag_news and hospitals.csv (default: data). ALGORITHMS, JOBS and
# SECONDS_PER_BLOCK change the methods, the processes and the limit. Trials use seed 100 and validation data; the chosen
# rates then run on seeds 101 to 103, whose partitions no earlier run of this project has used.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,14p' "$0" >&2; exit 2; }
results=$1
shift
data=${DATA:-data}
strata=${STRATA:-strata}
algorithms=${ALGORITHMS:-fedstrata,fedprior,fedala,fedpac,flayer,gpfl,pfedfda,fedlc,fedala+confree,fedopt+prior,local,fedavg}
every="cifar10-0.1 cifar10-0.5 cifar10-1 cifar100-0.1 cifar100-0.5 cifar100-1 tiny-0.1 tiny-0.5 news-0.1 news-0.5 hospitals"
mkdir -p "$results"

options() { # what a setting adds: data, model, rounds, and six learning rates for every method
    local images="--set train.lr=0.03 --grid train.lr=0.005,0.0125,0.03,0.08,0.2,0.5 --set model.name=cnn --rounds 60"
    local alpha="--set data.partition=pfllib --set data.clients=20 --set data.alpha=${1##*-}"
    case $1 in
        cifar10-*) echo "$images $alpha --data cifar10 --set data.path=$data/cifar10" ;;
        cifar100-*) echo "$images $alpha --data cifar100 --set data.path=$data/cifar100" ;;
        tiny-*) echo "$images $alpha --data tiny-imagenet --set data.path=$data/tiny-imagenet" ;;
        news-*) echo "$alpha --data ag-news --set data.path=$data/ag_news --set model.name=fasttext --rounds 40" \
            "--set train.optimizer=adam --set train.lr=0.03 --grid train.lr=0.001,0.003,0.01,0.03,0.1,0.3" ;;
        hospitals) echo "--data $data/hospitals.csv --set data.label=died_30d --set data.client=hospital --metric auroc" \
            "--rounds 40 --set train.lr=0.03 --grid train.lr=0.003,0.01,0.03,0.1,0.3,1.0" ;;
        *) return 1 ;;
    esac
}

rehearsal() { # of the same commands, as small as they get
    case $1 in hospitals) ;; *) echo "--set data.subset=300 --set data.clients=3" ;; esac
    case $1 in news-*) echo "--set data.tokens=hashed --set data.vocabulary=256 --set data.length=16 --set model.name=embedding" \
        "--set model.vocabulary=256" ;; tiny-*|cifar*) echo "--set model.name=lenet" ;; esac
    echo "--rounds 2 --trials 2 --seeds 1 --grid train.lr=0.03,0.1 --set evaluate.every=1 --jobs 1 --device cpu"
}

[ "$1" = all ] && set -- $every
for setting in "$@"; do
    out=$results/$setting
    if [ -e "$out/tuned.csv" ]; then
        echo "$setting: finished"
        continue
    fi
    settings=$(options "$setting") || { echo "there is no setting '$setting': choose among $every" >&2; exit 2; }
    [ -n "${TINY:-}" ] && settings="$(sed "s/--grid [^ ]*//" <<< "$settings") $(rehearsal "$setting")"
    command=("$strata" tune --out "$out" --algorithms "$algorithms" --seed 100 --seeds 3 --trials 6 --only train.lr --no-widen
        --jobs "${JOBS:-8}" --set train.batch=10 --set evaluate.every=5 --set evaluate.average=samples $settings)
    [ -e "$out/tune.toml" ] && command=("$strata" resume "$out" --jobs "${JOBS:-8}")
    echo "== ${command[*]}"
    timeout --signal=INT "${SECONDS_PER_BLOCK:-570}" "${command[@]}" || echo "$setting: not finished, name it again"
done

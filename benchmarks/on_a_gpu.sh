#!/usr/bin/env bash
# The figures of docs/results/speed.md that need a GPU, in parts that take an H200 three to nine minutes each.
#
#   PYTHONPATH=src PFLLIB=../PFLlib BEFORE=../stratafl-before bash benchmarks/on_a_gpu.sh RESULTS PART...
#
#   profile   where the time of a round goes, CNN and ResNet-18        methods  a comparison, joined (needs BEFORE)
#   tests     tests/gpu                                                rates    8 learning rates, joined
#   pfllib    CNN and ResNet-18 against PFLlib (needs PFLLIB)          first    start to the end of round 1
#   paper     the load of the FLAYER paper; ResNet-20, 100 clients     memory   30 runs, 300 rounds
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
results=$1
shift
here=$(dirname "$0")
python=${PYTHON:-python}
mkdir -p "$results"

measure() { # a failure is said and the rest goes on: time on a GPU is dear
    echo "== $*"
    "$python" "$@" || echo "FAILED: $*" | tee -a "$results/failed.txt"
}
bench() {
    local name=$1
    shift
    measure "$here/against_loops.py" --paper --device cuda --precision tf32 --no-baselines \
        --results "$results" --name "$name" "$@"
}

for part in "$@"; do
    case $part in
        profile)
            for model in cnn resnet18; do
                measure "$here/where_time_goes.py" --results "$results" --model "$model" --set run.compile=on
            done ;;
        tests) measure -m pytest -q -p no:cacheprovider "$here/../tests/gpu" ;;
        methods) measure "$here/joined.py" methods --results "$results" --before "${BEFORE:?}" --jobs 3 --alone ;;
        rates) measure "$here/joined.py" rates --results "$results" ;;
        first)
            for model in cnn resnet18; do
                measure "$here/first_round.py" --results "$results" --model "$model"
            done ;;
        pfllib)
            for model in cnn resnet18; do
                measure "$here/against_pfllib.py" --results "$results" --pfllib "${PFLLIB:?}" --model "$model"
            done ;;
        paper)
            bench paper-cnn --models cnn --methods fedavg,flayer --compile on --repeats 5
            bench paper-resnet18 --models resnet18 --methods fedavg --compile on --repeats 5
            bench resnet20-100-clients --models resnet20 --methods fedavg --clients 100 --batch 16 --compile on --repeats 3 ;;
        memory)
            measure "$here/memory.py" runs --results "$results" --joined 6
            measure "$here/memory.py" rounds --results "$results" ;;
        *) echo "there is no part '$part'" >&2; exit 2 ;;
    esac
done
[ ! -e "$results/failed.txt" ]

#!/usr/bin/env bash
# Tests deckrun within allocations of a real Slurm with two nodes, n1 and n2, which may be one machine: salloc, sbatch, steps.
#
#   SLURM_CONF=… DECK_BIN_DIR=target/release tests/jobs/engines/allocation.sh
#
# DECK_BIN_DIR has deckrun, and examples/ring. Arguments name the cases that run, otherwise all do. Prints a line `ok …` for
# each case; exits with 1 at the first that fails.
set -euo pipefail
: "${SLURM_CONF:?which Slurm}" "${DECK_BIN_DIR:?where deckrun is}"

bin=$(cd "$DECK_BIN_DIR" && pwd)
deckrun=$bin/deckrun
ring=$bin/examples/ring
readonly LIMIT=60
# The nodes have names that the system does not know, and the address of this host.
export DECKRUN_OPTIONS="--iface lo --start-timeout 50s"
export deckrun
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "allocation.sh: $case_name: $1" >&2
    tail -n 20 "$folder"/err >&2 || true
    exit 1
}

# Runs a command in an allocation of two tasks on each node; its output comes sorted into $out, its exit code into $code.
in_allocation() {
    code=0
    timeout "$LIMIT" salloc --quiet --nodes=2 --ntasks=4 --ntasks-per-node=2 "$@" >out 2>err </dev/null || code=$?
    out=$(sort out)
}

# Runs deckrun in such an allocation, with these options and this script for each rank.
ranks() {
    local script=${*: -1}
    # shellcheck disable=SC2086 # words
    in_allocation "$deckrun" $DECKRUN_OPTIONS "${@:1:$#-1}" -- sh -c "$script"
}

expect() {
    [[ $1 == "$2" ]] || fail "expected: $2; got: $1"
}

says() {
    grep -qF -- "$1" err || fail "standard error lacks: $1"
}

# Checks that no process has this mark in its environment.
nothing_is_left() {
    local until=$((SECONDS + LIMIT))
    while grep -lzsqx "ALLOCATION_MARK=$1" /proc/[0-9]*/environ; do
        ((SECONDS < until)) || fail "processes of $1 live on"
        sleep 0.05
    done
}

readonly WHERE='echo $DECK_RANK/$DECK_SIZE $SLURMD_NODENAME'
readonly EVERYWHERE=$'0/4 n1\n1/4 n1\n2/4 n2\n3/4 n2'

expansions() {
    local list wanted n
    for list in 'n[1-3,07],gpu[01-02]x[1-2]' 'a[08-10]' 'a[8-10]' 'a[099-101],b' 'a[1-2][3-4]' 'a[1-010]' 'rack[1-2]n[08-11]' 'z'; do
        wanted=$(scontrol show hostnames "$list" | sed 's/$/:1/' | paste -sd, | sed 's/,/, /g')
        n=$(scontrol show hostnames "$list" | wc -l)
        SLURM_JOB_NODELIST=$list SLURM_TASKS_PER_NODE="1(x$n)" "$deckrun" -n 4000 true 2>err && fail "$list: it started"
        says "only $n slots in Slurm's job: $wanted. "
    done
}

salloc_and_srun() {
    ranks --explain "$WHERE"
    expect "$code $out" "0 $EVERYWHERE"
    says "n1:2, n2:2; agent srun"
}

fewer_ranks() {
    ranks -n 1 "$WHERE"
    expect "$code $out" "0 0/1 n1"
    ranks -n 5 "$WHERE"
    expect "$code $out" "2 "
    says "5 ranks and only 4 slots in Slurm's job"
}

messages() {
    # shellcheck disable=SC2086 # words
    in_allocation "$deckrun" $DECKRUN_OPTIONS "$ring"
    expect "$code" 0
    [[ -n $out ]] || fail "the ring said nothing"
}

given_hosts() {
    ranks -n 3 --hosts localhost:3 'echo $DECK_RANK ${SLURMD_NODENAME-here}'
    expect "$code $out" $'0 0 here\n1 here\n2 here'
    ranks --agent 'env NODE={}' 'echo $DECK_RANK $NODE ${SLURMD_NODENAME-here}'
    expect "$code $out" $'0 0 n1 here\n1 n1 here\n2 n2 here\n3 n2 here'
}

# For deckrun the first node is this host, by Slurm's name for it, so it needs no step.
batch_script() {
    cat >script <<'END'
#!/bin/sh
"$deckrun" $DECKRUN_OPTIONS sh -c 'echo $DECK_RANK/$DECK_SIZE $SLURMD_NODENAME ${SLURM_STEP_ID+step}'
END
    code=0
    timeout "$LIMIT" sbatch --quiet --wait --nodes=2 --ntasks=4 --ntasks-per-node=2 --output="$folder/out" script 2>err || code=$?
    expect "$code $(sort out)" $'0 0/4 n1\n1/4 n1\n2/4 n2 step\n3/4 n2 step'
}

# The variable is as sbatch --export=NONE sets it: steps then have only Slurm's environment.
environment() {
    export SLURM_EXPORT_ENV=NONE ALLOCATION_TEST=kept
    ranks 'echo $ALLOCATION_TEST'
    unset SLURM_EXPORT_ENV ALLOCATION_TEST
    expect "$code $out" $'0 kept\nkept\nkept\nkept'
}

within_a_step() {
    # shellcheck disable=SC2086 # words
    in_allocation srun --nodes=1 --ntasks=1 --mpi=none "$deckrun" $DECKRUN_OPTIONS -n 2 sh -c "$WHERE"
    expect "$code $out" $'0 0/2 n1\n1/2 n1'
    in_allocation srun --mpi=none "$deckrun" --iface lo sh -c "$WHERE"
    expect "$code $out" "2 "
    says "Start deckrun once"
}

input_and_arguments() {
    local long
    long=$(head -c 100000 /dev/zero | tr '\0' x)
    code=0
    # shellcheck disable=SC2086 # words
    out=$(seq 20000 | timeout "$LIMIT" salloc --quiet --nodes=2 --ntasks=4 --ntasks-per-node=2 "$deckrun" $DECKRUN_OPTIONS -- \
        sh -c 'echo $DECK_RANK $(wc -l) ${#0}' "$long" 2>err | sort) || code=$?
    expect "$code $out" $'0 0 20000 100000\n1 0 100000\n2 0 100000\n3 0 100000'
}

ends() {
    ranks 'test $DECK_RANK != 3 || exit 7; sleep 600'
    expect "$code" 7
    says "rank 3 exited with code 7; ending ranks 0-2"
    ranks --timeout 300ms 'sleep 600'
    expect "$code" 124
    # No other step delays a later one, and none is left.
    # shellcheck disable=SC2016 # for the shell in there
    in_allocation bash -c 'for i in 1 2; do "$deckrun" $DECKRUN_OPTIONS true || exit; done; squeue --noheader --steps --jobs=$SLURM_JOB_ID'
    expect "$code $(grep -cvE 'extern|interactive' out || true)" "0 0"
}

killed() {
    local mark=$$.killed pid
    export ALLOCATION_MARK=$mark
    # shellcheck disable=SC2086 # words
    timeout "$LIMIT" salloc --quiet --nodes=2 --ntasks=4 --ntasks-per-node=2 \
        sh -c 'echo $$ >pid; exec "$deckrun" $DECKRUN_OPTIONS -- sh -c "echo ready; exec sleep 600"' >out 2>err </dev/null &
    local job=$! until=$((SECONDS + LIMIT))
    while (($(wc -l <out) < 4)); do
        ((SECONDS < until)) || fail "the ranks do not start"
        sleep 0.05
    done
    pid=$(<pid)
    kill -KILL "$pid"
    wait "$job" || true
    unset ALLOCATION_MARK
    nothing_is_left "$mark"
}

doctor() {
    in_allocation "$deckrun" --doctor --iface lo
    expect "$code $(grep -c '^A job can run on' out)" "0 2"
    # shellcheck disable=SC2016 # for the shell in there
    in_allocation srun --nodes=1 --ntasks=1 --mpi=none "$deckrun" --doctor --iface lo
    expect "$code" 0
    grep -q "n1:.*n2:.*agent" <(tr -s ' \n' '  ' <out) || fail "the report lacks the allocation"
}

if (($# == 0)); then
    set -- expansions salloc_and_srun fewer_ranks messages given_hosts batch_script environment within_a_step input_and_arguments \
        ends killed doctor
fi
for case_name in "$@"; do
    "$case_name"
    echo "ok $case_name"
done

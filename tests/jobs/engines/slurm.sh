#!/usr/bin/env bash
# The tests' own Slurm on this machine: two nodes, with a munge, ports and a folder of their own. The system's Slurm is neither
# used nor changed.
#
#   slurm.sh        starts it, prints `ready FILE` (the value of SLURM_CONF for srun), and ends it when its standard input ends
#
# So it ends with the process that started it, in whatever way that one ends. Each daemon and each process of a job has
# SLURM_CONF in its environment, by which they are found. The next run removes the leftovers of a killed one.
set -uo pipefail

readonly FOLDERS=/tmp/engines-slurm
readonly folder=$FOLDERS.$$
readonly START_LIMIT=60

# Prints the processes that belong to a folder. A process that has ended meanwhile cannot be read.
members() {
    local file
    for file in $(grep -lzs "^SLURM_CONF=$1/" /proc/[0-9]*/environ); do
        file=${file#/proc/}
        echo "${file%/environ}"
    done
}

# Ends the processes, and removes the folder. A killed process may just have started another one.
remove() {
    local pids round
    for round in $(seq 1000); do
        pids=$(members "$1")
        [[ -n $pids ]] || break
        # shellcheck disable=SC2086 # words
        kill -KILL $pids 2>/dev/null
        sleep 0.01
    done
    rm -rf "$1"
}

remove_leftovers() {
    local left
    for left in "$FOLDERS".*; do
        if [[ -d $left && ! -d /proc/${left##*.} ]]; then
            remove "$left"
        fi
    done
}

fail() {
    echo "$1"
    tail -n 3 "$folder"/log/* 2>/dev/null
    exit 1
}

# Prints the first of three ports at which nothing listens. They are below those that the system assigns on request.
free_ports() {
    local first port
    while true; do
        first=$((20000 + RANDOM % 10000))
        for port in $((first)) $((first + 1)) $((first + 2)); do
            (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue 2
        done
        echo "$first"
        return
    done
}

# The nodes have many processors, and memory is not counted, so that no job waits for another one; no task is bound to any
# processor.
# Each node has a folder for temporary files: otherwise Slurm's PMIx would have files of the same names for both.
configuration() {
    local host user port
    host=$(hostname -s) user=$(id -un) port=$(free_ports)
    cat <<END
ClusterName=engines
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=64 RealMemory=1000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=64 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
}

# Runs in the background, with its output in a file.
daemon() {
    local log=$1
    shift
    SLURM_CONF=$folder/slurm.conf "$@" </dev/null >"$folder/log/$log" 2>&1 &
    # The end of the daemon must print nothing.
    disown
}

start() {
    mkdir -p "$folder"/{state,log,{spool,tmp}.n{1,2}} && mkdir -m 700 "$folder/munge" || exit 1
    head -c 1024 /dev/urandom >"$folder/munge/key" && chmod 400 "$folder/munge/key"
    configuration >"$folder/slurm.conf"
    daemon munged munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
    local end=$((SECONDS + START_LIMIT))
    until [[ -S $folder/munge/socket ]]; do
        ((SECONDS < end)) || fail "munged does not start"
        sleep 0.02
    done
    daemon slurmctld slurmctld -D -c
    daemon slurmd.n1 slurmd -D -N n1
    daemon slurmd.n2 slurmd -D -N n2
    # Both nodes are in one state if there is one line.
    until [[ $(SLURM_CONF=$folder/slurm.conf timeout 10 sinfo -h -o %t 2>/dev/null) == idle ]]; do
        ((SECONDS < end)) || fail "the nodes of Slurm are not ready within $START_LIMIT s"
        sleep 0.1
    done
}

PATH=$PATH:/usr/sbin:/sbin
umask 022
trap 'remove "$folder"' EXIT
trap 'exit 1' HUP INT TERM
remove_leftovers
start
echo "ready $folder/slurm.conf"
# Waits for the end of the input.
cat >/dev/null

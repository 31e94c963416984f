#!/usr/bin/env bash
# A Slurm of the tests' own on this machine: two nodes, with a munge, ports and a folder of their own. What the system has of
# Slurm is neither used nor changed.
#
#   slurm.sh        starts it, prints `ready FILE` (what SLURM_CONF has to be for srun), and ends it when its standard input ends
#
# So it ends with whoever started it, however that one ends. Each daemon and each process of a job has SLURM_CONF in its
# environment: by this they are found. What a killed run has left, the next one removes.
set -uo pipefail

readonly FOLDERS=/tmp/engines-slurm
readonly folder=$FOLDERS.$$
readonly START_LIMIT=60

# The processes that belong to a folder. Those that end meanwhile cannot be read.
members() {
    local file
    for file in $(grep -lzs "^SLURM_CONF=$1/" /proc/[0-9]*/environ); do
        file=${file#/proc/}
        echo "${file%/environ}"
    done
}

# Ends them, and removes the folder. What is killed may just have started another process.
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

# The first of three ports at which nobody listens. Below those that the system gives to anybody who asks for none.
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

# Many processors, and no count of memory, so that no job waits for another one; and no task is bound to any of them.
# A folder for each node's temporary files: Slurm's PMIx has files of the same names there for both.
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

# In the background, with what it says in a file.
daemon() {
    local log=$1
    shift
    SLURM_CONF=$folder/slurm.conf "$@" </dev/null >"$folder/log/$log" 2>&1 &
    # Nothing is to be said of its end.
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
    # Both nodes in one state: one line.
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
# Until the end of the input.
cat >/dev/null

#!/bin/sh
# Slurm's Epilog: frees the GPUs of a finished job. Kills its user's remaining processes there. If another process
# holds the GPUs, or the memory is not freed, drains the node with the reason. Runs as root on each node of a job;
# gpumem-slurm(7) describes the installation.

gpumem=/usr/bin/gpumem
# A GPU with more memory in use is not free. Drivers use a few hundred MiB.
limit=500MiB
# How long a process may take to exit on SIGTERM before SIGKILL.
grace=5s

# A job without GPUs.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

answer=$("$gpumem" check --gpu "$SLURM_JOB_GPUS" --max-used "$limit" 2>&1) && exit 0
# The finished job had these GPUs exclusively, so none of its user's processes there is needed. The exception is root,
# whose daemons may also use the GPUs.
if [ "$SLURM_JOB_UID" != 0 ]; then
    targets=
    for gpu in $(printf '%s' "$SLURM_JOB_GPUS" | tr , ' '); do
        targets="$targets gpu:$gpu"
    done
    # shellcheck disable=SC2086 # one word per GPU
    killed=$("$gpumem" kill $targets --where "user=$SLURM_JOB_UID" \
        --all-users --graphics --kept --grace "$grace" --yes 2>&1)
    printf '%s\n' "$killed" | logger -t gpumem-epilog
fi
answer=$("$gpumem" check --gpu "$SLURM_JOB_GPUS" --max-used "$limit" 2>&1) && exit 0
"$gpumem" ps --gpu "$SLURM_JOB_GPUS" 2>&1 | logger -t gpumem-epilog
reason=$(printf '%s\n' "$answer" | head -n 1 | cut -c 1-100)
scontrol update nodename="$SLURMD_NODENAME" state=drain reason="gpumem: $reason"
exit 1

#!/bin/sh
# Slurm's Epilog: nothing of a job goes on holding memory on its GPUs. What its user has left there is killed; if
# something else holds them, or the memory does not come back, the node drains, with the reason. Runs as root on each
# node of a job; gpumem-slurm(7) says how to install it.

gpumem=/usr/bin/gpumem
# A GPU with more than this in use is not free. Drivers keep some hundred MiB to themselves.
limit=500MiB
# How long a process may take to exit on SIGTERM before SIGKILL.
grace=5s

# A job without GPUs.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

answer=$("$gpumem" check --gpu "$SLURM_JOB_GPUS" --max-used "$limit" 2>&1) && exit 0
# Nobody but this job's user had these GPUs, and the job is over, so that nothing there is worth keeping. Of root's
# jobs that is not so: root's daemons may be there, too.
if [ "$SLURM_JOB_UID" != 0 ]; then
    targets=
    for gpu in $(printf '%s' "$SLURM_JOB_GPUS" | tr , ' '); do
        targets="$targets gpu:$gpu"
    done
    # shellcheck disable=SC2086 # one word for each GPU
    killed=$("$gpumem" kill $targets --where "user=$SLURM_JOB_UID" \
        --all-users --graphics --kept --grace "$grace" --yes 2>&1)
    printf '%s\n' "$killed" | logger -t gpumem-epilog
fi
answer=$("$gpumem" check --gpu "$SLURM_JOB_GPUS" --max-used "$limit" 2>&1) && exit 0
"$gpumem" ps --gpu "$SLURM_JOB_GPUS" 2>&1 | logger -t gpumem-epilog
reason=$(printf '%s\n' "$answer" | head -n 1 | cut -c 1-100)
scontrol update nodename="$SLURMD_NODENAME" state=drain reason="gpumem: $reason"
exit 1

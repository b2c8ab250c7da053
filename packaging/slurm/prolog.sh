#!/bin/sh
# Slurm's Prolog: lets a job start only if its GPUs are free. Otherwise drains the node with the reason, and Slurm
# requeues the job. Runs as root on each node of a job; gpumem-slurm(7) describes the installation.

gpumem=/usr/bin/gpumem
# A GPU with more memory in use is not free. Drivers use a few hundred MiB.
limit=500MiB
# How long to wait until the previous job's memory is freed.
seconds=30

# A job without GPUs.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

end=$(($(date +%s) + seconds))
until answer=$("$gpumem" check --gpu "$SLURM_JOB_GPUS" --max-used "$limit" 2>&1); do
    if [ "$(date +%s)" -ge "$end" ]; then
        "$gpumem" ps --gpu "$SLURM_JOB_GPUS" 2>&1 | logger -t gpumem-prolog
        reason=$(printf '%s\n' "$answer" | head -n 1 | cut -c 1-100)
        scontrol update nodename="$SLURMD_NODENAME" state=drain reason="gpumem: $reason"
        exit 1
    fi
    sleep 2
done

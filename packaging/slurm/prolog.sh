#!/bin/sh
# Prolog for Slurm that lets a job start only if the job's GPUs are free. Otherwise, it drains the node, records why
# as the drain reason, and Slurm requeues the job. Slurm runs the prolog as root on each node of the job.
# gpumem-slurm(7) describes the installation.

gpumem=/usr/bin/gpumem
# Maximum used memory of a free GPU. Drivers use a few hundred MiB.
limit=500MiB
# Maximum time to wait until the memory of the previous job is freed.
seconds=30

# Jobs without GPUs need no prolog.
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

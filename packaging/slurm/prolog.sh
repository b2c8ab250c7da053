#!/bin/sh
# Slurm's Prolog: a job starts on GPUs that are free. Otherwise the node drains, with the reason, and the job is
# requeued. Runs as root on each node of a job; gpumem-slurm(7) says how to install it.

gpumem=/usr/bin/gpumem
# A GPU with more than this in use is not free. Drivers keep some hundred MiB to themselves.
limit=500MiB
# How long the memory of the job before may take to come back.
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

#!/bin/sh
# Prolog for Slurm that lets a job start only if the job's GPUs are free. Otherwise, it drains the node, with the cause
# as the drain reason, and Slurm requeues and holds the job. Slurm runs the prolog as root on each node of the job.
# gpumem-slurm(7) describes the installation.

gpumem=/usr/bin/gpumem
# Maximum used memory of a free GPU. Drivers use a few hundred MiB.
limit=500MiB
# Maximum time to wait until the memory of the previous job is freed.
seconds=30

# Jobs without GPUs need no prolog.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

# Slurm numbers GPUs by device file or, with AutoDetect=nvml, as the driver does. Slurm 25.11 also provides UUIDs.
case "${CUDA_VISIBLE_DEVICES:-}" in
    *MIG-*) exit 0 ;;
    GPU-*) gpus=$CUDA_VISIBLE_DEVICES ;;
    *)
        gpus=$SLURM_JOB_GPUS
        grep -qi '^[^#]*AutoDetect *= *nvml' "${SLURM_CONF%/*}/gres.conf" ||
            gpus=$(printf '%s' "$gpus" | sed 's|[0-9][0-9]*|/dev/nvidia&|g')
        ;;
esac

end=$(($(date +%s) + seconds))
until answer=$("$gpumem" check --gpu "$gpus" --max-used "$limit" 2>&1); do
    if [ "$(date +%s)" -ge "$end" ]; then
        "$gpumem" ps --gpu "$gpus" 2>&1 | logger -t gpumem-prolog
        reason=$(printf '%s\n' "$answer" | sed 's/^gpumem: //;q' | cut -c 1-100)
        scontrol update nodename="$SLURMD_NODENAME" state=drain reason="gpumem: $reason"
        exit 1
    fi
    sleep 2
done

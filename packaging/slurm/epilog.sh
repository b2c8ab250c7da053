#!/bin/sh
# Epilog for Slurm that frees the GPUs of a finished job. If memory on these GPUs is still in use, it kills the
# processes of the job's user there. If that does not free the memory, it drains the node, with the cause as the drain
# reason. Slurm runs the epilog as root on each node of the job. gpumem-slurm(7) describes the installation.

gpumem=/usr/bin/gpumem
# Maximum used memory of a free GPU. Drivers use a few hundred MiB.
limit=500MiB
# Time between SIGTERM and SIGKILL.
grace=5s

# Jobs without GPUs need no epilog.
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

answer=$("$gpumem" check --gpu "$gpus" --max-used "$limit" 2>&1) && exit 0
# The job had exclusive use of these GPUs, so processes of the job's user are leftovers of the job. Processes of root
# are not killed, because they can be daemons.
if [ "$SLURM_JOB_UID" != 0 ]; then
    targets=
    for gpu in $(printf '%s' "$gpus" | tr , ' '); do
        targets="$targets gpu:$gpu"
    done
    # shellcheck disable=SC2086 # one word per GPU
    killed=$("$gpumem" kill $targets --where "user=$SLURM_JOB_UID" \
        --all-users --graphics --kept --grace "$grace" --yes 2>&1)
    printf '%s\n' "$killed" | logger -t gpumem-epilog
fi
answer=$("$gpumem" check --gpu "$gpus" --max-used "$limit" 2>&1) && exit 0
"$gpumem" ps --gpu "$gpus" 2>&1 | logger -t gpumem-epilog
reason=$(printf '%s\n' "$answer" | sed 's/^gpumem: //;q' | cut -c 1-100)
scontrol update nodename="$SLURMD_NODENAME" state=drain reason="gpumem: $reason"
exit 1

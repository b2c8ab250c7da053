"""Simulated GPUs of the modules in this directory. Writes their allocations to the mock driver's scene.

`GPUMEM_FAKE_SCENE` contains the path of the scene. Rows of other processes do not change. Without the variable,
allocations are only counted. `GPUMEM_FAKE_GPUS` contains the number of GPUs, 1 by default.
"""

import atexit
import fcntl
import json
import os

MIB = 1 << 20
#: Memory of a context.
CONTEXT = 300 * MIB
COUNT = int(os.environ.get('GPUMEM_FAKE_GPUS', '1'))
_scene = os.environ.get('GPUMEM_FAKE_SCENE')

#: For each GPU, bytes by holder.
held = [{} for _ in range(COUNT)]
#: GPUs on which a context was created, for the tests.
made_contexts = []


def bus_id(index):
    """Returns the PCI bus id in CUDA's format."""
    return '%04X:%02X:00.0' % (0, 0x17 + index)


def nvml_bus_id(index):
    """Returns the PCI bus id in NVML's format."""
    return '%08X:%02X:00.0' % (0, 0x17 + index)


def hold(index, who, size):
    """Sets the memory of a holder. The first holder creates a context."""
    if not held[index]:
        made_contexts.append(index)
        held[index]['context'] = CONTEXT
    held[index][who] = size
    write()


def used(index):
    return sum(held[index].values())


def write(gone=False):
    if _scene is None:
        return
    with open(_scene + '.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(_scene) as file:
                scene = json.load(file)
        except FileNotFoundError:
            scene = {}
        gpus = scene.setdefault('gpus', [])
        while len(gpus) < COUNT:
            gpus.append({'name': 'NVIDIA H100 80GB HBM3', 'pci': nvml_bus_id(len(gpus))})
        pid = os.getpid()
        for index in range(COUNT):
            rows = [row for row in gpus[index].get('processes') or [] if row['pid'] != pid]
            if not gone and held[index]:
                rows.append({'pid': pid, 'type': 'compute', 'used_bytes': used(index)})
            gpus[index]['processes'] = rows
        beside = '%s.%d' % (_scene, pid)
        with open(beside, 'w') as file:
            json.dump(scene, file)
        os.rename(beside, _scene)


atexit.register(write, gone=True)

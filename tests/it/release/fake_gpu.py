"""The GPUs of the modules beside this one: what they allocate is written to the mock driver's scene.

`GPUMEM_FAKE_SCENE` names the scene. Rows of other processes in it stay as they are. Without it nothing is
written, and what is held is only counted. `GPUMEM_FAKE_GPUS` is how many there are (one).
"""

import atexit
import fcntl
import json
import os

MIB = 1 << 20
#: What a context costs.
CONTEXT = 300 * MIB
COUNT = int(os.environ.get('GPUMEM_FAKE_GPUS', '1'))
_scene = os.environ.get('GPUMEM_FAKE_SCENE')

#: Bytes by who holds them, of each GPU.
held = [{} for _ in range(COUNT)]
#: What a test looks at: calls that must not be made, contexts that were.
made_contexts = []


def bus_id(index):
    """As CUDA writes it."""
    return '%04X:%02X:00.0' % (0, 0x17 + index)


def nvml_bus_id(index):
    """As NVML writes it."""
    return '%08X:%02X:00.0' % (0, 0x17 + index)


def hold(index, who, size):
    """`who` now holds so many bytes of a GPU; the first makes a context."""
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

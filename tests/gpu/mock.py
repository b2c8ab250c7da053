"""The mock driver's side of `run --mock`: a stand-in for a process on a GPU, and what keeps the scene.

A stand-in opens the device files, writes down what it holds, and waits until the driver plays it. The keeper
lists it until every process that has its files open is gone, as the driver does.
"""

import json
import mmap
import os
import time
from pathlib import Path

MIB = 1 << 20
TOTAL = 80 << 30
RESERVED = 614 * MIB
CONTEXT = 512 * MIB
LIBRARIES = {
    "torch": "libtorch_cuda.so",
    "jax": "xla_cuda_plugin.so",
    "cupy": "cupy_backends/cuda/api/runtime.so",
    "plain": "libcuda.so.1",
}
# What a test breaks, to see that a check notices it.
BROKEN = os.environ.get("GPUMEM_TEST_GPU_BREAK", "").split(",")


def is_running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")


class Keeper:
    """Writes the scene from what the stand-ins have written down."""

    def __init__(self, folder):
        self.folder = folder
        self.scene = folder / "scene.json"
        self.last = None
        (folder / "holders").mkdir()
        self.keep()

    def keep(self):
        processes = []
        for file in sorted((self.folder / "holders").glob("*.json")):
            holder = json.loads(file.read_text())
            if any(map(is_running, holder["pids"])) or "freed" in BROKEN:
                row = {name: holder[name] for name in ("pid", "used_bytes", "sm")}
                processes.append(row)
            else:
                file.unlink()
        gpu = {"name": "NVIDIA H100 80GB HBM3", "memory": {"total": TOTAL, "reserved": RESERVED}}
        gpu["processes"] = processes
        faults = []
        scene = {"gpus": [gpu], "faults": faults}
        if "memory" in BROKEN:
            gpu["memory"]["used"] = sum(row["used_bytes"] for row in processes) // 2
        if "slow" in BROKEN:
            faults.append({"function": "nvmlDeviceGetName", "delay_ms": 150})
        if "error" in BROKEN:
            faults.append({"function": "nvmlDeviceGetPowerUsage", "error": 999})
        if "field" in BROKEN:
            gpu["fan"] = 40
        if scene != self.last:
            beside = self.scene.with_suffix(".new")
            beside.write_text(json.dumps(scene))
            beside.replace(self.scene)
            self.last = scene


def make_devices(command):
    """Runs a command where /dev has plain files in place of a GPU's, in a mount namespace of its own."""
    script = """
    set -e
    mount --rbind /dev /mnt
    mount -t tmpfs none /dev
    for name in null zero full random urandom; do : >/dev/$name; mount --bind /mnt/$name /dev/$name; done
    for name in nvidia0 nvidiactl nvidia-uvm; do : >/dev/$name; done
    mkdir /dev/pts /dev/shm
    mount --rbind /mnt/pts /dev/pts
    ln -s pts/ptmx /dev/ptmx
    exec "$@"
    """
    os.environ["GPUMEM_TEST_GPU_DEVICES"] = "mock"
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, "sh", *command])


class StandIn:
    """Has the commands of the programs that use a GPU; see programs.py."""

    def __init__(self, kind):
        self.folder = Path(os.environ["GPUMEM_MOCK_SCENE"]).parent
        self.files = [open(f"/dev/{name}", "rb") for name in ("nvidia0", "nvidiactl", "nvidia-uvm")]
        needed = [LIBRARIES["plain"]] if "framework" in BROKEN else [LIBRARIES["plain"], LIBRARIES[kind]]
        self.maps = [self._map(self.folder / name) for name in needed]
        self.kind = kind
        self.pids = [os.getpid()]
        self.blocks = []
        self.peak = 0
        self.reserved = int(TOTAL * 0.75) if kind == "jax" else 0
        if "lazy" in BROKEN:
            self.burn = time.sleep
        self._tell(0)

    def _map(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            file.truncate(4096)
            return mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)

    def _tell(self, sm):
        row = {"pid": self.pids[0], "used_bytes": CONTEXT + self.reserved, "sm": sm}
        if "bytes" in BROKEN:
            row["used_bytes"] //= 4
        file = self.folder / f"holders/{self.pids[0]}.json"
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps({**row, "pids": self.pids}))
        beside.replace(file)
        while row not in json.loads((self.folder / "scene.json").read_text())["gpus"][0]["processes"]:
            time.sleep(0.005)

    def take(self, size):
        scene = json.loads((self.folder / "scene.json").read_text())
        used = sum(row["used_bytes"] for row in scene["gpus"][0]["processes"])
        if used + size > TOTAL - RESERVED:
            raise MemoryError(f"CUDA out of memory. Tried to allocate {size / (1 << 30):.2f} GiB. GPU 0 has")
        self.blocks.append(size)
        self.peak = max(self.peak, sum(self.blocks))
        self.reserved = max(self.reserved, sum(self.blocks))
        self._tell(0)

    def work(self, seconds):
        self._tell(0 if "work" in BROKEN else 97)
        time.sleep(seconds)
        self._tell(0)

    def copy(self, seconds):
        # A copy of gigabytes keeps a memory engine and some multiprocessors busy.
        self._tell(0 if "copy" in BROKEN else 4)
        time.sleep(seconds)
        self._tell(0)

    def drop(self):
        self.blocks.clear()
        self.reserved = int(TOTAL * 0.75) if self.kind == "jax" else 0
        self._tell(0)

    def facts(self):
        return {"reserved": self.reserved, "allocated": sum(self.blocks), "peak": self.peak, "total": TOTAL}

    def forked(self, pid):
        self.pids.append(pid)
        self._tell(0)



#!/usr/bin/env python3
"""Checks the mock driver's ABI with other clients of NVML.

Requires `pip install nvidia-ml-py gpustat`, and the driver built by `cargo build -p mock-nvml`:

    python3 tests/mock-nvml/abi/check_abi.py target/debug/libmock_nvml.so

Plays a scene with real child processes, because gpustat reads /proc for each pid. Both libraries must report the
GPUs, memory, processes and utilization of the scene. Otherwise, the script exits with 1 and a traceback.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
GIB = 1 << 30


def scene_of(pids):
    """Returns two GPUs that differ in every compared value, a GPU that supports little, and a GPU with MIG devices."""
    return {
        "driver": {"version": "570.86.15", "cuda_version": 12080},
        "gpus": [
            {
                "name": "NVIDIA H200",
                "uuid": "GPU-11111111-2222-3333-4444-555555555555",
                "memory": {"total": 141 * GIB, "reserved": 614 * MIB, "unattributed": 20 * MIB},
                "utilization": {"gpu": 97, "memory": 41},
                "power": 432100,
                "power_limit": 700000,
                "temperature": 61,
                "fan": None,
                "processes": [
                    {"pid": pids[0], "type": "compute", "used_bytes": 20 * GIB, "sm": 95},
                    {"pid": pids[1], "type": "compute", "used_bytes": 3 * GIB},
                ],
            },
            {
                "name": "NVIDIA GeForce RTX 4090",
                "uuid": "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa",
                "memory": {"total": 24 * GIB, "reserved": 368 * MIB},
                "utilization": {"gpu": 3, "memory": 1},
                "power": 21000,
                "power_limit": 450000,
                "temperature": 35,
                "fan": 30,
                "processes": [
                    {"pid": pids[2], "type": "graphics", "used_bytes": 300 * MIB},
                    {"pid": pids[1], "type": "compute", "used_bytes": 1 * GIB, "sm": 3},
                ],
            },
            {
                "name": "NVIDIA GB10",
                "uuid": "GPU-bbbbbbbb-cccc-dddd-eeee-ffffffffffff",
                "memory": None,
                "utilization": None,
                "power": None,
                "power_limit": None,
                "temperature": None,
                "fan": None,
                "process_utilization": False,
                "processes": [],
            },
            {
                "name": "NVIDIA H100 80GB HBM3",
                "uuid": "GPU-cccccccc-dddd-eeee-ffff-000000000000",
                "memory": {"total": 80 * GIB, "reserved": 614 * MIB},
                "utilization": None,
                "power": 90000,
                "power_limit": 700000,
                "temperature": 33,
                "fan": None,
                "process_utilization": False,
                "processes": [],
                "mig": True,
                "mig_devices": [
                    {
                        "index": 2,
                        "uuid": "MIG-11111111-2222-3333-4444-555555555555",
                        "profile": "1g.10gb",
                        "gpu_instance_id": 9,
                        "compute_instance_id": 0,
                        "memory": {"total": 10 * GIB, "reserved": 40 * MIB, "used": 1 * GIB},
                        "processes": [],
                    },
                ],
            },
        ],
    }


def check_equal(name, found, expected):
    if found != expected:
        raise AssertionError(f"{name}: found {found!r}, expected {expected!r}")
    print(f"ok  {name}: {found!r}")


def processes(gpu, kind):
    """Returns the memory by pid of the processes on a list of the scene."""
    listed = (p for p in gpu["processes"] if p["type"] == kind)
    return {p["pid"]: p["used_bytes"] for p in listed}


def used(gpu):
    of_processes = sum(process["used_bytes"] for process in gpu["processes"])
    return of_processes + gpu["memory"].get("unattributed", 0)


def check_pynvml(scene):
    import pynvml

    def unsupported(name, call, *arguments):
        try:
            found = call(*arguments)
        except pynvml.NVMLError_NotSupported:
            print(f"ok  {name}: not supported")
        else:
            raise AssertionError(f"{name}: found {found!r}, expected not supported")

    def listed(call):
        return {process.pid: process.usedGpuMemory for process in call(handle)}

    pynvml.nvmlInit()
    check_equal("driver version", pynvml.nvmlSystemGetDriverVersion(), scene["driver"]["version"])
    check_equal("cuda version", pynvml.nvmlSystemGetCudaDriverVersion(), scene["driver"]["cuda_version"])
    check_equal("gpus", pynvml.nvmlDeviceGetCount(), len(scene["gpus"]))
    for index, gpu in enumerate(scene["gpus"]):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        check_equal(f"{index} name", pynvml.nvmlDeviceGetName(handle), gpu["name"])
        check_equal(f"{index} uuid", pynvml.nvmlDeviceGetUUID(handle), gpu["uuid"])
        by_uuid = pynvml.nvmlDeviceGetHandleByUUID(gpu["uuid"])
        check_equal(f"{index} by uuid", pynvml.nvmlDeviceGetIndex(by_uuid), index)
        pci = pynvml.nvmlDeviceGetPciInfo(handle).busId
        by_pci = pynvml.nvmlDeviceGetHandleByPciBusId(pci)
        check_equal(f"{index} by pci {pci}", pynvml.nvmlDeviceGetIndex(by_pci), index)
        for kind, call in [
            ("compute", pynvml.nvmlDeviceGetComputeRunningProcesses),
            ("graphics", pynvml.nvmlDeviceGetGraphicsRunningProcesses),
        ]:
            check_equal(f"{index} {kind} list", listed(call), processes(gpu, kind))

        if gpu["memory"] is None:
            unsupported(f"{index} memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
            unsupported(f"{index} utilization", pynvml.nvmlDeviceGetUtilizationRates, handle)
            unsupported(f"{index} power", pynvml.nvmlDeviceGetPowerUsage, handle)
            unsupported(f"{index} samples", pynvml.nvmlDeviceGetProcessUtilization, handle, 0)
            continue
        if "mig" in gpu:
            check_mig(pynvml, index, handle, gpu)
            continue
        total, reserved = gpu["memory"]["total"], gpu["memory"]["reserved"]
        one = pynvml.nvmlDeviceGetMemoryInfo(handle)
        two = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        check_equal(f"{index} memory v1", (one.total, one.used), (total, used(gpu) + reserved))
        check_equal(
            f"{index} memory v2",
            (two.total, two.reserved, two.used, two.free),
            (total, reserved, used(gpu), total - reserved - used(gpu)),
        )
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        check_equal(f"{index} gpu percent", rates.gpu, gpu["utilization"]["gpu"])
        check_equal(f"{index} memory percent", rates.memory, gpu["utilization"]["memory"])
        check_equal(f"{index} power", pynvml.nvmlDeviceGetPowerUsage(handle), gpu["power"])
        sensor = pynvml.NVML_TEMPERATURE_GPU
        old = pynvml.nvmlDeviceGetTemperature(handle, sensor)
        new = pynvml.nvmlDeviceGetTemperatureV(handle, sensor)
        check_equal(f"{index} temperature", (old, new), (gpu["temperature"],) * 2)
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
        busy = {process["pid"]: process["sm"] for process in gpu["processes"] if "sm" in process}
        check_equal(f"{index} samples", {s.pid: s.smUtil for s in samples}, busy)
    pynvml.nvmlShutdown()


def check_mig(pynvml, index, handle, gpu):
    """Checks the MIG devices of a GPU through their handles."""
    scene = {mig["index"]: mig for mig in gpu["mig_devices"]}
    found = {}
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found[number] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:
            pass
    check_equal(f"{index} MIG devices", list(found), list(scene))
    for number, mig in scene.items():
        device = found[number]
        name = f"{index}:{number}"
        check_equal(f"{name} is a MIG handle", bool(pynvml.nvmlDeviceIsMigDeviceHandle(device)), True)
        check_equal(f"{name} name", pynvml.nvmlDeviceGetName(device), f"{gpu['name']} MIG {mig['profile']}")
        check_equal(f"{name} uuid", pynvml.nvmlDeviceGetUUID(device), mig["uuid"])
        ids = (pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device))
        check_equal(f"{name} instances", ids, (mig["gpu_instance_id"], mig["compute_instance_id"]))
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        check_equal(f"{name} memory", (memory.total, memory.used), (10 * GIB, 1 * GIB))
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        check_equal(f"{name} parent", pynvml.nvmlDeviceGetIndex(parent), index)


def check_gpustat(scene):
    import gpustat

    def expected(gpu):
        """Returns the GPU in gpustat's format, with memory in MiB, power in watts, and one list of processes."""
        known = gpu["memory"] is not None
        return {
            "name": gpu["name"],
            "uuid": gpu["uuid"],
            "memory.total": gpu["memory"]["total"] // MIB if known else None,
            "memory.used": used(gpu) // MIB if known else None,
            "utilization.gpu": gpu["utilization"] and gpu["utilization"]["gpu"],
            "temperature.gpu": gpu["temperature"],
            "fan.speed": gpu["fan"],
            "enforced.power.limit": gpu["power_limit"] // 1000 if known else None,
            "power.draw": round(gpu["power"] / 1000) if known else None,
            "processes": {p["pid"]: p["used_bytes"] // MIB for p in gpu["processes"]},
        }

    def compare(name, gpus):
        check_equal(f"{name} gpus", len(gpus), len(scene["gpus"]))
        for index, (found, gpu) in enumerate(zip(gpus, scene["gpus"])):
            for key, value in expected(gpu).items():
                shown = found[key]
                if key == "processes":
                    shown = {p["pid"]: p["gpu_memory_usage"] for p in shown}
                if key.startswith("memory.") and value is None:
                    continue  # Versions of gpustat show unknown memory differently.
                check_equal(f"{name} {index} {key}", shown, value)

    compare("gpustat.new_query()", gpustat.new_query().jsonify()["gpus"])
    command = [sys.executable, "-m", "gpustat", "--json"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    compare("gpustat --json", json.loads(printed)["gpus"])


def play(library):
    """Copies the driver to the loader's search path, and runs the checks in a child process."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(library, os.path.join(folder, "libnvidia-ml.so.1"))
            scene = os.path.join(folder, "scene.json")
            with open(scene, "w", encoding="utf-8") as file:
                json.dump(scene_of([child.pid for child in children]), file)
            environment = dict(os.environ, LD_LIBRARY_PATH=folder, GPUMEM_MOCK_SCENE=scene)
            check = [sys.executable, os.path.abspath(__file__), "--on-stage"]
            return subprocess.run(check, env=environment).returncode
    finally:
        for child in children:
            child.kill()
            child.wait()


def main(arguments):
    if arguments == ["--on-stage"]:
        with open(os.environ["GPUMEM_MOCK_SCENE"], encoding="utf-8") as file:
            scene = json.load(file)
        check_pynvml(scene)
        check_gpustat(scene)
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: check_abi.py LIBMOCK_NVML_SO", file=sys.stderr)
        return 2
    return play(arguments[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The checks. For each check, `run` starts `checks.py NAME` with a time limit."""

import ctypes
import json
import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from advice import ADVICE, MOCK_ADVICE
from harness import (
    BINARY, GIB, HERE, IS_MOCK, MEMORY_SECONDS, MIB, TOKEN, WORK, Nvml, Program, Skip, find_row, gpumem, mib,
    parse, part, process_state, program_command, recording, row, snapshot, wait,
)  # fmt: skip

nvml = Nvml()
RULE_SECONDS = 2 if IS_MOCK else 6
WORK_SECONDS = 1.5 if IS_MOCK else 6
CYCLES = 20
# Seconds for the cycles of each framework.
PARK_SECONDS = 100
RULES = WORK / "rules.toml"
RULES.write_text(
    f'[rules.idle]\nmin_memory = "256MiB"\nduration = "{RULE_SECONDS}s"\n'
    + "".join(f'[rules.{rule}]\nduration = "{RULE_SECONDS}s"\n' for rule in ("stopped", "orphan", "dead"))
)


def errors(done):
    return parse(done)["errors"]


# Name, arguments, allowed exit codes, a function that reads the result, and the expected result.
TOOLS = [
    ("--version", ["--version"], [0], lambda done: "driver " in done.stdout, True),
    ("doctor", ["doctor", "--json"], [0],
     lambda done: [case["title"] for case in parse(done)["checks"] if case["verdict"] == "broken"], []),
    ("ps --json", ["ps", "--json"], [0], errors, []),
    ("check", ["check", "--json", "--no-store", "--window", "2s"], [0, 1], errors, []),
    ("watch --once", ["watch", "--once", "--no-store", "--size", "120x40"], [0],
     lambda done: len(done.stdout.splitlines()), 40),
    ("record", ["record", WORK / "tools.jsonl", "--interval", "500ms", "--duration", "2s"], [0],
     lambda _: (WORK / "tools.jsonl").read_text().count('"errors":[]}\n') >= 3, True),
    ("ps --replay", ["ps", "--json", "--replay", WORK / "tools.jsonl"], [0], errors, []),
]  # fmt: skip


def tools():
    for name, arguments, statuses, observe, expected in TOOLS:
        with part(name):
            done = gpumem(*arguments)
            print(done.stdout, file=sys.stderr)
            observed = observe(done)
            words = f"exit {done.returncode}, {observed}"
            passed = done.returncode in statuses and observed == expected
            row(name, f"exit {statuses}, {expected}", words, passed)
    with part("a working process"), recording("1-tools"):
        program = Program("plain")
        program.ask("take(512 * MIB)")
        program.send("work(20)")
        current = snapshot()
        compare_fields(current)
        for gpu, device in zip(current["gpus"], nvml.devices, strict=True):
            compare_memory(gpu, nvml.memory(device)[0])


def compare_memory(gpu, total):
    memory = {name: gpu["memory"][f"{name}_bytes"] for name in ("total", "reserved", "used", "free")}
    sizes = {name: mib(size) for name, size in memory.items()}
    listed = sum(process.get("used_bytes") or 0 for process in gpu.get("processes") or [])
    difference = memory["total"] - memory["reserved"] - memory["used"] - memory["free"]
    passed = memory["total"] == total and abs(difference) <= 4 * MIB and listed <= memory["used"] + MIB
    expected = f"{mib(total)} = reserved + used + free; used covers all processes"
    row(f"GPU {gpu['index']}: memory adds up", expected, f"{sizes}, processes {mib(listed)}", passed)


def field_paths(value, path=""):
    if isinstance(value, dict):
        return {found for name, child in value.items() for found in field_paths(child, f"{path}.{name}")}
    if isinstance(value, list):
        return {found for child in value for found in field_paths(child, f"{path}[]")}
    return set() if value is None else {path}


def compare_fields(current):
    fields = field_paths({name: current[name] for name in ("driver", "gpus")})
    path = HERE / "fields.txt"
    if os.environ.get("GPUMEM_BLESS") and IS_MOCK:
        path.write_text("\n".join(sorted(fields)) + "\n")
    mocked = set(path.read_text().split())
    observed = f"only here: {sorted(fields - mocked)}; only on the mock: {sorted(mocked - fields)}"
    # A difference on a real driver is a defect of the mock driver, not of gpumem.
    row("fields of a snapshot", "those of the mock driver", observed, fields == mocked or not IS_MOCK)


def frameworks():
    with recording("2-frameworks"):
        for kind, name in (("torch", "pytorch"), ("jax", "jax"), ("cupy", "cupy")):
            with part(kind):
                framework(kind, name)


def framework(kind, name):
    before = nvml.used()
    program = Program(kind)
    pid = program.pid
    program.ask("take(2 * GIB)")
    reserved = program.ask("facts()")["reserved"]
    change = nvml.used() - before
    passed = change >= max(reserved, 2 * GIB)
    row(f"{kind}: bytes on the GPU", f"{mib(reserved)} or more", mib(change), passed)
    if kind == "jax":
        share = reserved / nvml.memory(nvml.devices[0])[0]
        row("jax: preallocated", "70 to 85 %", f"{share:.1%}", 0.70 <= share <= 0.85)
    with part(f"{kind}: the process"):
        nvml.require_listed(pid)
        current = snapshot()
        listed = find_row(current, pid)
        process = next((process for process in current["processes"] if process["pid"] == pid), {})
        context = ((listed or {}).get("used_bytes") or 0) - reserved
        observed = f"{mib(context)} more than {mib(reserved)}; {listed}"
        row(f"{kind}: reserved and a context", "100 to 1536 MiB more", observed, 100 <= context / MIB <= 1536)
        row(f"{kind}: framework", name, process.get("framework"), process.get("framework") == name)
        files = process.get("gpu_files") or []
        row(f"{kind}: device files", "/dev/nvidiactl and others", files, "/dev/nvidiactl" in files)
        utilization(kind, program)
    program.finish()
    free = nvml.wait_free(before)
    left = find_row(snapshot(), pid)
    observed = f"free after {free} s; NVML lists {nvml.listed(pid)}, gpumem {left}"
    passed = free is not None and nvml.listed(pid) is None and left is None
    row(f"{kind}: exited", "no process and no memory left", observed, passed)


def utilization(kind, program):
    samples = []

    def sample():
        samples.append((find_row(snapshot(), program.pid) or {}).get("sm_percent"))
        return samples[-1]

    program.send(f"work({WORK_SECONDS})")
    is_busy = wait(lambda: (sample() or 0) >= 30, WORK_SECONDS + 5) is not None
    row(f"{kind}: SM utilization under load", "30 % or more", samples, is_busy)
    program.receive()
    # The driver still reports past work for some seconds. To save time, only PyTorch waits until the value is 0.
    if kind == "torch":
        is_quiet = wait(lambda: sample() == 0, 2 * MEMORY_SECONDS + 5) is not None
        row(f"{kind}: SM utilization when idle", "0 in the end", samples, is_quiet)


def verdicts():
    with recording("3-verdicts"):
        with part("idle holders"):
            holders()
        with part("only copies memory"):
            copying = Program("plain")
            copying.ask("take(1280 * MIB)")
            copying.send("copy()")
            time.sleep(1)
            compare_findings(judge(), {"only copies memory": (copying.pid, set())})
            copying.kill()
        with part("uses the encoder"):
            encoder()


def holders():
    idle, stopped, trainer, parent, cpu = programs = [Program("plain") for _ in range(5)]
    for program in programs:
        program.ask("take(1280 * MIB)")
    nvml.require_listed(idle.pid)
    worker, child = trainer.ask("fork()"), parent.ask("fork()")
    trainer.kill()
    # The process becomes a zombie, because it is not reaped.
    parent.process.send_signal(signal.SIGKILL)
    stopped.process.send_signal(signal.SIGSTOP)
    cpu.send("while True: pass")
    time.sleep(MEMORY_SECONDS)
    cases = {
        "idle": (idle.pid, {"idle"}),
        "stopped by SIGSTOP": (stopped.pid, {"stopped"}),
        "worker of a dead trainer": (worker, {"orphan"}),
        "dead trainer": (trainer.pid, {"dead"}),
        "zombie parent": (parent.pid, {"dead"}),
        "only uses the CPU": (cpu.pid, set()),
    }
    if not owns_pids():
        del cases["worker of a dead trainer"], cases["dead trainer"]
        row("dead trainer", "it can be tried", "these pids are not the host's", None)
    compare_findings(judge(), cases)
    for program in (idle, stopped, cpu):
        program.kill()
    for pid in (worker, child):
        os.kill(pid, signal.SIGKILL)
    parent.process.wait(20)


def owns_pids():
    return snapshot()["host"].get("pid_namespace") == "host"


def judge():
    window = ["--window", f"{2 * RULE_SECONDS + 1}s", "--interval", "250ms"]
    return parse(gpumem("check", "--json", "--no-store", *window, config=RULES))


def compare_findings(verdict, cases):
    for name, (pid, expected) in cases.items():
        findings = [entry for entry in verdict["findings"] if (entry.get("process") or {}).get("pid") == pid]
        found = {finding["kind"] for finding in findings if finding["resolved_at"] is None}
        undecided = [(entry["rule"], entry["reason"]) for entry in verdict["undecided"] if entry["pid"] == pid]
        observed = f"{sorted(found)}, undecided {undecided}, {find_row(snapshot(), pid)}"
        row(name, f"{sorted(expected)}", observed, found == expected)


def encoder():
    if IS_MOCK or not shutil.which("ffmpeg"):
        raise Skip("the mock driver has no encoder" if IS_MOCK else "ffmpeg is not installed")
    source = ["-re", "-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=60"]
    command = ["ffmpeg", "-loglevel", "error", *source, "-c:v", "h264_nvenc", "-f", "null", "-"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(3)
    if process.poll() is not None:
        raise Skip("ffmpeg cannot encode here; see log.txt")
    nvml.require_listed(process.pid)
    compare_findings(judge(), {"uses the encoder": (process.pid, set())})
    process.kill()


def watch_end(pid, before, samples, is_over):
    """Samples the state and memory of a process, and whether the memory is free again."""
    while not is_over.is_set():
        is_free = nvml.used() <= before + 64 * MIB
        samples.append((time.monotonic(), process_state(pid), nvml.listed(pid), is_free))
        time.sleep(0.005)


def report_end(samples):
    after = [sample for sample in samples if sample[1] in ("Z", "X", "gone")]
    if not after:
        return "it has not exited"
    ended = after[0][0]
    unlisted = [round(at - ended, 3) for at, _, listed, _ in after if listed is None][:1]
    free = [round(at - ended, 3) for at, _, _, is_free in after if is_free][:1]
    between = sorted({(state, listed) for _, state, listed, _ in after if listed is not None})
    return f"seconds from its exit until NVML stops listing it {unlisted}, until free {free}; listed {between}"


# Name, code that the process executes, arguments of gpumem, and whether a rule must find the process.
KILLS = [
    ("kill", "None", ["kill", "--yes", "--grace", "5s"], False),
    ("reap --pid, SIGTERM ignored", "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
     ["reap", "--yes", "--json", "--grace", "1s", "--pid"], False),
    ("reap what a rule finds", "None",
     ["reap", "--yes", "--json", "--no-store", "--kind", "idle", "--window", f"{RULE_SECONDS + 2}s",
      "--where", TOKEN], True),
]  # fmt: skip


def kills():
    with recording("4-kills"):
        for name, code, arguments, is_found in KILLS:
            with part(name):
                kill(name, code, arguments, is_found)


def kill(name, code, arguments, is_found):
    before = nvml.used()
    program = Program("plain")
    program.ask("take(512 * MIB)")
    program.ask(code)
    nvml.require_listed(program.pid)
    if is_found and not owns_pids():
        raise Skip("these pids are not the host's, so no rule may end a process")
    time.sleep(MEMORY_SECONDS if is_found else 0)
    samples, is_over = [], threading.Event()
    threading.Thread(target=watch_end, args=(program.pid, before, samples, is_over), daemon=True).start()
    done = gpumem(*arguments, *([] if is_found else [program.pid]), config=RULES)
    print(done.stdout, file=sys.stderr, flush=True)
    free = nvml.wait_free(before)
    is_over.set()
    observed = f"exit {done.returncode}, free after {free} s more; {report_end(samples)}"
    is_freed = free is not None and "freed" in done.stdout and program.process.poll() is not None
    row(name, "exit 0, freed", observed, done.returncode == 0 and is_freed)


def runs():
    with part("out of memory"):
        other = Program("torch")
        other.ask("take(GIB)")
        nvml.require_listed(other.pid)
        # With a limit, gpumem initializes NVML before the command starts.
        code = ["take(MIB)", f"work({WORK_SECONDS})", f"take({nvml.memory(nvml.devices[0])[0]})"]
        done, report, _ = run("torch", ["--max-peak", "100%"], code)
        holders = [entry["process"]["pid"] for gpu in report["least_free"] for entry in gpu["others"]]
        observed = f"exit {done.returncode}, held by {holders}, {done.stderr[-2000:]}"
        passed = done.returncode == 1 and "out of memory" in done.stderr.lower() and other.pid in holders
        row("out of memory", f"exit 1, out of memory, held by {other.pid}", observed, passed)
        other.finish()
    code = ["take(GIB)", f"work({WORK_SECONDS})", "facts()"]
    with part("--max-peak above the peak"):
        done, report, answers = run("torch", ["--max-peak", "95%", "--fail-on", "held"], code)
        peak = max(gpu.get("peak_bytes") or 0 for gpu in report["gpus"])
        low, high = answers[-1]["peak"], answers[-1]["reserved"] + 1536 * MIB
        passed = done.returncode == 0 and low <= peak <= high
        observed = f"exit {done.returncode}, {mib(peak)}"
        row("--max-peak above the peak", f"exit 0, {mib(low)} to {mib(high)}", observed, passed)
    with part("--max-peak below the peak"):
        done, report, _ = run("torch", ["--max-peak", "600MiB"], code)
        observed = f"exit {done.returncode}, {report['assertions']}"
        row("--max-peak below the peak", "exit 1", observed, done.returncode == 1)
    left_behind("--fail-on held", ["detach(512 * MIB)"])
    if not IS_MOCK:
        # The result shows which pid the driver lists if only a forked worker is left.
        left_behind("--fail-on held, inherited", ["take(512 * MIB)", "work(1)", "fork()", "os._exit(0)"])


def left_behind(name, code):
    with part(name):
        done, report, answers = run("plain", ["--fail-on", "held"], code)
        named = [entry["process"]["pid"] for entry in report["held"]]
        observed = f"exit {done.returncode}, names {named}; NVML lists {nvml.processes()}"
        row(name, f"exit 1, names {answers[-1]}", observed, done.returncode == 1 and answers[-1] in named)
        os.kill(answers[-1], signal.SIGKILL)


def run(kind, options, code):
    path = WORK / "run.json"
    done = gpumem("run", *options, "--report", path, "--", *program_command(kind, *code))
    answers = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    return done, json.loads(path.read_text()), answers


def advice():
    for name, environment, steps in MOCK_ADVICE if IS_MOCK else ADVICE:
        with part(name):
            follow_advice(name, environment, steps)


def follow_advice(name, environment, steps):
    program = Program(name.split()[0], **environment)
    total = nvml.memory(nvml.devices[0])[0]
    used = 0
    for code, (unit, low, high) in steps:
        program.ask(code)
        before, used = used, nvml.listed(program.pid)
        if used is None:
            # In some containers, NVML lists other pids. The program is the only one on the GPUs, so use the total.
            used = nvml.used()
        values = {"change": (used - before) / GIB, "GiB": used / GIB, "share": used / total}
        passed = low <= values[unit] <= high
        last = code.strip().splitlines()[-1]
        row(f"{name}: {last}", f"{unit} from {low} to {high}", f"{values[unit]:+.3f}", passed)
    program.finish()

# The NVML functions that gpumem calls, grouped by arguments. `tests/it/hardware.rs` checks that the list is complete.
CALLS = {
    "out": "SystemGetCudaDriverVersion_v2 DeviceGetCount_v2",
    "out 96": "SystemGetDriverVersion SystemGetNVMLVersion",
    "0 out": "DeviceGetHandleByIndex_v2",
    "device out 96": "DeviceGetName DeviceGetUUID",
    "device out": "DeviceGetPciInfo_v3 DeviceGetMinorNumber DeviceGetMemoryInfo DeviceGetUtilizationRates"
    " DeviceGetAccountingMode DeviceGetPowerUsage DeviceGetEnforcedPowerLimit DeviceGetPerformanceState"
    " DeviceGetComputeMode DeviceGetPersistenceMode DeviceGetCurrentClocksThrottleReasons"
    " DeviceGetNumaNodeId",
    "device memory": "DeviceGetMemoryInfo_v2",
    "device out out": "DeviceGetEncoderUtilization DeviceGetDecoderUtilization DeviceGetJpgUtilization"
    " DeviceGetOfaUtilization DeviceGetMigMode",
    "device 0 out": "DeviceGetTemperature DeviceGetFanSpeed_v2 DeviceGetPcieThroughput",
    "device 1 out": "DeviceGetClockInfo",
    "device 1 0 out": "DeviceGetTotalEccErrors",
    "device out count 0": "DeviceGetProcessUtilization",
    "device 1 field": "DeviceGetFieldValues",
    "pci out": "DeviceQueryDrainState",
    "device count out": "DeviceGetComputeRunningProcesses_v3 DeviceGetGraphicsRunningProcesses_v3"
    " DeviceGetMPSComputeRunningProcesses_v3",
    "": "Init_v2 Shutdown",
}


def cost():
    program = Program("plain")
    program.ask("take(512 * MIB)")
    with part("ps --json"):
        command = [BINARY, "--config", "/dev/null", "ps", "--json", "--no-store"]
        times = []
        for _ in range(5):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            times.append(cpu_milliseconds(process))
        median = statistics.median(times)
        row("CPU time of ps --json", "1000 ms or less", f"{median:.0f} ms", median <= 1000)
    with part("watch"):
        # At five samples per second, three seconds contain ten more samples than one second.
        sample = (watch_milliseconds(3) - watch_milliseconds(1)) / 10
        row("CPU time of a watch sample", "20 ms or less", f"{sample:.1f} ms", sample <= 20)
    with part("NVML calls"):
        calls = [(name, words.split()) for words, names in CALLS.items() for name in names.split()]
        times = {name: time_call(f"nvml{name}", words) for name, words in calls}
        # NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT and NVML_ERROR_UNKNOWN.
        bad = [name for name, (code, median, _) in times.items() if code in (1, 2, 999) or median > 100]
        row("NVML calls", "each within 100 ms", f"bad: {bad}; code, median, longest in ms: {times}", not bad)


def cpu_milliseconds(process):
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{process.args} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def watch_milliseconds(duration):
    """Returns the CPU time of `watch` on a terminal."""
    ours, theirs = pty.openpty()
    command = [BINARY, "--config", "/dev/null", "watch", "--no-store", "--interval", "200ms"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment, start_new_session=True)
    threading.Thread(target=lambda: all(iter(lambda: os.read(ours, 65536), b"")), daemon=True).start()
    time.sleep(duration)
    os.write(ours, b"q")
    return cpu_milliseconds(process)


def time_call(name, words):
    """Returns the code, median and maximum in milliseconds. The code is None if the driver lacks the function."""
    if not hasattr(nvml.library, name):
        return None, 0, 0
    memory = (ctypes.c_uint * 10)(40 | 2 << 24)
    # gpumem reads the field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
    field = (ctypes.c_uint * 10)(230)
    pci = ctypes.create_string_buffer(68)
    nvml.library.nvmlDeviceGetPciInfo_v3(nvml.devices[0], pci)
    values = {"device": nvml.devices[0], "memory": memory, "out": ctypes.create_string_buffer(65536)}
    values |= {"field": field, "pci": pci}
    times = []
    # Repeat slow calls, such as the PCIe counters, only a few times.
    while len(times) < 30 and sum(times) < 200:
        values["count"] = ctypes.byref(ctypes.c_uint(1024))
        arguments = [values[word] if word in values else ctypes.c_ulonglong(int(word)) for word in words]
        start = time.perf_counter()
        code = getattr(nvml.library, name)(*arguments)
        times.append((time.perf_counter() - start) * 1000)
    return code, round(statistics.median(times), 3), round(max(times), 3)


def checkpoint():
    modes = [gpu.get("persistence_mode") for gpu in snapshot()["gpus"]]
    row("persistence mode", "known; a restore needs cuInit where it is off", modes, None not in modes)
    with part("functions"):
        helper = Program("checkpoint")
        version, missing = helper.ask("facts()")
        observed = f"CUDA {version} lacks {missing}"
        row("functions", "all six from CUDA 12.8 on", observed, not missing or version < 12080)
        if missing:
            raise Skip("the driver lacks the functions")
        with recording("8-checkpoint"):
            park(helper)


def park(helper):
    size = 2 * GIB
    target = Program("torch")
    target.ask(f"take({size})")
    digest = target.ask("hash()")
    try:
        there_and_back(helper, target, size)
        after = target.ask("hash()")
        row("tensors", f"sha256 {digest}", after, after == digest)
    finally:
        # Killing a restored process has hung a host, but killing a checkpointed process is safe.
        state = helper.ask(f"state({target.pid})")
        steps = {"running": ["Lock", "Checkpoint"], "locked": ["Checkpoint"]}.get(state, [])
        done = [helper.ask(f"step('{name}', {target.pid})") for name in steps]
        target.kill()
        expected = "running, then checkpointed again and killed"
        row("at the end", expected, f"{state}, then {done}", state == "running")


def there_and_back(helper, target, size):
    listed, used, resident = nvml.listed(target.pid), nvml.used(), resident_bytes(target.pid)
    step(helper, "Lock", target.pid, "locked")
    down = step(helper, "Checkpoint", target.pid, "checkpointed")
    now, freed = nvml.listed(target.pid), used - nvml.used()
    observed = f"{mib(listed)} before, {mib(now)} now, {mib(freed)} freed; {find_row(snapshot(), target.pid)}"
    row("bytes while checkpointed", f"none, {mib(size)} or more freed", observed, not now and freed >= size)
    growth = resident_bytes(target.pid) - resident
    row("growth of host memory", f"about {mib(size)}", mib(growth), growth >= 0.9 * size)
    target.ask("thread = threading.Thread(target=work_once, daemon=True); thread.start()")
    is_back = target.ask("thread.join(3) or not thread.is_alive()")
    row("a CUDA call while checkpointed", "waits", f"returned: {is_back}", not is_back)
    # Without persistence mode, a restore requires cuInit. A context is not required, and would take memory.
    code = helper.ask("cuda.cuInit(0)")
    row("cuInit in the caller", "0", code, code == 0)
    up = step(helper, "Restore", target.pid, "locked")
    step(helper, "Unlock", target.pid, "running")
    is_back = target.ask("thread.join(20) or not thread.is_alive()")
    row("the same call after that", "returns", f"returned: {is_back}", is_back)
    now, growth = nvml.listed(target.pid), nvml.used() - used
    observed = f"{mib(listed)} before, {mib(now)} now; {growth / MIB:+.0f} MiB on the GPU"
    row("bytes after restore", "those of before", observed, abs(growth) <= 64 * MIB)
    speeds = [round(seconds / size * GIB, 2) for seconds in (down, up)]
    row("seconds per GiB to the host and back", "less than 2", speeds, max(speeds) < 2)


def step(helper, name, pid, expected):
    code, seconds, state = helper.ask(f"step('{name}', {pid})")
    observed = f"{code} in {seconds} s, then {state}"
    if not row(name, f"0, then {expected}", observed, (code, state) == (0, expected)):
        raise Skip(f"the rest needs {name}")
    return seconds


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parking():
    """Parks and restores each framework with gpumem itself."""
    start = time.monotonic()
    for kind in ("torch", "jax", "cupy"):
        with part(kind):
            # JAX would otherwise allocate most of the GPU, which host memory may not hold.
            program = Program(kind, XLA_PYTHON_CLIENT_PREALLOCATE="false")
            try:
                cycles(kind, program, start)
            finally:
                # gpumem parks a restored process again before it kills it.
                done = gpumem("kill", "--yes", str(program.pid))
                row(f"{kind}: kill", "exit 0", f"exit {done.returncode}: {done.stdout}{done.stderr}", done.returncode == 0)
    with part("notebook"):
        notebook()


def notebook():
    """A cell that runs while its notebook is parked must finish after `unpark --watch` has restored the notebook."""
    if IS_MOCK:
        raise Skip("a kernel needs a GPU")
    try:
        from jupyter_client import BlockingKernelClient
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError as error:
        raise Skip(str(error)) from error
    folder = WORK / "notebooks"
    folder.mkdir(exist_ok=True)
    command = ["-m", "jupyter_server", "--allow-root", "--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
    server = subprocess.Popen([sys.executable, *command], cwd=folder, stdin=subprocess.DEVNULL)
    runtime, pid, watcher = Path(jupyter_runtime_dir()), None, None
    try:
        wait(lambda: (runtime / f"jpserver-{server.pid}.json").exists(), 30)
        url = json.loads((runtime / f"jpserver-{server.pid}.json").read_text())["url"]
        session = {"path": "park.ipynb", "name": "park", "type": "notebook", "kernel": {"name": "python3"}}
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}api/sessions", json.dumps(session).encode(), headers)
        kernel = json.load(urllib.request.urlopen(request))["kernel"]["id"]
        client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(30)
        cell = "import os, torch; x = torch.arange(1 << 28, device='cuda'); torch.cuda.synchronize()"
        pid = int(evaluate(client, cell, "os.getpid()"))
        total = evaluate(client, "total = int(x.sum())", "total")
        time.sleep(3)
        parked = gpumem("park", "--yes", "park.ipynb")
        listed = nvml.listed(pid)
        observed = f"exit {parked.returncode}, {mib(listed)} listed: {parked.stdout}{parked.stderr}"
        if not row("notebook: park", "exit 0, nothing listed", observed, parked.returncode == 0 and not listed):
            return
        watcher = subprocess.Popen([BINARY, "unpark", "--watch"], stdin=subprocess.DEVNULL)
        begin = time.perf_counter()
        after = evaluate(client, "total = int(x.sum())", "total")
        seconds = round(time.perf_counter() - begin, 1)
        row("notebook: a cell run while parked", f"{total}", f"{after} after {seconds} s", after == total)
    finally:
        if watcher:
            watcher.terminate()
        if pid:
            done = gpumem("kill", "--yes", str(pid))
            row("notebook: kill", "exit 0", f"exit {done.returncode}: {done.stdout}", done.returncode == 0)
        server.terminate()


def evaluate(client, code, expression):
    reply = client.execute(code, user_expressions={"value": expression}, reply=True, timeout=120)
    content = reply["content"]
    if content["status"] != "ok":
        raise RuntimeError(f"{content.get('ename')}: {content.get('evalue')}")
    return content["user_expressions"]["value"]["data"]["text/plain"]


def cycles(kind, program, start):
    pid, size = str(program.pid), GIB
    program.ask(f"take({size})")
    digest, count, seconds = program.ask("hash()"), 0, []
    while count < CYCLES and time.monotonic() - start < PARK_SECONDS * (kinds_done(kind) + 1):
        # The driver still reports the work of the last second.
        time.sleep(2)
        begin = time.perf_counter()
        parked = gpumem("park", "--yes", pid)
        if parked.returncode != 0:
            raise Skip(f"not parked: {parked.stdout}{parked.stderr}")
        listed = nvml.listed(program.pid)
        middle = time.perf_counter()
        restored = gpumem("unpark", pid)
        seconds.append((round(middle - begin, 1), round(time.perf_counter() - middle, 1)))
        count += 1
        if listed or restored.returncode != 0:
            row(f"{kind}: restored", "exit 0, nothing listed while parked", f"{listed}: {restored.stdout}", False)
            return
    after = program.ask("hash()")
    row(f"{kind}: tensors after {count} cycles", f"sha256 {digest}", after, after == digest and count > 0)
    row(f"{kind}: seconds to park and restore {mib(size)}", "known", seconds[:3], bool(seconds))
    # The lock must wait for a process that allocates, or leave it running.
    program.ask("thread = threading.Thread(target=lambda: [take(1 << 20) for _ in range(200)], daemon=True); thread.start()")
    done = gpumem("park", "--yes", pid)
    restored = gpumem("unpark", pid)
    is_over = program.ask("thread.join(60) or not thread.is_alive()")
    observed = f"exit {done.returncode}, then {restored.returncode}; finished: {is_over}"
    row(f"{kind}: allocates while it is locked", "finishes, parked or not", observed, is_over)


def kinds_done(kind):
    return ("torch", "jax", "cupy").index(kind)


CHECKS = [tools, frameworks, verdicts, kills, runs, advice, cost, checkpoint, parking]

if __name__ == "__main__":
    check = next(check for check in CHECKS if check.__name__ == sys.argv[1])
    with part("the rest"):
        check()

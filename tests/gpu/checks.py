"""The checks, most valuable first. Each runs in a process of its own, which `run` kills when its time is over."""

import contextlib
import json
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable

import advice
import checkpoint
import nvml
from harness import GIB, HERE, MIB, TOKEN, Broken, Skip, mib, process_of, read_stat, row_of, seconds

# What a CUDA context takes besides what the framework has reserved.
CONTEXT = (100 * MIB, 1536 * MIB)


@dataclass
class Check:
    name: str
    # The least time in which it can tell anything, and the most that it may take, in seconds.
    least: int
    limit: int
    run: Callable


def find(name):
    return next(check for check in CHECKS if check.name == name)


def choose(only):
    if only is None:
        return CHECKS
    return [check for check in CHECKS if check.name.split()[0] in only.split(",")]


# 1 ---------------------------------------------------------------------------------------------------------


def tools(h):
    with h.part("--version"):
        done = h.gpumem("--version")
        h.row("--version", "exit 0, names the driver", done.out, done.code == 0 and "driver " in done.out)
    with h.part("doctor"):
        done = h.gpumem("doctor", "--json")
        notable = [it for it in done.json()["checks"] if it["verdict"] not in ("ok", "not-applicable")]
        broken = [it for it in notable if it["verdict"] == "broken"]
        rest = [f"{it['title']}: {it['verdict']}, {it['seen']}" for it in notable]
        h.row("doctor", "exit 0, nothing broken", "; ".join(rest), done.code == 0 and not broken)
    with h.part("ps --json"):
        done = h.gpumem("ps", "--json")
        snapshot = done.json()
        h.row("ps --json", "exit 0, no errors", snapshot["errors"], done.code == 0 and not snapshot["errors"])
        for gpu in snapshot["gpus"]:
            memory_adds_up(h, gpu, "at rest")
    with h.part("check"):
        verdict = h.gpumem("check", "--json", "--no-store", "--window", "2s")
        observed = {name: verdict.json()[name] for name in ("status", "counts", "errors")}
        passed = verdict.code in (0, 1) and not observed["errors"]
        h.row("check", "exit 0 or 1, no errors", observed, passed)
    with h.part("watch --once"):
        done = h.gpumem("watch", "--once", "--no-store", "--size", "120x40")
        lines = len(done.out.splitlines())
        h.row("watch --once", "exit 0, 40 lines", f"exit {done.code}, {lines} lines", done.code == 0 and lines == 40)
    with h.part("record"):
        file = str(h.work / "record.jsonl")
        done = h.gpumem("record", file, "--interval", "500ms", "--duration", "2s")
        lines = [json.loads(line) for line in open(file)]
        errors = [error for line in lines for error in line["errors"]]
        replayed = h.gpumem("ps", "--json", "--replay", file)
        observed = f"{len(lines)} snapshots, errors {errors}; replay ends with {replayed.code}"
        passed = done.code == replayed.code == 0 and len(lines) >= 3 and not errors
        h.row("record", "snapshots without errors, which replay", observed, passed)
    with h.part("fields"), h.recording("1-tools"):
        program = h.start("plain")
        program.ask("take", 512 * MIB)
        program.ask("begin")
        h.require_listed(program.pid)
        snapshot = h.snapshot()
        memory_adds_up(h, snapshot["gpus"][0], "in use")
        compare_fields(h, snapshot)


def memory_adds_up(h, gpu, when):
    memory, index = gpu.get("memory") or {}, gpu["index"]
    name = f"GPU {index} {when}: memory adds up"
    parts = [memory.get(f"{name}_bytes") for name in ("reserved", "used", "free")]
    total = memory.get("total_bytes")
    if total is None or None in parts:
        h.skip(name, f"{memory or gpu.get('memory_unavailable')}")
        return
    own = h.nvml.memory(h.nvml.devices[index])
    listed = sum(row.get("used_bytes") or 0 for row in gpu.get("processes") or [])
    sizes = ", ".join(map(mib, parts))
    observed = f"total {mib(total)}; reserved, used, free {sizes}; listed {mib(listed)}; NVML's total {mib(own.total)}"
    passed = abs(total - sum(parts)) <= 4 * MIB and own.total == total and listed <= parts[1] + MIB
    expected = "total = reserved + used + free, as NVML has it by itself; used covers what is listed"
    h.row(name, expected, observed, passed and gpu["uuid"].startswith("GPU-"))


def field_paths(value, path=""):
    if isinstance(value, dict):
        return {found for name, child in value.items() for found in field_paths(child, f"{path}.{name}")}
    if isinstance(value, list):
        return {found for child in value for found in field_paths(child, f"{path}[]")}
    return set() if value is None else {path}


def compare_fields(h, snapshot):
    """What the driver supplies and the mock does not, and the other way round."""
    seen = field_paths({name: snapshot[name] for name in ("driver", "gpus")})
    path = HERE / "fields.txt"
    if os.environ.get("GPUMEM_BLESS") and h.is_mock:
        path.write_text("\n".join(sorted(seen)) + "\n")
    known = set(path.read_text().split())
    observed = f"only here: {sorted(seen - known)}; only on the mock: {sorted(known - seen)}"
    # A real driver that differs is a reason to correct the mock, and no failure.
    h.row("fields of a snapshot", "those of the mock driver", observed, seen == known if h.is_mock else True)


# 2 ---------------------------------------------------------------------------------------------------------


def frameworks(h):
    with h.recording("2-frameworks"):
        for kind, name, work in (("torch", "pytorch", 6), ("jax", "jax", 3), ("cupy", "cupy", 3)):
            with h.part(kind):
                framework(h, kind, name, 0 if h.is_mock else work)


def framework(h, kind, name, work):
    before = h.used()
    program = h.start(kind)
    program.ask("take", 2 * GIB)
    facts = program.ask("facts")
    pid = program.pid
    with h.part(f"{kind}: bytes on the GPU"):
        bytes_on_the_gpu(h, kind, facts, h.used() - before)
    with h.part(f"{kind}: listed by its pid"):
        h.require_listed(pid)
        snapshot = h.snapshot()
        row, process = row_of(snapshot, pid), process_of(snapshot, pid)
        h.row(f"{kind}: listed by its pid", "a row with its bytes", row, row is not None and row["used_bytes"] > 0)
        used, own = row["used_bytes"], h.listed(pid)
        observed = f"gpumem {mib(used)}, NVML {mib(own)}"
        h.row(f"{kind}: used bytes", "as NVML has them by itself", observed, abs(used - own) <= 16 * MIB)
        if facts.get("reserved"):
            context = used - facts["reserved"]
            observed = f"{mib(used)} used, {mib(facts['reserved'])} reserved: {mib(context)} more; {facts}"
            passed = CONTEXT[0] <= context <= CONTEXT[1]
            h.row(f"{kind}: reserved and a context", "100 to 1536 MiB more than reserved", observed, passed)
        found = process.get("framework")
        h.row(f"{kind}: framework", name, found, found == name)
        files = process.get("gpu_files")
        h.row(f"{kind}: device files", "/dev/nvidiactl and others", files, "/dev/nvidiactl" in (files or []))
        sm_over_time(h, kind, program, work)
    program.finish()
    gone = h.wait(lambda: h.listed(pid) is None, 5)
    free = h.wait_free(before, 5)
    left = [pid for gpu in h.snapshot()["gpus"] for row in gpu.get("processes") or [] if row["pid"] == pid]
    observed = f"off NVML's list after {seconds(gone)}, memory free after {seconds(free)}; gpumem lists {left}"
    h.row(f"{kind}: exited", "no row and no memory left", observed, None not in (gone, free) and not left)


def bytes_on_the_gpu(h, kind, facts, change):
    reserved = facts.get("reserved") or 2 * GIB
    if facts.get("share"):
        total = sum(h.nvml.memory(device).total for device in h.nvml.devices[:1])
        share = change / total
        passed = facts["share"] - 0.05 <= share <= facts["share"] + 0.1
        h.row(f"{kind}: bytes on the GPU", f"{facts['share']:.0%} of it", f"{mib(change)}, {share:.1%}", passed)
        return
    h.row(f"{kind}: bytes on the GPU", f"at least {mib(reserved)}", mib(change), change >= reserved)


def sm_over_time(h, kind, program, work):
    """SM utilization for some seconds of work, and until it is 0 again: the driver remembers ten seconds."""
    busy, quiet = [], []

    def sample(percents):
        percents.append((row_of(h.snapshot(), program.pid) or {}).get("sm_percent"))
        return percents[-1]

    program.ask("begin")
    begun = time.monotonic()
    # The first operation may be compiled for seconds.
    is_seen = h.wait(lambda: (sample(busy) or 0) >= 30 and time.monotonic() - begun >= work, work + 15)
    program.ask("rest")
    h.row(f"{kind}: SM utilization at work", "30 % or more", busy, is_seen is not None)
    # Once is enough of this wait.
    if kind == "torch":
        rested = h.wait(lambda: sample(quiet) == 0, 2 * h.memory_seconds + 5)
        h.row(f"{kind}: SM utilization at rest", "0", f"{quiet} in {seconds(rested)}", rested is not None)


# 3 ---------------------------------------------------------------------------------------------------------

RULES = """
[rules.idle]
min_memory = "256MiB"
duration = "{0}s"
[rules.stopped]
duration = "{0}s"
[rules.orphan]
duration = "{0}s"
[rules.dead]
duration = "{0}s"
"""


def verdicts(h):
    config = h.config("rules", RULES.format(h.rule_seconds))
    with h.recording("3-verdicts"):
        programs = {name: h.start("plain") for name in ("idle", "stopped", "trainer", "parent", "cpu")}
        for program in programs.values():
            program.ask("take", 1280 * MIB)
        idle, stopped, trainer, parent, cpu = programs.values()
        h.require_listed(idle.pid)
        worker = trainer.ask("fork")["pid"]
        parent.ask("fork")
        trainer.kill()
        # It stays defunct: nobody waits for it.
        parent.signal(signal.SIGKILL)
        stopped.signal(signal.SIGSTOP)
        cpu.tell("burn", 120)
        time.sleep(h.memory_seconds)
        verdict = judge(h, config)
        expect(h, verdict, "idle", idle.pid, {"idle"})
        expect(h, verdict, "stopped by SIGSTOP", stopped.pid, {"stopped"})
        is_host = h.snapshot()["host"].get("pid_namespace") == "host"
        if is_host:
            expect(h, verdict, "worker of a dead trainer", worker, {"orphan"})
            expect(h, verdict, "dead trainer", trainer.pid, {"dead"})
        else:
            reason = f"these pids are not the host's; seen {kinds(verdict, worker)}, {verdict['undecided']}"
            h.skip("worker of a dead trainer", reason)
        expect(h, verdict, "zombie parent", parent.pid, {"dead"})
        expect(h, verdict, "works on the CPU only", cpu.pid, set())
        for program in (idle, stopped, cpu):
            program.kill()
        os.killpg(trainer.pid, signal.SIGKILL)
        os.killpg(parent.pid, signal.SIGKILL)
        parent.process.wait(20)
        with h.part("only copies memory"):
            copying = h.start("plain")
            copying.ask("take", 1280 * MIB)
            copying.tell("copy", 60)
            verdict = judge(h, config)
            expect(h, verdict, "only copies memory", copying.pid, set(), row_of(h.snapshot(), copying.pid))
            copying.kill()
        with h.part("uses the encoder"):
            codec(h, config)


def judge(h, config):
    window = ["--window", f"{2 * h.rule_seconds + 1}s", "--interval", "250ms"]
    return h.gpumem("check", "--json", "--no-store", *window, config=config).json()


def kinds(verdict, pid):
    found = [it for it in verdict["findings"] if (it.get("process") or {}).get("pid") == pid]
    return {it["kind"] for it in found if it["resolved_at"] is None}


def expect(h, verdict, case, pid, expected, more=None):
    found = kinds(verdict, pid)
    undecided = [f"undecided {it['rule']}: {it['reason']}" for it in verdict["undecided"] if it["pid"] == pid]
    observed = "; ".join([", ".join(sorted(found)) or "no finding", *undecided, *([str(more)] if more else [])])
    h.row(case, ", ".join(expected) or "no finding", observed, found == expected)


def codec(h, config):
    """NVENC through ffmpeg, which is the only program that may be there to drive it."""
    if h.is_mock:
        raise Skip("the mock driver has no encoder")
    source = ["-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=60"]
    command = ["ffmpeg", "-loglevel", "error", "-re", *source, "-c:v", "h264_nvenc", "-f", "null", "-"]
    try:
        encoder = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=h.log, stderr=subprocess.PIPE, process_group=0
        )
    except FileNotFoundError:
        raise Skip("ffmpeg is not installed") from None
    h.register(encoder.pid)
    time.sleep(3)
    if encoder.poll() is not None:
        raise Skip(f"ffmpeg cannot encode here: {encoder.stderr.read().decode(errors='replace')[-300:]}")
    h.require_listed(encoder.pid)
    verdict = judge(h, config)
    row = row_of(h.snapshot(), encoder.pid) or {}
    expect(h, verdict, "uses the encoder", encoder.pid, set(), row)
    percent = row.get("encoder_percent")
    h.row("encoder utilization", "more than 0", row, bool(percent))
    encoder.kill()


# 4 ---------------------------------------------------------------------------------------------------------


class Ending(threading.Thread):
    """Watches a process and what NVML lists of it, every few milliseconds."""

    def __init__(self, h, pid, before):
        super().__init__(daemon=True)
        self.h, self.pid, self.before, self.samples, self.done = h, pid, before, [], False
        self.nvml = nvml.Nvml()
        self.start()

    def run(self):
        while not self.done:
            stat = read_stat(self.pid)
            rows = [self.nvml.processes(device).get(self.pid) for device in self.nvml.devices]
            used = sum(self.nvml.memory(device).used for device in self.nvml.devices)
            listed = next((row for row in rows if row is not None), None)
            state = stat[0] if stat else "gone"
            self.samples.append((time.monotonic(), state, listed, used <= self.before + 64 * MIB))
            time.sleep(0.005)

    def words(self):
        """When it ended, when NVML dropped it, when its memory was free, and what was listed meanwhile."""
        self.done = True
        self.join(5)
        ended = next((at for at, state, _, _ in self.samples if state in ("Z", "X", "gone")), None)
        if ended is None:
            return "it has not ended"
        after = [sample for sample in self.samples if sample[0] >= ended]
        unlisted = next((at for at, _, listed, _ in after if listed is None), None)
        free = next((at for at, _, _, is_free in after if is_free), None)
        between = sorted({f"{state}: {listed}" for at, state, listed, _ in after if listed is not None})

        def delay(at):
            return "never" if at is None else f"{(at - ended) * 1000:.0f} ms"

        times = f"off NVML's list {delay(unlisted)}, memory free {delay(free)}"
        return f"after its end: {times}; listed meanwhile {between}"


def kills(h):
    with h.recording("4-kills"):
        with h.part("kill"):
            before, program = holder(h)
            kill = ["kill", "--yes", "--grace", "5s", program.pid]
            try:
                h.require_listed(program.pid)
            except Skip as reason:
                done = h.gpumem(*kill)
                words = (done.out + done.err).strip()[-300:]
                free = h.wait_free(before, 5)
                raise Skip(f"{reason}; kill: exit {done.code}, {words}; memory free after {seconds(free)}") from None
            ending = Ending(h, program.pid, before)
            done = h.gpumem(*kill)
            passed = done.code == 0 and "freed" in done.out
            ended(h, "kill", "exit 0, freed", program, before, ending, done, passed)
        with h.part("reap --pid, SIGTERM ignored"):
            before, program = holder(h)
            h.require_listed(program.pid)
            program.ask("ignore")
            ending = Ending(h, program.pid, before)
            done = h.gpumem("reap", "--pid", program.pid, "--yes", "--json", "--grace", "1s")
            outcome = [target["outcome"] for target in done.json()["targets"]]
            passed = done.code == 0 and len(outcome) == 1 and outcome[0]["outcome"] == "freed"
            passed = passed and outcome[0]["bytes"] >= 512 * MIB
            words = "exit 0, freed by SIGKILL"
            ended(h, "reap --pid, SIGTERM ignored", words, program, before, ending, done, passed, outcome)
        with h.part("reap what a rule finds"):
            reap_by_rule(h)


def holder(h):
    before = h.used()
    program = h.start("plain")
    program.ask("take", 512 * MIB)
    return before, program


def ended(h, check, expected, program, before, ending, done, passed, more=None):
    free = h.wait_free(before, 5)
    words = ending.words()
    program.process.poll()
    state = read_stat(program.pid)
    sent = [line.strip() for line in done.err.splitlines() if "SIG" in line]
    output = more or done.out.strip().splitlines()[-1:] or done.err.strip()[-300:]
    observed = f"exit {done.code}, {output}, {sent}; {words}"
    h.row(check, expected, observed, passed and free is not None and state is None)


def reap_by_rule(h):
    config = h.config("rules", RULES.format(h.rule_seconds))
    before, program = holder(h)
    h.require_listed(program.pid)
    time.sleep(h.memory_seconds)
    window = f"{h.rule_seconds + 2}s"
    ending = Ending(h, program.pid, before)
    arguments = ["reap", "--yes", "--json", "--no-store", "--kind", "idle", "--window", window, "--where", TOKEN]
    done = h.gpumem(*arguments, config=config)
    document = done.json()
    if h.snapshot()["host"].get("pid_namespace") == "host":
        outcome = [target["outcome"] for target in document["targets"]]
        passed = [it and it["outcome"] for it in outcome] == ["freed"]
        ended(h, "reap what a rule finds", "freed", program, before, ending, done, passed, outcome)
        return
    ending.words()
    refused = [it["why"] for it in document["refused"]]
    alive = program.process.poll() is None
    passed = alive and not document["targets"]
    h.row("reap what a rule finds", "refused: these pids are not the host's", refused, passed)
    program.kill()


# 5 ---------------------------------------------------------------------------------------------------------


def runs(h):
    kind = "torch"
    try:
        program = h.start(kind)
    except Skip as reason:
        h.skip("torch", reason)
        kind = "plain"
        program = h.start(kind)
    h.require_listed(program.pid)
    program.ask("take", GIB)
    with h.part("out of memory"):
        total = max(h.nvml.memory(device).total for device in h.nvml.devices)
        # With a limit NVML is open before the command is started.
        done, report = run(h, kind, ["--max-peak", "100%"], ["take 1048576", "work 3", f"take {total}"])
        others = [it["process"]["pid"] for gpu in report.get("least_free") or [] for it in gpu["others"]]
        said = [line for line in done.err.splitlines() if "out of memory" in line.lower().replace("_", " ")]
        observed = f"exit {done.code}, held by {others}, another is {program.pid}; {said[-1:]}"
        passed = done.code == 1 and bool(said) and program.pid in others
        h.row("out of memory", "exit 1, the report names who else held memory", observed, passed)
    program.finish()
    with h.part("--max-peak above the peak"):
        done, report = run(h, kind, ["--max-peak", "95%", "--fail-on", "held"], ["take 1073741824", "work 3", "facts"])
        facts = json.loads(done.out.strip().splitlines()[-1])
        peak = max((gpu.get("peak_bytes") or 0 for gpu in report["gpus"]), default=0)
        observed = f"exit {done.code}, peak {mib(peak)}, in the program {mib(facts['peak'])}; {report['assertions']}"
        passed = done.code == 0 and facts["peak"] <= peak <= facts["reserved"] + CONTEXT[1]
        h.row("--max-peak above the peak", "exit 0, the program's peak and a context", observed, passed)
    with h.part("--max-peak below the peak"):
        done, report = run(h, "plain", ["--max-peak", "600MiB"], ["take 1073741824", "work 3"])
        observed = f"exit {done.code}, {report['assertions']}"
        h.row("--max-peak below the peak", "exit 1", observed, done.code == 1)
    with h.part("--fail-on held"):
        held(h, "--fail-on held", ["detach 536870912"])
    if not h.is_mock:
        # gpumem looks for descendants that NVML lists; what a driver lists of this one is the question.
        with h.part("--fail-on held, inherited"):
            held(h, "--fail-on held, inherited", ["take 536870912", "work 1", "fork", "vanish"])


def held(h, check, commands):
    done, report = run(h, "plain", ["--fail-on", "held"], commands)
    left = json.loads(done.out.strip().splitlines()[-1])["pid"]
    h.register(left)
    named = [it["process"]["pid"] for it in report["held"] or []]
    rows = [h.nvml.processes(device) for device in h.nvml.devices]
    observed = f"exit {done.code}, {left} is left, named {named}; NVML lists {rows}"
    h.row(check, "exit 1, names the process that is left", observed, done.code == 1 and left in named)
    os.kill(left, signal.SIGKILL)


def run(h, kind, options, commands):
    file = str(h.work / "run.json")
    program = [sys.executable, "-u", "-B", str(HERE / "programs.py"), TOKEN, kind, *commands]
    done = h.gpumem("run", *options, "--report", file, "--", *program, limit=60)
    return done, json.load(open(file))


# 7 ---------------------------------------------------------------------------------------------------------


def cost(h):
    program = h.start("plain")
    program.ask("take", 512 * MIB)
    with h.part("ps --json"):
        h.gpumem("ps", "--json", "--no-store")
        command = [h.binary, "--config", "/dev/null", "ps", "--json", "--no-store"]
        milliseconds = statistics.median(cpu_seconds(command) for _ in range(5)) * 1000
        h.row("CPU time of ps --json", "at most 1000 ms", f"{milliseconds:.0f} ms", milliseconds <= 1000)
    with h.part("watch"):
        short, long = watch_cpu_seconds(h, 1), watch_cpu_seconds(h, 4)
        milliseconds = (long - short) / 15 * 1000
        h.row("CPU time of a watch sample", "at most 20 ms", f"{milliseconds:.1f} ms", milliseconds <= 20)
    with h.part("NVML calls"):
        nvml_calls(h)


def nvml_calls(h):
    """Milliseconds of each call, in the middle and at most, and its code unless it is 0."""
    seen, bad = [], []
    for name in nvml.CALLS:
        timed = h.nvml.time_call(name)
        code, median, longest = timed or ("missing", 0, 0)
        seen.append(f"{name.removeprefix('nvml')} {median:.3f} {longest:.3f}" + (f" ({code})" if code else ""))
        # Uninitialized, invalid argument, unknown error.
        if median > 100 or code in (1, 2, 999):
            bad.append(name)
    h.row("NVML calls", "each answers within 100 ms", f"bad: {bad}; ms: {', '.join(seen)}", not bad)


def cpu_seconds(command, **options):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def watch_cpu_seconds(h, duration):
    """What `watch` uses on a terminal, sampling five times a second."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="40")
        arguments = ["--config", "/dev/null", "watch", "--no-store", "--interval", "200ms"]
        os.execv(h.binary, [h.binary, *arguments])
    h.register(pid)
    end, left = time.monotonic() + duration, True
    while left and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                left = bool(os.read(terminal, 65536))
    os.write(terminal, b"q")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                os.read(terminal, 65536)
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            if status != 0:
                raise Broken(f"watch ended with status {status}")
            return usage.ru_utime + usage.ru_stime
    raise Broken("watch did not quit within 10 s")


CHECKS = [
    Check("1 tools", 20, 80, tools),
    Check("2 frameworks", 40, 150, frameworks),
    Check("3 verdicts", 40, 120, verdicts),
    Check("4 kills", 30, 90, kills),
    Check("5 run", 30, 100, runs),
    Check("6 advice", 20, 160, advice.measure),
    Check("7 cost", 20, 50, cost),
    Check("8 checkpoint", 50, 110, checkpoint.check),
]

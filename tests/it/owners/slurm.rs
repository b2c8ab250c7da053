//! Slurm on one node: a job array, a step, processes that outlive a job, and the scripts of `packaging/slurm`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use mock_nvml::scene::{Fault, Gpu, Process, Scene};
use serde_json::Value;

use super::{advised_command, process_and_step, require_root, wait_for_pid};
use crate::machine::{Machine, Running, one_gpu};
use crate::procs::lives;
use crate::support::{self, wait_until};

/// Slurm's daemons and their directory. On drop, the daemons and their jobs are ended.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Running>,
}

impl Cluster {
    /// Starts Slurm. `more` writes gres.conf and returns more lines for slurm.conf. If Slurm cannot start, prints the
    /// reason and returns `None`.
    fn start(more: impl Fn(&Path) -> String) -> Option<Self> {
        require_root()?;
        let munged = support::find("munged", "munge")?;
        let controller = support::find("slurmctld", "slurm-wlm")?;
        let daemon = support::find("slurmd", "slurm-wlm")?;
        support::find("sbatch", "slurm-wlm")?;
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        let path = |name: &str| cluster.path(name).to_str().unwrap().to_owned();
        // munged fails if other users can access the socket or the key.
        fs::set_permissions(cluster.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path("key"), [7; 1024]).unwrap();
        fs::set_permissions(path("key"), fs::Permissions::from_mode(0o400)).unwrap();
        for name in ["state", "spool"] {
            fs::create_dir(path(name)).unwrap();
        }
        let folder = cluster.folder.path();
        fs::write(path("slurm.conf"), configuration(folder) + &more(folder)).unwrap();
        // Slurm allocates GPUs whose device files are links to /dev/null.
        for name in ["nvidia0", "nvidia1"] {
            std::os::unix::fs::symlink("/dev/null", path(name)).unwrap();
        }
        let mut munge = Command::new(munged);
        munge.args(["--force", "--foreground"]);
        for (option, name) in [
            ("key-file", "key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            munge.arg(format!("--{option}={}", path(name)));
        }
        let socket = cluster.path("munge.socket");
        cluster.daemons.push(Running::start(&mut munge));
        wait_until("munge listens", || socket.exists());
        for program in [controller, daemon] {
            let mut command = cluster.command(program.to_str().unwrap());
            cluster.daemons.push(Running::start(command.arg("-D")));
        }
        wait_until("the node is idle", || cluster.output_of("sinfo -h -o %T") == "idle");
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command.current_dir(self.folder.path());
        command
    }

    fn output_of(&self, line: &str) -> String {
        let output = self.command("sh").args(["-c", line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Submits a job, and returns the job id.
    fn submit(&self, options: &str, script: &str) -> String {
        fs::write(self.path("job.sh"), format!("#!/bin/sh\n{script}\n")).unwrap();
        let line = format!("sbatch --parsable -n1 -o /dev/null {options} job.sh");
        let job = self.output_of(&line);
        assert!(job.parse::<u32>().is_ok(), "{job:?}");
        job
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.output_of("scancel -u root");
        // slurmstepd ends the processes of a job only while the controller runs.
        for _ in 0..200 {
            if self.output_of("squeue -h").is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.0.kill();
            let _ = daemon.0.wait();
        }
    }
}

/// How Slurm numbers the GPUs of the node.
#[derive(Clone, Copy, PartialEq, Debug)]
enum GpuNumbers {
    /// In the order of their device files.
    Files,
    /// As with `AutoDetect=nvml`: in the order of NVML's indices, in which nvidia1 is the first.
    Nvml,
    /// As with `AutoDetect=nvml` since Slurm 25.11, which also provides UUIDs.
    Uuids,
}

/// UUIDs of the GPUs by NVML's index.
const UUIDS: [&str; 2] = ["GPU-5a0000aa-0001", "GPU-5a0000bb-0002"];

/// Writes gres.conf. Slurm's own stand-in for the driver, `fake_gpus.conf`, describes the GPUs that Slurm detects.
fn write_gres(folder: &Path, numbers: GpuNumbers) {
    let file = |number: usize| folder.join(format!("nvidia{number}")).display().to_string();
    if numbers == GpuNumbers::Files {
        let files = format!("Name=gpu File={},{}\n", file(0), file(1));
        return fs::write(folder.join("gres.conf"), files).unwrap();
    }
    fs::write(folder.join("gres.conf"), "AutoDetect=nvml\nName=gpu\n").unwrap();
    let gpu = |(links, number): (&str, usize)| {
        let line = format!("h200|8|0-7|{links}|{}", file(number));
        match numbers {
            GpuNumbers::Uuids => format!("{line}|{}|nvidia_gpu_env\n", UUIDS[1 - number]),
            _ => line + "\n",
        }
    };
    let detected: String = [("0,-1", 0), ("-1,0", 1)].map(gpu).concat();
    fs::write(folder.join("fake_gpus.conf"), detected).unwrap();
}

/// A requeued job starts again when its credential has expired, after `cred_expire` seconds.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = host.split('.').next().unwrap();
    format!(
        "ClusterName=test\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={folder}/munge.socket,cred_expire=10\n\
         CredType=cred/munge\n\
         StateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool\n\
         SlurmctldPidFile={folder}/slurmctld.pid\n\
         SlurmdPidFile={folder}/slurmd.pid\n\
         SlurmctldLogFile={folder}/slurmctld.log\n\
         SlurmdLogFile={folder}/slurmd.log\n\
         SlurmctldPort={}\n\
         SlurmdPort={}\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         MpiDefault=none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         SlurmdParameters=config_overrides\n\
         ReturnToService=2\n\
         KillWait=1\n\
         GresTypes=gpu\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:2 State=UNKNOWN\n\
         PartitionName=all Nodes={host} Default=YES State=UP\n",
        support::free_port(),
        support::free_port()
    )
}

/// Returns whether the test runs in the host's pid namespace. Elsewhere, the daemons of a job are not visible.
fn is_host(process: &Value) -> bool {
    let link = fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(process["pid"].is_u64());
    link.to_str() == Some("pid:[4026531836]")
}

#[test]
fn scancel_ends_only_its_target_and_leftovers_are_signalled() {
    let cluster = or_skip!(Cluster::start(|folder| {
        write_gres(folder, GpuNumbers::Files);
        String::new()
    }));
    // Start three tasks. Slurm gives one of them the job id of the whole array.
    let array = cluster.submit("--array=3-5", "echo $$ >pid.$SLURM_ARRAY_TASK_ID; exec sleep 600");
    let tasks = ["3", "4", "5"].map(|task| wait_for_pid(&cluster.path(&format!("pid.{task}"))));
    let mut last = None;
    for (task, pid) in ["3", "4", "5"].into_iter().zip(tasks) {
        let (process, step) = process_and_step(pid);
        let slurm = &process["slurm"];
        assert_eq!(slurm["array_job_id"], *array, "{process}");
        assert_eq!(slurm["array_task_id"], task, "{process}");
        assert_eq!((&slurm["step_id"], &slurm["over"]), (&"batch".into(), &false.into()));
        // `scancel ARRAY` would end the whole array, so gpumem must advise `scancel ARRAY_TASK` for the last task.
        let is_last = slurm["job_id"] == *array;
        let job = slurm["job_id"].as_str().unwrap();
        let target = if is_last { format!("{array}_{task}") } else { job.to_owned() };
        assert_eq!(advised_command(&step), format!("scancel {target}"));
        if is_last {
            last = Some((pid, advised_command(&step).to_owned()));
        }
    }
    let (last, command_of_last) = last.unwrap();
    cluster.output_of(&command_of_last);
    wait_until("the last task has ended", || !lives(last));
    for pid in tasks.into_iter().filter(|&pid| pid != last) {
        assert!(lives(pid), "another task, {pid}, was ended");
    }

    // The script of this job continues after the step.
    let job = cluster.submit(
        "",
        "echo $$ >pid.script\nsrun -n1 sh -c 'echo $$ >pid.step; exec sleep 600'\nexec sleep 600",
    );
    let (script, step) =
        (wait_for_pid(&cluster.path("pid.script")), wait_for_pid(&cluster.path("pid.step")));
    let (process, plan) = process_and_step(step);
    assert_eq!(process["slurm"]["job_id"], *job, "{process}");
    assert_eq!(advised_command(&plan), format!("scancel {job}.0"));
    cluster.output_of(advised_command(&plan));
    wait_until("the step has ended", || !lives(step));
    assert!(lives(script));

    // The job has a GPU, but does not use it yet.
    let given = cluster.submit("--gres=gpu:1", "echo $$ >pid.given; exec sleep 600");
    wait_for_pid(&cluster.path("pid.given"));
    let machine = Machine::new(&one_gpu(&[]));
    let mut snapshot = machine.snapshot(0);
    if snapshot.0["host"]["pid_namespace"] == "host" {
        let mut reservation = Value::Null;
        wait_until("the reservation is listed", || {
            snapshot = machine.snapshot(0);
            let all = snapshot.0["reservations"].as_array().into_iter().flatten();
            let mut of_job = all.filter(|reservation| reservation["slurm"]["job_id"] == *given);
            reservation = of_job.next().cloned().unwrap_or_default();
            !reservation.is_null()
        });
        assert_eq!(reservation["variable"], "SLURM_JOB_GPUS", "{reservation}");
        assert_eq!(reservation["devices"], serde_json::json!(["0"]));
    }

    // A process outside the job has a copy of the job's environment.
    let mut copy = Command::new("sleep");
    copy.arg("600").env("SLURM_JOB_ID", &job).env("SLURMD_NODENAME", "x");
    let copy = Running::start(&mut copy);
    let (process, plan) = process_and_step(copy.pid());
    assert_eq!(process["slurm"], Value::Null, "{process}");
    assert_eq!(plan["step"], "signal", "{plan}");

    // A process that outlives its job is signalled.
    let job = cluster.submit(
        "",
        "setsid sh -c 'echo $$ >pid.left; exec sleep 600' &\nwhile [ ! -s pid.left ]; do sleep 0.1; done",
    );
    let left = wait_for_pid(&cluster.path("pid.left"));
    wait_until("the job is over", || {
        cluster.output_of(&format!("squeue -h -t R,CG -j {job} 2>&1")).is_empty()
    });
    assert!(lives(left), "Slurm ended the process");
    let mut latest = (Value::Null, Value::Null);
    wait_until("the job's daemon has ended", || {
        latest = process_and_step(left);
        // The first sample can lack ancestors of the process, and the job is then unknown.
        let is_recognised = !is_host(&latest.0) || latest.0["slurm"]["over"] == true;
        is_recognised && latest.1["step"] == "signal"
    });
    let (process, _) = latest;
    if is_host(&process) {
        assert_eq!(process["slurm"]["job_id"], *job, "{process}");
        assert_eq!(process["slurm"]["over"], true, "{process}");
    } else {
        assert_eq!(process["slurm"], Value::Null, "{process}");
    }
    crate::procs::send(left, rustix::process::Signal::KILL);
}

/// The account "daemon", which exists on every Linux system.
const DAEMON: u32 = 1;

/// Installs the packaged scripts with a gpumem that uses the mock driver. Returns their lines for slurm.conf.
fn install_scripts(folder: &Path, numbers: GpuNumbers) -> String {
    let gpumem = folder.join("gpumem");
    let wrapper = format!(
        "#!/bin/sh\nexport GPUMEM_MOCK_SCENE={0}/scene.json STATE_DIRECTORY={0}/state HOME={0}\n\
         {1} \"$@\" --nvml-library {2}; code=$?\n\
         # Wait until the test has freed the memory in the scene.\n\
         while [ \"$1\" = kill ] && [ -e {0}/out/go ] && [ ! -e {0}/out/freed ]; do sleep 0.1; done\n\
         exit $code\n",
        folder.display(),
        env!("CARGO_BIN_EXE_gpumem"),
        mock_nvml::library().display(),
    );
    support::write_program(&gpumem, &wrapper);
    let mut lines = String::new();
    for (name, setting) in [("prolog.sh", "Prolog"), ("epilog.sh", "Epilog")] {
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm").join(name);
        let script = fs::read_to_string(packaged).unwrap();
        let path = gpumem.display().to_string();
        let script = script.replace("/usr/bin/gpumem", &path).replace("seconds=30", "seconds=3");
        assert!(script.contains(&path), "{script}");
        let installed = folder.join(name);
        support::write_program(&installed, &script);
        lines += &format!("{setting}={}\n", installed.display());
    }
    let out = folder.join("out");
    fs::create_dir(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
    write_gres(folder, numbers);
    lines + "PrologFlags=Alloc\n"
}

/// Two GPUs whose minor numbers are in the reverse order. Each process holds 8 GiB on its GPU.
fn scene(gpus: [&[u32]; 2]) -> Scene {
    let gpu = |index: usize| {
        let minor_number = Some(1 - index as u32);
        let gpu = Gpu { uuid: Some(UUIDS[index].into()), minor_number, ..Gpu::default() };
        gpus[index].iter().map(|&pid| Process::compute(pid, 8_u64 << 30)).fold(gpu, Gpu::process)
    };
    Scene::new().gpu(gpu(0)).gpu(gpu(1))
}

/// Runs jobs with the packaged scripts on the first GPU in Slurm's list, whose NVML index is `index`. With
/// [`GpuNumbers::Files`], a job is also submitted while the GPU is unreadable, and restarted while the GPU is in use.
fn jobs_start_on_free_gpus_and_leave_them_free(numbers: GpuNumbers, index: usize) {
    let cluster = or_skip!(Cluster::start(|folder| install_scripts(folder, numbers)));
    let folder = cluster.folder.path();
    let sleeper = |uid: u32| {
        let mut sleep = Command::new("sleep");
        Running::start(std::os::unix::process::CommandExt::uid(sleep.arg("600"), uid))
    };
    // Another user's process, and a process of the job's user on the GPU outside the job.
    let (stranger, elsewhere) = (sleeper(0), sleeper(DAEMON));
    let scene = |on_gpu: &[u32]| match index {
        0 => scene([on_gpu, &[elsewhere.pid()]]),
        _ => scene([&[elsewhere.pid()], on_gpu]),
    };
    let play = |scene: &Scene| {
        scene.write(&folder.join("scene.new")).unwrap();
        fs::rename(folder.join("scene.new"), folder.join("scene.json")).unwrap();
    };
    let ask = |line: &str| cluster.output_of(line);
    let host = ask("sinfo -h -o %n");
    let wait_for_drain = |reason: &str| {
        let reason = format!("Reason=gpumem: {reason}");
        wait_until(&format!("the node drains, {reason}"), || {
            let node = ask("scontrol show node");
            node.contains("DRAIN") && node.contains(&reason)
        });
        assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    };
    let in_use = format!("limit: GPU {index}: 8.0 GiB in use");
    // Leaves three processes, of which two ignore SIGTERM.
    let leave = "for n in 1 2 3; do\n\
                 setsid sh -c '[ $1 = 1 ] || trap \"\" TERM; echo $$ >out/left.$1; exec sleep 600' - $n &\n\
                 done\n\
                 while [ ! -e out/go ]; do sleep 0.1; done";
    let job = || cluster.submit(&format!("--gres=gpu:1 --uid={DAEMON}"), leave);
    let restart = |job: &str| {
        let queue = || ask(&format!("squeue -h -j {job} -o '%T %r'"));
        wait_until("the job is requeued", || queue().starts_with("PENDING"));
        assert!(queue().contains("launch failed requeued held"), "{}", queue());
        ask(&format!("scontrol update nodename={host} state=resume"));
        wait_until("the node is idle", || ask("sinfo -h -o %T") == "idle");
        ask(&format!("scontrol release {job}"));
    };
    let wait_for_leftovers =
        || [1, 2, 3].map(|number| wait_for_pid(&folder.join(format!("out/left.{number}"))));

    if numbers == GpuNumbers::Files {
        // At first, the GPU cannot be read. Then another user's process uses it.
        let failing = ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"];
        let fault = |scene: Scene, name| scene.fault(Fault::error(name, 999).on(index as u32));
        play(&failing.into_iter().fold(scene(&[]), fault));
        let first = job();
        wait_for_drain("could not measure everything: ");
        play(&scene(&[stranger.pid()]));
        restart(&first);
        wait_for_drain(&in_use);
        play(&scene(&[]));
        restart(&first);
    } else {
        play(&scene(&[]));
        job();
    }
    // The GPU is free: the job runs, and the processes it leaves behind are killed, all at the same time.
    let left = wait_for_leftovers();
    play(&scene(&left));
    fs::write(folder.join("out/go"), "").unwrap();
    wait_until("the leftover processes have ended", || !left.into_iter().any(lives));
    play(&scene(&[]));
    fs::write(folder.join("out/freed"), "").unwrap();
    wait_until("the node is idle", || ask("sinfo -h -o %T") == "idle");
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    let ledger = fs::read_to_string(folder.join("state/reap.jsonl")).unwrap();
    let sent = |signal: &str| -> Vec<usize> {
        let lines = ledger.lines().enumerate();
        let sent = lines.filter(|(_, line)| line.contains("intended") && line.contains(signal));
        sent.map(|(at, _)| at).collect()
    };
    let (terms, kills) = (sent("TERM"), sent("KILL"));
    assert_eq!((terms.len(), kills.len()), (3, 2), "{ledger}");
    assert!(terms[2] < kills[0], "{ledger}");
    if numbers != GpuNumbers::Files {
        return;
    }

    // Another user's process on the GPU is not killed: the node drains.
    for name in ["go", "left.1", "left.2", "left.3"] {
        fs::remove_file(folder.join("out").join(name)).unwrap();
    }
    job();
    let left = wait_for_leftovers();
    play(&scene(&[stranger.pid()]));
    fs::write(folder.join("out/go"), "").unwrap();
    wait_for_drain(&in_use);
    for pid in left {
        crate::procs::send(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn slurm_numbers_gpus_by_device_file() {
    jobs_start_on_free_gpus_and_leave_them_free(GpuNumbers::Files, 1);
}

#[test]
fn slurm_numbers_gpus_as_the_driver_does() {
    jobs_start_on_free_gpus_and_leave_them_free(GpuNumbers::Nvml, 0);
}

#[test]
fn slurm_names_gpus_by_uuid() {
    jobs_start_on_free_gpus_and_leave_them_free(GpuNumbers::Uuids, 0);
}

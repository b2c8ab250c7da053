//! Slurm on one node: a job array, a step, processes that outlive a job, and the scripts of `packaging/slurm`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

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
    /// Starts Slurm. If that is impossible, prints the reason and returns `None`.
    fn start() -> Option<Self> {
        Self::start_with(|_| String::new())
    }

    /// Starts Slurm with additional lines in slurm.conf. `more` receives the directory.
    fn start_with(more: impl Fn(&Path) -> String) -> Option<Self> {
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
        let files = format!("Name=gpu File={}\n", path("nvidia[0-1]"));
        fs::write(path("gres.conf"), files).unwrap();
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

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = host.split('.').next().unwrap();
    format!(
        "ClusterName=test\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={folder}/munge.socket\n\
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
fn scancel_ends_its_target_and_nothing_else() {
    let cluster = or_skip!(Cluster::start());
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
}

#[test]
fn a_process_that_outlives_its_job_is_signalled() {
    let cluster = or_skip!(Cluster::start());
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

/// Installs the packaged scripts with a gpumem that uses the mock driver. Returns lines for slurm.conf.
fn install_scripts(folder: &Path) -> String {
    let gpumem = folder.join("gpumem");
    let wrapper = format!(
        "#!/bin/sh\nexport GPUMEM_MOCK_SCENE={0}/scene.json STATE_DIRECTORY={0}/state HOME={0}\n\
         {1} \"$@\" --nvml-library {2}; code=$?\n\
         # Wait until the test has freed the memory in the scene.\n\
         while [ \"$1\" = kill ] && [ -e {0}/out/left ] && [ ! -e {0}/out/freed ]; do sleep 0.1; done\n\
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
    write_scene(folder, &[&[], &[]]);
    lines + "PrologFlags=Alloc\n"
}

/// Writes a scene in which each process holds 8 GiB on its GPU.
fn write_scene(folder: &Path, gpus: &[&[u32]]) {
    let gpu = |pids: &&[u32]| {
        let processes =
            pids.iter().map(|&pid| mock_nvml::scene::Process::compute(pid, 8_u64 << 30));
        processes.fold(mock_nvml::scene::Gpu::default(), mock_nvml::scene::Gpu::process)
    };
    let scene =
        gpus.iter().map(gpu).fold(mock_nvml::scene::Scene::new(), mock_nvml::scene::Scene::gpu);
    let new = folder.join("scene.new");
    scene.write(&new).unwrap();
    fs::rename(new, folder.join("scene.json")).unwrap();
}

#[test]
fn a_job_starts_on_free_gpus_and_leaves_them_free() {
    let cluster = or_skip!(Cluster::start_with(install_scripts));
    let folder = cluster.folder.path();
    let sleeper = |uid: u32| {
        let mut sleep = Command::new("sleep");
        Running::start(std::os::unix::process::CommandExt::uid(sleep.arg("600"), uid))
    };
    // Start a process of another user on the job's GPU, and a process of the job's user on a GPU outside the job.
    let (stranger, elsewhere) = (sleeper(0), sleeper(DAEMON));
    let leave = "setsid sh -c 'echo $$ >out/left; exec sleep 600' &\n\
                 while [ ! -e out/go ]; do sleep 0.1; done";
    let options = format!("--gres=gpu:1 --uid={DAEMON}");

    // The job's GPU is in use. The node is drained with a reason, and the process on the GPU survives.
    write_scene(folder, &[&[stranger.pid()], &[elsewhere.pid()]]);
    cluster.submit(&options, leave);
    let node = || cluster.output_of("scontrol show node");
    let is_drained = || {
        let node = node();
        node.contains("DRAIN") && node.contains("Reason=gpumem: limit: GPU 0: 8.0 GiB in use")
    };
    wait_until("the node drains", is_drained);
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    cluster.output_of("scancel -u daemon");
    wait_until("the job has left the queue", || cluster.output_of("squeue -h").is_empty());

    // The GPU is free. The job runs, and the epilog kills the process that the job leaves behind.
    write_scene(folder, &[&[], &[elsewhere.pid()]]);
    let host = cluster.output_of("sinfo -h -o %n");
    cluster.output_of(&format!("scontrol update nodename={host} state=resume"));
    wait_until("the node is idle again", || cluster.output_of("sinfo -h -o %T") == "idle");
    cluster.submit(&options, leave);
    let left = wait_for_pid(&folder.join("out/left"));
    write_scene(folder, &[&[left], &[elsewhere.pid()]]);
    fs::write(folder.join("out/go"), "").unwrap();
    wait_until("the leftover process has ended", || !lives(left));
    write_scene(folder, &[&[], &[elsewhere.pid()]]);
    fs::write(folder.join("out/freed"), "").unwrap();
    wait_until("the node is idle", || cluster.output_of("sinfo -h -o %T") == "idle");
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));

    // Another user's process is on the GPU. The epilog drains the node and does not kill the process.
    fs::remove_file(folder.join("out/go")).unwrap();
    fs::remove_file(folder.join("out/left")).unwrap();
    cluster.submit(&options, leave);
    let left = wait_for_pid(&folder.join("out/left"));
    write_scene(folder, &[&[stranger.pid()], &[elsewhere.pid()]]);
    fs::write(folder.join("out/go"), "").unwrap();
    wait_until("the node drains", is_drained);
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    crate::procs::send(left, rustix::process::Signal::KILL);
}

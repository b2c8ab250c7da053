//! A Slurm of one node: a job array, a step, what a job leaves behind, and the scripts of `packaging/slurm`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{command, pid_in, root, seen};
use crate::machine::{Machine, Running, one_gpu};
use crate::procs::lives;
use crate::support::{self, wait_until};

/// Its daemons; ended with it, and all that they run.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Running>,
}

impl Cluster {
    /// `None`, after a printed reason, where there is none to be had.
    fn start() -> Option<Self> {
        Self::start_with(|_| String::new())
    }

    /// With these lines in its configuration, made for the folder that everything is in.
    fn start_with(more: impl Fn(&Path) -> String) -> Option<Self> {
        root()?;
        let munged = support::find("munged", "munge")?;
        let controller = support::find("slurmctld", "slurm-wlm")?;
        let daemon = support::find("slurmd", "slurm-wlm")?;
        support::find("sbatch", "slurm-wlm")?;
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        let at = |name: &str| cluster.path(name).to_str().unwrap().to_owned();
        // Munge wants to know that nobody else may come by its socket or its key.
        fs::set_permissions(cluster.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at("key"), [7; 1024]).unwrap();
        fs::set_permissions(at("key"), fs::Permissions::from_mode(0o400)).unwrap();
        for name in ["state", "spool"] {
            fs::create_dir(at(name)).unwrap();
        }
        let folder = cluster.folder.path();
        fs::write(at("slurm.conf"), configuration(folder) + &more(folder)).unwrap();
        // What it deals out as GPUs are device files of nothing.
        let files = format!("Name=gpu File={}\n", at("nvidia[0-1]"));
        fs::write(at("gres.conf"), files).unwrap();
        for name in ["nvidia0", "nvidia1"] {
            std::os::unix::fs::symlink("/dev/null", at(name)).unwrap();
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
            munge.arg(format!("--{option}={}", at(name)));
        }
        let socket = cluster.path("munge.socket");
        cluster.daemons.push(Running::start(&mut munge));
        wait_until("munge listens", || socket.exists());
        for program in [controller, daemon] {
            let mut command = cluster.command(program.to_str().unwrap());
            cluster.daemons.push(Running::start(command.arg("-D")));
        }
        wait_until("the node is there", || cluster.output_of("sinfo -h -o %T") == "idle");
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

    /// What a command says, typed as it stands.
    fn output_of(&self, line: &str) -> String {
        let output = self.command("sh").args(["-c", line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Submits a job, and gives its number.
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
        // The daemons of steps end what they run as long as there is somebody to tell of it.
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

/// The daemon of each job is seen on the host only.
fn is_host(process: &Value) -> bool {
    let link = fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(process["pid"].is_u64());
    link.to_str() == Some("pid:[4026531836]")
}

#[test]
fn what_scancel_gets_kills_that_and_nothing_else() {
    let cluster = or_skip!(Cluster::start());
    // Three tasks, of which one has the array's number for its own.
    let array = cluster.submit("--array=3-5", "echo $$ >pid.$SLURM_ARRAY_TASK_ID; exec sleep 600");
    let tasks = ["3", "4", "5"].map(|task| pid_in(&cluster.path(&format!("pid.{task}"))));
    let mut last = None;
    for (task, pid) in ["3", "4", "5"].into_iter().zip(tasks) {
        let (process, step) = seen(pid);
        let slurm = &process["slurm"];
        assert_eq!(slurm["array_job_id"], *array, "{process}");
        assert_eq!(slurm["array_task_id"], task, "{process}");
        assert_eq!((&slurm["step_id"], &slurm["over"]), (&"batch".into(), &false.into()));
        // The array is the environment's word: typed where the job's own number would end all of it.
        let is_last = slurm["job_id"] == *array;
        let job = slurm["job_id"].as_str().unwrap();
        let typed = if is_last { format!("{array}_{task}") } else { job.to_owned() };
        assert_eq!(command(&step), format!("scancel {typed}"));
        if is_last {
            last = Some((pid, command(&step).to_owned()));
        }
    }
    let (last, command_of_last) = last.unwrap();
    cluster.output_of(&command_of_last);
    wait_until("the last task has ended", || !lives(last));
    for pid in tasks.into_iter().filter(|&pid| pid != last) {
        assert!(lives(pid), "{pid} is another task");
    }

    // A step of a job, beside the script that goes on after it.
    let job = cluster.submit(
        "",
        "echo $$ >pid.script\nsrun -n1 sh -c 'echo $$ >pid.step; exec sleep 600'\nexec sleep 600",
    );
    let (script, step) = (pid_in(&cluster.path("pid.script")), pid_in(&cluster.path("pid.step")));
    let (process, plan) = seen(step);
    assert_eq!(process["slurm"]["job_id"], *job, "{process}");
    assert_eq!(command(&plan), format!("scancel {job}.0"));
    cluster.output_of(command(&plan));
    wait_until("the step has ended", || !lives(step));
    assert!(lives(script));

    // A job that was given a GPU and has not begun to use it.
    let given = cluster.submit("--gres=gpu:1", "echo $$ >pid.given; exec sleep 600");
    pid_in(&cluster.path("pid.given"));
    let machine = Machine::new(&one_gpu(&[]));
    let mut snapshot = machine.snapshot(0);
    if snapshot.0["host"]["pid_namespace"] == "host" {
        let mut reservation = Value::Null;
        wait_until("its GPU is seen", || {
            snapshot = machine.snapshot(0);
            let all = snapshot.0["reservations"].as_array().into_iter().flatten();
            let mut own = all.filter(|it| it["slurm"]["job_id"] == *given);
            reservation = own.next().cloned().unwrap_or_default();
            !reservation.is_null()
        });
        assert_eq!(reservation["variable"], "SLURM_JOB_GPUS", "{reservation}");
        assert_eq!(reservation["devices"], serde_json::json!(["0"]));
    }

    // Its environment was copied: that of a job which runs, by a process that is not of it.
    let mut copy = Command::new("sleep");
    copy.arg("600").env("SLURM_JOB_ID", &job).env("SLURMD_NODENAME", "x");
    let copy = Running::start(&mut copy);
    let (process, plan) = seen(copy.pid());
    assert_eq!(process["slurm"], Value::Null, "{process}");
    assert_eq!(plan["step"], "signal", "{plan}");
}

#[test]
fn leftovers_of_an_ended_job_belong_to_no_job() {
    let cluster = or_skip!(Cluster::start());
    let job = cluster.submit(
        "",
        "setsid sh -c 'echo $$ >pid.left; exec sleep 600' &\nwhile [ ! -s pid.left ]; do sleep 0.1; done",
    );
    let left = pid_in(&cluster.path("pid.left"));
    wait_until("the job is over", || {
        cluster.output_of(&format!("squeue -h -t R,CG -j {job} 2>&1")).is_empty()
    });
    assert!(lives(left), "Slurm has lost it");
    let mut found = (Value::Null, Value::Null);
    wait_until("its daemon has ended", || {
        found = seen(left);
        // At a first look not every ancestor may have been seen: then nothing is known of its job.
        let is_recognised = !is_host(&found.0) || found.0["slurm"]["over"] == true;
        is_recognised && found.1["step"] == "signal"
    });
    let (process, _) = found;
    if is_host(&process) {
        assert_eq!(process["slurm"]["job_id"], *job, "{process}");
        assert_eq!(process["slurm"]["over"], true, "{process}");
    } else {
        assert_eq!(process["slurm"], Value::Null, "{process}");
    }
    crate::procs::send(left, rustix::process::Signal::KILL);
}

/// An account that owns nothing here.
const DAEMON: u32 = 1;

/// Puts the scripts into a folder, with a gpumem that meets the mock driver, and configures them.
fn install_scripts(folder: &Path) -> String {
    let gpumem = folder.join("gpumem");
    let wrapper = format!(
        "#!/bin/sh\nexport GPUMEM_MOCK_SCENE={0}/scene.json STATE_DIRECTORY={0}/state HOME={0}\n\
         {1} \"$@\" --nvml-library {2}; code=$?\n\
         # The driver shows that the memory is free when the test has said so.\n\
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

/// Who holds 8 GiB on each GPU.
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
    // One of another user on the job's GPU, and one of the job's user on a GPU that the job does not have.
    let (stranger, elsewhere) = (sleeper(0), sleeper(DAEMON));
    let leave = "setsid sh -c 'echo $$ >out/left; exec sleep 600' &\n\
                 while [ ! -e out/go ]; do sleep 0.1; done";
    let options = format!("--gres=gpu:1 --uid={DAEMON}");

    // Not free: the node drains and says why, and who holds it goes on.
    write_scene(folder, &[&[stranger.pid()], &[elsewhere.pid()]]);
    cluster.submit(&options, leave);
    let node = || cluster.output_of("scontrol show node");
    let is_drained = || {
        let node = node();
        node.contains("DRAIN") && node.contains("Reason=gpumem: limit: GPU 0: 8.0 GiB in use")
    };
    wait_until("the node drains and says why", is_drained);
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    cluster.output_of("scancel -u daemon");
    wait_until("the job is gone", || cluster.output_of("squeue -h").is_empty());

    // Free: the job runs, and what it leaves is killed.
    write_scene(folder, &[&[], &[elsewhere.pid()]]);
    let host = cluster.output_of("sinfo -h -o %n");
    cluster.output_of(&format!("scontrol update nodename={host} state=resume"));
    wait_until("the node is back", || cluster.output_of("sinfo -h -o %T") == "idle");
    cluster.submit(&options, leave);
    let left = pid_in(&folder.join("out/left"));
    write_scene(folder, &[&[left], &[elsewhere.pid()]]);
    fs::write(folder.join("out/go"), "").unwrap();
    wait_until("what it left has ended", || !lives(left));
    write_scene(folder, &[&[], &[elsewhere.pid()]]);
    fs::write(folder.join("out/freed"), "").unwrap();
    wait_until("the node is free", || cluster.output_of("sinfo -h -o %T") == "idle");
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));

    // What a job leaves that is another user's is not killed: the node drains.
    fs::remove_file(folder.join("out/go")).unwrap();
    fs::remove_file(folder.join("out/left")).unwrap();
    cluster.submit(&options, leave);
    let left = pid_in(&folder.join("out/left"));
    write_scene(folder, &[&[stranger.pid()], &[elsewhere.pid()]]);
    fs::write(folder.join("out/go"), "").unwrap();
    wait_until("the node drains and says why", is_drained);
    assert!(lives(stranger.pid()) && lives(elsewhere.pid()));
    crate::procs::send(left, rustix::process::Signal::KILL);
}

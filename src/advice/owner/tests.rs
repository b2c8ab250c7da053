//! Tests that the owner of a process is found, and that the advised command ends only this process.

use std::sync::Arc;

use super::super::{TABLE, lines, place_lines, quote, steps};
use super::*;
use crate::model::dice::Dice;
use crate::model::process::{Container, Jupyter, Kubernetes, Parent, Slurm};
use crate::model::testing::environment;

fn process() -> Process {
    Process { pid: 4242, ..Process::default() }
}

fn notebook(application: Option<&str>, path: Option<&str>) -> Process {
    let kernel = Jupyter {
        application: application.map(Arc::from),
        notebook_path: path.map(Arc::from),
        ..Jupyter::default()
    };
    Process { jupyter: Some(Arc::new(kernel)), ..process() }
}

fn contained(runtime: Option<&str>, name: Option<&str>, id: &str) -> Process {
    let container = Container {
        runtime: runtime.map(Arc::from),
        id: Some(id.into()),
        name: name.map(Arc::from),
        ..Container::default()
    };
    Process { container: Some(Arc::new(container)), namespace_pid: Some(1), ..process() }
}

fn in_job(job: &str, step: Option<&str>) -> Process {
    let slurm =
        Slurm { job_id: Some(job.into()), step_id: step.map(Arc::from), ..Slurm::default() };
    Process {
        slurm: Some(Arc::new(slurm)),
        environment: environment(&[("SLURM_JOB_ID", job)]),
        ..process()
    }
}

fn in_unit(unit: &str, cgroup: &str) -> Process {
    Process {
        systemd_unit: Some(unit.into()),
        cgroup: Some(cgroup.into()),
        user: Some("ann".into()),
        ..process()
    }
}

fn in_pod(name: Option<&str>, uid: Option<&str>) -> Process {
    let pod = Kubernetes {
        pod_uid: uid.map(Arc::from),
        pod_name: name.map(Arc::from),
        namespace: name.map(|_| "team-a".into()),
        ..Kubernetes::default()
    };
    Process {
        kubernetes: Some(Arc::new(pod)),
        ..contained(Some("containerd"), None, &"a".repeat(64))
    }
}

fn only(process: &Process) -> String {
    let lines = place_lines(process);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

#[test]
fn the_command_fits_the_owner() {
    let id = "0123456789abcdef".repeat(4);
    for (process, words) in [
        (in_job("77", Some("0")), "`scancel 77.0`"),
        (in_job("77", Some("batch")), "`scancel 77`"),
        (in_job("77", None), "`scancel 77`"),
        (contained(Some("docker"), Some("train"), &id), "`docker stop train`"),
        (contained(Some("lxc"), None, "web"), "`lxc stop web`"),
        (
            contained(None, None, &id),
            "0123456789ab, and everything that runs in it, with the program that started it",
        ),
        (in_pod(Some("train-0"), None), "`kubectl delete pod -n team-a train-0`"),
        (in_pod(None, Some("1234-ab")), "grep 1234-ab"),
        (
            in_unit("llm.service", "/system.slice/llm.service"),
            "as root: `systemctl stop llm.service`",
        ),
        (in_unit("llm@7.service", "/system.slice/llm@7.service"), "`systemctl stop llm@7.service`"),
        (
            in_unit(
                "llm.service",
                "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
            ),
            "as root or as ann: `systemctl --user -M ann@ stop llm.service`",
        ),
        (in_unit("gitlab-runner.service", "/x"), "cancel its job in GitLab"),
        (in_unit("actions.runner.acme.gpu7.service", "/x"), "cancel its workflow run in GitHub"),
        (in_unit("rstudio-server.service", "/x"), "RStudio"),
        // Ending a process that was started from an allocation's shell must not end the allocation.
        (in_job("77", Some("interactive")), "end it in the shell where it was started"),
        (in_job("77", Some("extern")), "end it in the shell where it was started"),
        (notebook(None, None), "in Jupyter"),
        (notebook(Some("jupyterhub"), None), "in Jupyter"),
        (notebook(Some("vscode"), None), "VS Code"),
        (notebook(Some("marimo"), None), "marimo"),
        (notebook(Some("colab"), None), "Colab"),
        (notebook(Some("voila"), None), "close the dashboard"),
        (notebook(Some("kernelgateway"), None), "Kernel Gateway"),
        (notebook(Some("databricks"), None), "dbutils.library.restartPython()"),
        (notebook(Some("ipykernel"), None), "`kill 4242`"),
        (notebook(Some("jupyter-console"), None), "`exit`"),
        (notebook(Some("spyder"), None), "close its window"),
        (notebook(Some("positron"), None), "in Positron's console"),
    ] {
        let line = only(&process);
        assert!(line.contains(words), "{line}: {words}");
        assert_eq!(steps(&process).last(), Some(&line));
    }
}

#[test]
fn a_shared_service_is_never_stopped() {
    for unit in [
        "session-3.scope",
        "vte-spawn-1.scope",
        "user@1000.service",
        "user-1000.slice",
        "sshd.service",
        "sshd@7.service",
        "docker.service",
        "kubelet.service",
        "systemd-logind.service",
        "serial-getty@ttyS0.service",
        "jupyterhub.service",
        "jupyter@ann.service",
    ] {
        assert!(place_lines(&in_unit(unit, "/x")).is_empty(), "{unit}");
    }
    assert_eq!(steps(&in_unit("sshd.service", "/x")), [&*TABLE.end.text]);
    // The container and the job of a kernel belong to the notebook server.
    let kernel = Process {
        container: contained(Some("docker"), Some("lab"), "x").container,
        slurm: in_job("77", None).slurm,
        ..notebook(Some("jupyter"), Some("a b/train.ipynb"))
    };
    let line = only(&kernel);
    assert!(line.starts_with("shut the kernel down (a b/train.ipynb): Kernel >"));
    // A kernel that papermill runs belongs to an ordinary job.
    let batch = Process {
        slurm: in_job("77", None).slurm,
        ..notebook(Some("papermill"), Some("train.ipynb"))
    };
    assert!(only(&batch).contains("scancel 77"));
}

#[test]
fn a_job_that_only_the_process_names_is_in_no_command() {
    let within = |cgroup: &str| Process { cgroup: Some(cgroup.into()), ..in_job("77", Some("0")) };
    let doubt = "`scontrol listpids 77`";
    for cgroup in [
        "/slurm/uid_5/job_77/step_0/task_0",
        "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0",
        "/system.slice/slurmd.service",
    ] {
        assert!(!only(&within(cgroup)).contains(doubt), "{cgroup}");
    }
    // Newer Slurm does not name the job in the cgroup, so only the process itself claims the job ID.
    let newer = "/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0";
    assert!(only(&within(newer)).contains(doubt));
    assert_eq!(owner(&within(newer)).unwrap().command, None);
}

#[test]
fn an_array_task_is_named_by_array_and_task() {
    let change = |change: &dyn Fn(&mut Slurm), step| {
        let mut process = in_job("3", step);
        change(Arc::make_mut(process.slurm.as_mut().unwrap()));
        process
    };
    let task = |slurm: &mut Slurm| {
        (slurm.array_job_id, slurm.array_task_id) = (Some("3".into()), Some("4".into()));
    };
    let command = |process: &Process| owner(process).unwrap().command;
    // The last task to start has the array's ID as its job ID: `scancel 3` would cancel all tasks.
    assert_eq!(command(&change(&task, None)).as_deref(), Some("scancel 3_4"));
    assert_eq!(command(&change(&task, Some("0"))).as_deref(), Some("scancel 3_4.0"));
    assert_eq!(owner(&change(&task, None)).unwrap().name, "Slurm job 3_4");
    // If the environment is unreadable, the process may be a task of an array.
    let mut unread = in_job("3", None);
    unread.environment = None;
    assert_eq!(command(&unread), None);
    assert!(only(&unread).contains("`squeue -j 3`"), "{}", only(&unread));
    let other = Process { environment: environment(&[("SLURM_JOB_ID", "4")]), ..in_job("3", None) };
    assert_eq!(command(&other), None);
    // A process that has outlived its job has no owner.
    let over = change(&|slurm| slurm.over = Some(true), None);
    assert_eq!(owner(&over), None);
    let line = only(&over);
    assert!(line.contains("Slurm job 3 has ended") && line.contains("`kill 4242`"), "{line}");
    assert!(!line.contains("scancel"), "{line}");
}

#[test]
fn a_command_ends_only_the_job() {
    let id = "0123456789abcdef".repeat(4);
    let number =
        |pid, inner, process: Process| Process { pid, namespace_pid: Some(inner), ..process };
    for (runtime, name, command) in [
        ("docker", Some("lab"), "docker exec lab kill 20 21"),
        ("nerdctl", None, "nerdctl exec 0123456789ab kill 20 21"),
        ("containerd", None, "crictl exec 0123456789ab kill 20 21"),
        ("lxc", Some("box"), "kill 4242 4243"),
    ] {
        let of = |pid, inner| number(pid, inner, contained(Some(runtime), name, &id));
        let (one, other, first) = (of(4242, 20), of(4243, 21), of(4244, 1));
        let elsewhere = number(4245, 22, contained(Some(runtime), Some("other"), "ff"));
        let command_of =
            |job: &[&Process]| owner_of(&one, job).and_then(|owner| owner.command).unwrap();
        assert_eq!(command_of(&[&one, &other, &elsewhere]), command, "{runtime}");
        let all = command_of(&[&one, &first]);
        assert!(all.contains("stop"), "all end with the first process: {all}");
    }
    let unit = |pid: u32| Process {
        pid,
        session: Some(70),
        parent_is_reaper: Some(true),
        ..in_unit("llm.service", "/system.slice/llm.service")
    };
    let (main, left) = (unit(70), unit(71));
    let command_of = |job: &[&Process]| owner_of(job[0], job).and_then(|owner| owner.command);
    assert_eq!(command_of(&[&left]).as_deref(), Some("kill 71"));
    for job in [&[&main][..], &[&left, &main]] {
        assert_eq!(command_of(job).as_deref(), Some("systemctl stop llm.service"));
    }
}

#[test]
fn each_runtime_has_its_command_and_namespace() {
    let id = "0123456789abcdef".repeat(4);
    let of = |runtime, space: Option<&str>, user: Option<&str>, name, id| {
        let mut process = contained(Some(runtime), name, id);
        let container = Arc::make_mut(process.container.as_mut().unwrap());
        (container.namespace, container.user) = (space.map(Arc::from), user.map(Arc::from));
        process
    };
    for (process, command) in [
        (of("docker", Some("moby"), None, None, &id), "docker stop 0123456789ab"),
        (of("containerd", Some("k8s.io"), None, None, &id), "crictl stop 0123456789ab"),
        (of("containerd", Some("lab"), None, None, "job-7"), "ctr -n lab tasks kill job-7"),
        (of("containerd", Some("lab"), None, Some("train"), &id), "nerdctl -n lab stop train"),
        (of("nerdctl", None, None, None, &id), "nerdctl stop 0123456789ab"),
        (of("runc", None, None, None, "job-7"), "runc kill job-7 TERM"),
        (of("nspawn", None, None, None, "box"), "machinectl poweroff box"),
        (of("podman", None, None, Some("train"), &id), "podman stop train"),
    ] {
        assert_eq!(owner(&process).unwrap().command.as_deref(), Some(command));
        assert!(only(&process).contains(command));
    }
    assert_eq!(owner(&of("podman", None, Some("ann"), Some("train"), &id)), None);
    // Only the pid namespace shows that the process is in a container.
    let unknown = Process {
        container: Some(Arc::new(Container::default())),
        namespace_pid: Some(1),
        ..process()
    };
    assert_eq!(owner(&unknown).unwrap().name, "a container");
    let left = |ppid: u32| Process {
        ppid: Some(ppid),
        parent_is_reaper: Some(true),
        namespace_pid: None,
        ..contained(Some("docker"), None, &id)
    };
    assert_eq!(owner(&left(1)), None, "the container was removed");
    assert!(owner(&left(900)).is_some(), "the monitor of the container adopted it");
    let in_its_unit = Process { systemd_unit: Some("llm.service".into()), ..unknown };
    assert_eq!(owner(&in_its_unit).unwrap().name, "unit llm.service");
}

#[test]
fn a_kernel_without_its_server_is_ended_by_gpumem() {
    let mut process = notebook(Some("jupyter"), Some("a.ipynb"));
    if let Some(jupyter) = &mut process.jupyter {
        Arc::make_mut(jupyter).server_alive = Some(false);
    }
    let line = only(&process);
    assert!(line.contains("`gpumem kill 4242`") && !line.contains("Shut Down"), "{line}");
    assert_eq!(lines(&process).last().unwrap().text, TABLE.end.text);
    process.container = contained(Some("docker"), Some("lab"), "x").container;
    assert_eq!(owner(&process), None);
    let adopted = Process { parent_is_reaper: Some(true), ..notebook(Some("vscode"), None) };
    assert!(only(&adopted).contains("`gpumem kill 4242`"));
}

#[test]
fn a_stopped_process_is_continued_first() {
    let stopped = Process { state: Some('T'), ..in_job("77", None) };
    let lines = place_lines(&stopped);
    assert!(
        lines[0].starts_with("it is stopped; where Slurm suspended its job: `scontrol resume 77`")
    );
    assert!(lines[0].ends_with("; where a person stopped it: `kill -CONT 4242`"), "{lines:?}");
    assert!(lines[1].contains("scancel 77"));
    let mut stopped = Process { state: Some('T'), ..process() };
    assert_eq!(place_lines(&stopped), ["it is stopped; continue it: `kill -CONT 4242`"]);
    stopped.terminal = Some("pts/3".into());
    assert!(continue_line(&stopped).starts_with("continue it: `fg` in its shell on pts/3"));
}

#[test]
fn a_worker_is_ended_through_its_pool() {
    let below = |command: &str, parent: &str| Process {
        command: Some(command.split(' ').map(Arc::from).collect()),
        ppid: Some(70),
        parent_is_reaper: Some(false),
        parent: Some(Arc::new(Parent {
            pid: 70,
            command: Some(parent.split(' ').map(Arc::from).collect()),
            ..Parent::default()
        })),
        ..process()
    };
    for (command, parent, words) in [
        ("python manage.py qcluster", "python manage.py qcluster", "its cluster's guard (pid 70)"),
        ("python /v/bin/arq app.Settings", "bash", "a worker of arq waits for work"),
        ("python djl_python_engine.py", "java -cp x", "its front end (pid 70)"),
    ] {
        let lines = steps(&below(command, parent));
        assert!(lines[0].contains(words) && lines.len() == 1, "{lines:?}");
    }
}

#[test]
fn a_suspended_job_is_resumed_by_its_scheduler() {
    for (ancestor, variables, resume) in [
        ("/lsf/etc/res -d x", "LSB_JOBID=7 LSB_JOBINDEX=0", "bresume 7"),
        ("/lsf/etc/res -d x", "LSB_JOBID=7 LSB_JOBINDEX=3", "bresume '7[3]'"),
        ("/opt/pbs/sbin/pbs_mom", "PBS_JOBID=7.head", "qsig -s resume 7.head"),
        ("sge_shepherd -bg", "JOB_ID=7 SGE_TASK_ID=undefined", "qmod -usj 7"),
        ("sge_shepherd -bg", "JOB_ID=7 SGE_TASK_ID=3", "qmod -usj 7.3"),
        ("condor_starter -f", "", "condor_continue JOB"),
        ("oarexec", "OAR_JOB_ID=7", "oarresume 7"),
        ("slurmstepd", "SLURM_JOB_ID=7", "scontrol resume 7"),
        ("boinc --dir x", "", "boinccmd --task URL TASK resume"),
        ("pueued -d", "", "pueue start TASK"),
        ("supervisord -n", "SUPERVISOR_PROCESS_NAME=ui SUPERVISOR_GROUP_NAME=ui", ""),
        ("bash", "", ""),
    ] {
        let line = continue_line(&below(ancestor, true, &variables_of(variables)));
        match resume.is_empty() {
            true => assert_eq!(line, "continue it: `kill -CONT 4242`", "{ancestor}"),
            false => assert!(line.contains(&format!("suspended its job: `{resume}`")), "{line}"),
        }
    }
}

#[test]
fn a_name_is_one_word_for_a_shell_or_is_omitted() {
    for (name, quoted) in [
        ("train-0_1.x", Some("train-0_1.x")),
        ("a b", Some("'a b'")),
        ("$(reboot)", Some("'$(reboot)'")),
        ("`id`", Some("'`id`'")),
        ("it's", Some(r"'it'\''s'")),
        ("a;b|c&d>e", Some("'a;b|c&d>e'")),
        ("~root", Some("'~root'")),
        ("a=b", Some("'a=b'")),
        ("日本", Some("'日本'")),
        ("--help", None),
        ("-", None),
        ("", None),
        ("a\nb", None),
        ("a\u{1b}[31m", None),
        ("a\u{202e}b", None),
        ("a\u{200b}b", None),
        ("a\0b", None),
    ] {
        assert_eq!(quote(name).as_deref(), quoted, "{name:?}");
    }
    assert_eq!(quote(&"x".repeat(LONG)), None);
    for hostile in ["x\n`reboot`", "-rf", "\u{202e}x"] {
        let unit = format!("{hostile}.service");
        for process in
            [in_job(hostile, None), contained(Some("docker"), None, hostile), in_unit(&unit, "/x")]
        {
            assert_eq!(owner(&process).unwrap().command, None);
            assert!(!only(&process).contains(hostile), "{}", only(&process));
        }
        let path = notebook(None, Some(hostile));
        assert!(!only(&path).contains('\n'));
    }
    for name in ["a b", "$(echo no)", "it's `x` \"y\"", "a\\b", "!!", "*"] {
        let word = quote(name).unwrap();
        let echoed = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {word}")])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(echoed.stdout).unwrap(), name);
    }
}

const LONG: usize = 254;

fn below(ancestor: &str, is_roots: bool, variables: &[(&str, &str)]) -> Process {
    let command: Arc<[Arc<str>]> = match ancestor.starts_with("PM2") {
        true => [ancestor.into()].into(),
        false => ancestor.split(' ').map(|word| word.replace('~', " ").into()).collect(),
    };
    let parent = Parent { pid: 70, command: Some(command), ..Parent::default() };
    Process {
        supervisor: Some(Arc::new(parent)),
        supervisor_is_roots: Some(is_roots),
        environment: environment(variables),
        ..process()
    }
}

/// One owner per line: the ancestor's command line, the environment, the owner's name, and the owner's command if
/// known.
const OWNERS: &str = "\
/usr/bin/python3 /usr/bin/supervisord -n | SUPERVISOR_PROCESS_NAME=ui SUPERVISOR_GROUP_NAME=comfy | supervisord program ui | supervisorctl stop comfy:ui
/usr/bin/python3 -u /v/bin/supervisord |  | supervisord |
PM2 v5.3.0: God Daemon (/root/.pm2) | pm_id=3 | PM2 app 3 | pm2 stop 3
runsv llm |  | runit service llm | sv down llm
s6-supervise llm |  | s6 service llm |
supervise llm |  | daemontools service llm |
supervise-daemon llm --start x | RC_SVCNAME=llm | OpenRC service llm | rc-service llm stop
/sbin/dinit |  | dinit |
/usr/bin/python3 /usr/bin/circusd x.ini |  | circus |
python3 -m circus.circusd x.ini |  | circus |
immortal -c x.yml |  | immortal |
/usr/bin/nomad executor {} | NOMAD_JOB_ID=llm NOMAD_ALLOC_ID=a-1 NOMAD_NAMESPACE=ml | Nomad job llm | nomad job stop -namespace ml llm
/lsf/etc/res -d x | LSB_JOBID=7 LSB_JOBINDEX=3 | LSF job '7[3]' | bkill '7[3]'
/lsf/etc/sbatchd | LSB_JOBID=7 LSB_JOBINDEX=0 | LSF job 7 | bkill 7
/opt/pbs/sbin/pbs_mom | PBS_JOBID=7.head | PBS job 7.head | qdel 7.head
/opt/pbs/sbin/pbs_mom | PBS_JOBID=7[3].head | PBS job '7[3].head' | qdel '7[3].head'
sge_shepherd -bg | JOB_ID=7 SGE_TASK_ID=undefined | Grid Engine job 7 | qdel 7
sge_shepherd -bg | JOB_ID=7 SGE_TASK_ID=3 | Grid Engine job 7.3 | qdel 7 -t 3
condor_starter -f -a slot1 |  | HTCondor |
flux-shell 7 | FLUX_JOB_ID=f7 | Flux job f7 | flux cancel f7
oarexec | OAR_JOB_ID=7 | OAR job 7 | oardel 7
container-executor ann |  | YARN |
appinit |  | Apptainer |
/r/bin/Runner.Worker spawnclient 1 2 | GITHUB_RUN_ID=7 GITHUB_REPOSITORY=a/b | GitHub's runner run 7 | gh run cancel 7 -R a/b
python3 -m pyspark.daemon |  | Spark |
/usr/bin/python3 /v/bin/clearml-agent daemon |  | ClearML's agent |
/usr/bin/python3 /v/bin/wandb agent a/b/c |  | W&B's agent |
/usr/bin/gitlab-runner run | CI_JOB_ID=7 | GitLab's runner job 7 |
/usr/bin/java -jar /var/agent.jar -url x |  | Jenkins |
/usr/sbin/slurmstepd | SLURM_JOB_ID=7 | Slurm job 7 | scancel 7
ray::JobSupervisor |  | Ray |
airflow~task~supervisor:~['airflow'] |  | Airflow |
python3 /v/bin/airflow tasks run a b | AIRFLOW_CTX_DAG_ID=d AIRFLOW_CTX_TASK_ID=t | Airflow task d.t |
python3 /v/bin/prefect worker start | PREFECT__FLOW_RUN_ID=a-1 | Prefect flow run a-1 | prefect flow-run cancel a-1
python3 -m dagster api execute_run {} |  | Dagster |
python3 /v/bin/snakemake -j4 |  | Snakemake |
java -cp /n/nf.jar nextflow.cli.Launcher run x.nf |  | Nextflow |
/usr/local/bin/dstack-runner start | DSTACK_RUN_NAME=bert | dstack run bert | dstack stop bert
pueued -d |  | pueue |
tsp python train.py |  | task spooler |
/opt/Deadline10/bin/deadlineworker -nogui |  | Deadline |
/usr/bin/python3 /usr/local/bin/rqd |  | OpenCue |
/opt/flamenco/flamenco-worker |  | Flamenco |
/usr/bin/boinc --dir /var/lib/boinc |  | BOINC |
/usr/bin/fah-client --config=x |  | Folding@home |
/usr/bin/python3 /opt/ros/humble/bin/ros2 launch seg seg.launch.py |  | ROS |
/agent/bin/Agent.Worker spawnclient 1 2 | BUILD_BUILDNUMBER=7 | Azure Pipelines' agent run 7 |
/usr/bin/forgejo-runner daemon |  | Gitea's or Forgejo's runner |
/usr/bin/woodpecker-agent |  | Woodpecker's agent |
java -cp /opt/agent/lib jetbrains.buildServer.agent.AgentMain |  | TeamCity's agent |
python3 /v/bin/gpustack start |  | GPUStack |
/usr/lib/postgresql/16/bin/postgres -D /x |  | PostgreSQL |
overmind start |  | its Procfile manager |
guile /bin/shepherd |  | GNU Shepherd |
java -cp /z org.apache.zeppelin.interpreter.remote.RemoteInterpreterServer x |  | Zeppelin |
";

fn variables_of(text: &str) -> Vec<(&str, &str)> {
    text.split_whitespace().filter_map(|variable| variable.split_once('=')).collect()
}

#[test]
fn each_owner_is_named_with_the_command_that_ends_one_program() {
    for row in OWNERS.lines() {
        let [ancestor, variables, name, command] =
            <[&str; 4]>::try_from(row.split('|').map(str::trim).collect::<Vec<_>>()).unwrap();
        let variables = &variables_of(variables)[..];
        let command = Some(command).filter(|command| !command.is_empty());
        let owned = below(ancestor, true, variables);
        let found = owner(&owned).unwrap_or_else(|| panic!("{ancestor}"));
        assert_eq!((&*found.name, found.command.as_deref()), (name, command), "{ancestor}");
        assert!(found.is_asked_first && !found.is_by_user, "{ancestor}");
        let line = only(&owned);
        assert!(line.contains("(pid 70)"), "{line}");
        assert!(command.is_none_or(|command| line.contains(&format!("`{command}`"))), "{line}");
        // A supervisor that may belong to a user does not protect the process from other users. Only the process's user
        // gets the command.
        let forged = owner(&below(ancestor, false, variables)).unwrap();
        assert!(forged.is_by_user && forged.command_for(false).is_none(), "{ancestor}");
        assert_eq!(forged.command_for(true), command, "{ancestor}");
        let orphan = Process {
            parent_is_reaper: Some(true),
            group_leader_alive: Some(false),
            process_group: Some(9),
            ..owned
        };
        assert_eq!(owner(&orphan), None, "{ancestor}");
    }
    // If the ancestor is unknown, the unit determines the owner, unless the process has outlived its starter.
    for (unit, words) in [
        ("supervisor.service", "`supervisorctl status`"),
        ("slurmd.service", "`scancel JOB`"),
        ("monit.service", "`monit stop NAME`"),
        ("buildkite-agent@7.service", "cancel its build"),
    ] {
        let process = in_unit(unit, "/system.slice/x.service");
        assert!(only(&process).contains(words), "{unit}");
        let left = Process {
            parent_is_reaper: Some(true),
            group_leader_alive: Some(false),
            process_group: Some(9),
            ..process
        };
        assert_eq!(owner(&left), None, "{unit}");
    }
    let comfy = "SUPERVISOR_PROCESS_NAME=ui SUPERVISOR_GROUP_NAME=comfy";
    let comfy = below("python3 /usr/bin/supervisord", true, &variables_of(comfy));
    let line = only(&comfy);
    let start = "supervisord (pid 70) would start it again: check that `supervisorctl pid comfy:ui` \
                 prints its pid, then end program ui: ";
    assert!(line.starts_with(start), "{line}");
    // If only the process were killed, the supervisor would start it again.
    let users = Process {
        supervisor_is_roots: Some(false),
        namespace_pid: None,
        session: Some(9),
        ..in_unit("llm.service", "/system.slice/llm.service")
    };
    let users = Process { supervisor: comfy.supervisor.clone(), ..users };
    let line = only(&users);
    assert!(line.contains("`systemctl stop llm.service`") && !line.contains("`kill"), "{line}");
    // The supervisor runs in the container of the process.
    let inside = Process {
        container: contained(Some("docker"), Some("lab"), "x").container,
        namespace_pid: Some(20),
        supervisor_is_roots: Some(false),
        ..comfy
    };
    let found = owner(&inside).unwrap();
    assert_eq!(found.command.as_deref(), Some("docker exec lab supervisorctl stop comfy:ui"));
    assert!(!found.is_by_user && found.line.contains("docker stop lab"), "{}", found.line);
}

#[test]
fn a_job_that_the_environment_names_protects_nothing() {
    let of = |variables: &[(&str, &str)]| {
        owner(&Process { environment: environment(variables), ..process() })
    };
    let job = of(&[("PBS_JOBID", "7.head")]).unwrap();
    assert_eq!(job.command_for(true), Some("qdel 7.head"));
    assert!(job.is_by_user && job.command_for(false).is_none());
    for variables in [
        &[("SUPERVISOR_PROCESS_NAME", "ui")][..],
        &[("JOB_ID", "7")],
        &[("PBS_JOBID", "")],
        &[("pm_id", "1")],
        &[("RANK", "1")],
    ] {
        assert_eq!(of(variables), None, "{variables:?}");
    }
}

#[test]
fn other_programs_are_not_owners() {
    for ancestor in [
        "/usr/bin/python3 train.py",
        "/usr/bin/python3 train.py supervisord",
        "/usr/bin/python3 /home/ann/supervisord.py",
        "bash -c supervisord",
        "nomad agent",
        "wandb sync x",
        "sshd: ann@pts/0",
        "runsvdir /etc/service",
        "tmux",
    ] {
        assert_eq!(owner(&below(ancestor, true, &[("pm_id", "1")])), None, "{ancestor}");
    }
}

#[test]
fn a_forged_name_is_quoted_and_protects_nothing() {
    let values =
        ["ui", "7", "$(reboot)", "`id`", "a;b", "-rf", "it's", "a b", "x\ny", "é", "***", ""];
    let owners = ["supervisord", "pbs_mom", "runsv", "res", "Runner.Worker", "nomad executor"];
    let innocent = ["python3 train.py", "bash", "torchrun x.py", "make -j", "sh run.sh", "ninja"];
    let names = ["SUPERVISOR_PROCESS_NAME", "SUPERVISOR_GROUP_NAME", "PBS_JOBID", "LSB_JOBID"];
    let mut dice = Dice::new(45);
    let mut owned = 0;
    for _ in 0..3000 {
        let mut pick = |of: &[&'static str]| of[dice.place(of.len())];
        let ancestor = match pick(&["owner", "", "", ""]) {
            "" => pick(&innocent).to_owned(),
            _ => format!("{} {}", pick(&owners), pick(&values)),
        };
        let mut variables: Vec<(&str, &str)> = Vec::new();
        for name in names {
            if pick(&["set", "", ""]) == "set" {
                variables.push((name, pick(&values)));
            }
        }
        let process = below(&ancestor, false, &variables);
        let Some(found) = owner(&process) else {
            continue;
        };
        owned += 1;
        assert!(found.is_by_user && found.command_for(false).is_none(), "{ancestor} {variables:?}");
        if let Some(command) = &found.command {
            // Outside single quotes, the command has no character that a shell interprets.
            let outside: String = command.replace(r"'\''", "").split('\'').step_by(2).collect();
            let is_safe = |c: char| !"$;|&<>\\\n`".contains(c);
            assert!(outside.chars().all(is_safe), "{command}");
        }
    }
    assert!((300..2000).contains(&owned), "{owned}");
}

//! Processes that have outlived the job that started them.

use super::*;

/// Additional findings that are allowed about an idle orphan.
const ALSO: &[&str] = &["idle"];

/// Adds a trainer that is killed at `death`, and workers that sleep forever afterwards.
fn killed(s: &mut Stage, death: f64, adopter: u32, workers: usize, small: Option<u64>) {
    let (parent, bytes) = (s.trainer(), s.gib(3.0, 14.0));
    for _ in 0..workers {
        let worker = s.child(&parent);
        let idle = resting(small.unwrap_or(0));
        let idle = if small.is_none() { idle.unknown_bytes() } else { idle };
        let left = idle.cpu(0.0).adopted_by(adopter);
        let pid = s.add(worker, until(death, idle.cpu(80.0), left));
        s.expect_finding("orphan", pid, ALSO);
    }
    s.add(parent, until(death, working(bytes), gone()));
}

/// Picks a random time for the job to die, long enough before the end of the recording for the rule to fire.
fn death(s: &mut Stage) -> f64 {
    let shortest = 145.0 + 4.0 * s.interval();
    s.before_end(shortest, shortest + 900.0)
}

pub const FAMILIES: &[Family] = &[
    family("orphan_dataloader_workers", "Init adopted the killed trainer's workers.", |s| {
        let (death, workers) = (death(s), s.random.whole(1, 4) as usize);
        killed(s, death, 1, workers, None);
    }),
    family("orphan_workers_with_contexts", "The workers have a small context each.", |s| {
        let (death, bytes) = (death(s), s.mib(300, 600));
        killed(s, death, 1, 2, Some(bytes));
    }),
    family("orphan_under_a_users_systemd", "The user's systemd has adopted the workers.", |s| {
        let (death, adopter) = (death(s), s.random.whole(1_000, 3_000) as u32);
        killed(s, death, adopter, 2, None);
    }),
    family("orphan_ranks", "The launcher was killed; its ranks wait for each other, idle.", |s| {
        s.gpus(2);
        let (death, bytes) = (death(s), s.gib(4.0, 14.0));
        let launcher = s.user_process("torchrun --nproc_per_node 2 train.py");
        for gpu in 0..2 {
            let rank = s.child(&launcher);
            let pid =
                s.add_on(rank, &[gpu], until(death, working(bytes), resting(bytes).adopted_by(1)));
            s.expect_finding("orphan", pid, ALSO);
        }
    }),
    family("orphan_on_a_shared_gpu", "Another user trains on the same GPU.", |s| {
        let (other, held) = (s.trainer(), s.gib(2.0, 5.0));
        s.add(other, move |_, _| working(held));
        let death = death(s);
        killed(s, death, 1, 1, Some(400 * MIB));
    }),
    family("orphan_by_the_device", "Only the use of the whole GPU is known: none.", |s| {
        s.machine.has_process_use = false;
        let death = death(s);
        killed(s, death, 1, 2, Some(600 * MIB));
    }),
    family("orphan_of_a_sweep", "A trial died; its sweep and the next trial continue.", |s| {
        let (death, trial, bytes) = (death(s), s.trainer(), s.gib(1.3, 4.0));
        let code = "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)";
        let spawned = ["/usr/bin/python3", "-c", code, "--multiprocessing-fork"];
        for _ in 0..s.random.whole(1, 3) {
            let command = Some(spawned.map(Arc::from).into());
            let worker = Process { command, ..s.child(&trial) };
            let left = resting(bytes).cpu(0.0).adopted_by(1).of_a_script(true);
            let pid = s.add(worker, until(death, resting(bytes).cpu(80.0), left));
            s.expect_finding("orphan", pid, ALSO);
        }
        // All of these processes are in the script's process group.
        let next = s.child(&trial);
        s.add(next, move |_, _| working(bytes));
    }),
    family("orphan_since_before", "The orphans existed before the recording began.", |s| {
        s.minutes(10.0, 30.0);
        killed(s, -1.0, 1, 3, None);
    }),
    family("orphan_hidden", "An orphan that NVML does not list holds a device file.", |s| {
        let (parent, bytes, death) = (s.trainer(), s.gib(3.0, 14.0), death(s));
        let worker = s.child(&parent);
        let idle = resting(0).unlisted();
        let pid = s.add(worker, until(death, idle.cpu(70.0), idle.cpu(0.0).adopted_by(1)));
        s.add(parent, until(death, working(bytes), gone()));
        let gpu = s.gpu;
        s.add_unattributed(gpu, move |t| if t < death { 0 } else { bytes });
        s.expect_finding("orphan", pid, &[]);
        s.expect_unattributed(gpu);
    }),
    family("orphan_engine_core", "A server's front end was killed; its engine is left.", |s| {
        let (front, engine_name) = s.random.pick(&[
            (
                "python -m vllm.entrypoints.openai.api_server --model m --port 8000",
                "VLLM::EngineCore",
            ),
            ("vllm serve m", "VLLM::EngineCore_DP0"),
            ("python -m sglang.launch_server --model m", "sglang::scheduler"),
            ("/usr/local/bin/ollama serve", "/usr/local/bin/ollama runner --model /m --port 40123"),
        ]);
        let server = s.server(front, Some("vllm"));
        let (bytes, death) = (s.share(0.5, 0.88), death(s));
        let has_a_script = s.random.chance(0.5);
        let port = s.random.whole(30_000, 60_000);
        let listening_on = s.random.chance(0.7).then(|| [format!("tcp:[::]:{port}").into()].into());
        let engine = s.child(&server);
        let script = s.random.whole(3_000, 400_000) as u32;
        let leads_its_group = s.random.chance(0.3);
        let group = if has_a_script { Some(script) } else { engine.process_group };
        let engine = Process {
            process_group: if leads_its_group { Some(engine.pid) } else { group },
            command: argv(engine_name),
            listening: Some(listening_on.is_some()),
            listening_on,
            ..engine
        };
        let left = resting(bytes).adopted_by(1).of_a_script(has_a_script);
        let pid = s.add(engine, until(death, working(bytes).sm(30.0), left));
        s.add(server, until(death, resting(0).cpu(20.0).unlisted(), gone()));
        s.expect_finding("orphan", pid, ALSO);
    }),
    family("orphan_workers_of_an_engine", "A surviving engine's workers hold memory.", |s| {
        let (bytes, death) = (s.gib(4.0, 14.0), death(s));
        let server = s.server("vllm serve m -tp 2", Some("vllm"));
        let (engine, front) = (s.random.whole(3_000, 400_000) as u32, server.pid);
        for rank in 0..2 {
            let worker = Process {
                ppid: Some(engine),
                command: argv(&format!("VLLM::Worker_TP{rank}")),
                ..s.child(&server)
            };
            let pid = s.add(worker, until(death, working(bytes / 2).sm(30.0), resting(bytes / 2)));
            s.edit_each(move |t, snapshot| {
                let (ppid, is_left) = if t < death { (front, false) } else { (1, true) };
                if let Some(worker) =
                    snapshot.processes.iter_mut().find(|process| process.pid == pid)
                {
                    worker.parent = Some(Arc::new(Parent {
                        pid: engine,
                        command: argv("VLLM::EngineCore"),
                        ppid: Some(ppid),
                        parent_is_reaper: Some(is_left),
                        ..Parent::default()
                    }));
                }
            });
            s.expect_finding("orphan", pid, ALSO);
        }
    }),
    family("orphan_after_its_work", "A finished job under nohup does not exit.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 14.0), s.long_idle());
        let process = without_shell(s, process);
        let pid =
            s.add(process, until(stop, working(bytes).adopted_by(1), resting(bytes).adopted_by(1)));
        s.expect_finding("orphan", pid, ALSO);
    }),
    family("orphan_of_a_dead_parent_that_is_listed", "Workers keep the memory.", |s| {
        let (parent, bytes, death) = (s.trainer(), s.gib(3.0, 14.0), death(s));
        for _ in 0..2 {
            let worker = s.child(&parent);
            let idle = resting(0).unlisted();
            let pid = s.add(worker, until(death, idle.cpu(70.0), idle.cpu(0.0).adopted_by(1)));
            // NVML attributes the memory to the dead pid, but it is freed only when the workers exit.
            s.allow(pid, &["orphan"]);
            s.labels.kill_ok.insert(pid, true);
        }
        let dead = s.add(parent, until(death, working(bytes), resting(bytes).missing()));
        s.expect_finding("dead", dead, &["idle", "orphan"]);
    }),
];

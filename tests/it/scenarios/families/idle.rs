//! Processes that hold memory without using the GPU.

use super::*;

/// Adds a process that works until `stop`, and then is idle.
fn stops(s: &mut Stage, process: Process, bytes: u64, stop: f64) {
    let (level, cpu) = (s.random.range(40.0, 95.0), s.random.range(0.0, 2.0));
    let pid = s.add(process, until(stop, working(bytes).sm(level), resting(bytes).cpu(cpu)));
    s.expect_finding("idle", pid, &[]);
}

/// Adds a process with a number of GiB in this range that works, and then is idle for long.
fn stops_within(s: &mut Stage, process: Process, low: f64, high: f64) {
    let (bytes, stop) = (s.gib(low, high), s.long_idle());
    stops(s, process, bytes, stop);
}

fn trainer_stops(s: &mut Stage, low: f64, high: f64) {
    let process = s.trainer();
    stops_within(s, process, low, high);
}

pub const FAMILIES: &[Family] = &[
    family("idle_notebook_after_training", "A notebook trained, and keeps its model.", |s| {
        let (kernel, bytes, stop) = (s.notebook(), s.gib(3.0, 20.0), s.long_idle());
        let pid = s.add(kernel, move |t, _| match t < stop {
            true => working(bytes).notebook("busy", t),
            false => resting(bytes).notebook("idle", stop),
        });
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_script_holding_model", "A script has finished its work and waits forever.", |s| {
        trainer_stops(s, 1.3, 20.0);
    }),
    family("idle_under_a_supervisor", "A supervisor or scheduler owns it.", |s| {
        let (owner, variable) = s.random.pick(&[
            ("/usr/bin/python3 /usr/bin/supervisord -n", "SUPERVISOR_PROCESS_NAME"),
            ("runsv llm", "RC_SVCNAME"),
            ("/opt/pbs/sbin/pbs_mom", "PBS_JOBID"),
            ("/usr/bin/nomad executor x", "NOMAD_JOB_ID"),
        ]);
        let parent = Parent { pid: 70, command: argv(owner), ..Parent::default() };
        let environment = [(variable.into(), "llm".into())].into();
        let process = Process {
            supervisor: Some(Arc::new(parent)),
            supervisor_is_roots: Some(s.random.chance(0.5)),
            environment: Some(Arc::new(environment)),
            ..s.trainer()
        };
        stops_within(s, process, 1.3, 20.0);
    }),
    family("idle_that_listens", "Its socket is a tool's own, or never had a client.", |s| {
        let port = s.random.whole(1_024, 60_000);
        let (words, address) = s.random.pick(&[
            ("python prepare_dask.py", "tcp:0.0.0.0:8787"),
            ("python /opt/pycharm/helpers/pydev/pydevconsole.py", "tcp:[::]:PORT"),
            ("julia /home/b/.julia/packages/Malt/x/src/worker.jl", "tcp:[::]:PORT"),
            ("/usr/local/MATLAB/R2026a/bin/glnxa64/MATLAB", "tcp:0.0.0.0:PORT"),
            (
                "java org.apache.spark.executor.YarnCoarseGrainedExecutorBackend",
                "tcp:10.0.0.3:PORT",
            ),
            ("python explore.py", "tcp:127.0.0.1:PORT"),
            ("python explore.py", "tcp:[::1]:PORT"),
        ]);
        let has_client = s.random.chance(0.5) && !words.ends_with("explore.py");
        let addresses: Arc<[Arc<str>]> = [address.replace("PORT", &port.to_string()).into()].into();
        let process = Process {
            listening: Some(true),
            client_addresses: Some(if has_client { addresses.clone() } else { [].into() }),
            listening_on: Some(addresses),
            ..s.user_process(words)
        };
        stops_within(s, process, 1.3, 20.0);
    }),
    family("idle_beside_its_server", "It is connected to an idle or foreign server.", |s| {
        let is_others = s.random.chance(0.5);
        let addresses: Arc<[Arc<str>]> = ["tcp:127.0.0.1:8000".into()].into();
        let trainer = Process { connected_to: Some(addresses.clone()), ..s.trainer() };
        let uid = trainer.uid.map(|uid| uid + u32::from(is_others));
        let server = Process {
            uid,
            user: if is_others { Some("other".into()) } else { trainer.user.clone() },
            listening_on: Some(addresses.clone()),
            client_addresses: Some(addresses),
            ..s.server("vllm serve m", Some("vllm"))
        };
        let (bytes, stop) = (s.share(0.2, 0.4), s.long_idle());
        stops(s, trainer, bytes, stop);
        let held = s.share(0.3, 0.5);
        let rests = if is_others { working(held) } else { resting(held) };
        s.add(server, until(stop, working(held), rests));
    }),
    family("idle_small_workers", "Workers of one job, each with little memory.", |s| {
        let (parent, stop) = (s.user_process("python3 pool.py"), s.long_idle());
        for _ in 0..s.random.whole(4, 9) {
            let (worker, bytes) = (s.child(&parent), s.mib(300, 450));
            let pid = s.add(worker, until(stop, working(bytes).sm(8.0), resting(bytes)));
            s.expect_finding("idle", pid, &[]);
        }
    }),
    family("idle_shared_gpu", "One process idles while another keeps the same GPU busy.", |s| {
        trainer_stops(s, 2.0, 5.0);
        let (other, held) = (s.trainer(), s.gib(2.0, 6.0));
        s.add(other, move |_, _| working(held).sm(92.0));
    }),
    family("idle_by_the_device", "Only the use of the whole GPU is known: none.", |s| {
        s.machine.has_process_use = false;
        trainer_stops(s, 2.0, 12.0);
    }),
    family("idle_on_several_gpus", "It has stopped using all of its GPUs.", |s| {
        let count = s.random.pick(&[2, 4]);
        s.gpus(count);
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.long_idle());
        let gpus: Vec<usize> = (0..count).collect();
        let pid = s.add_on(process, &gpus, until(stop, working(bytes), resting(bytes)));
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_since_it_was_loaded", "It loads a model and never uses it.", |s| {
        s.minutes(35.0, 60.0);
        let start = s.at(0.15, 0.3);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
        let process = s.started_at(process, start);
        let loading = s.random.range(40.0, 120.0);
        let pid = s.add(process, move |t, _| {
            let loaded = (t - start) / loading;
            match loaded {
                ..0.0 => gone(),
                ..1.0 => working(GIB / 2 + (bytes as f64 * loaded) as u64).sm(4.0).cpu(100.0),
                _ => resting(bytes),
            }
        });
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_with_a_heartbeat", "A thread logs every few seconds.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 20.0), s.long_idle());
        let cpu = s.random.range(3.0, 12.0);
        let pid = s.add(process, until(stop, working(bytes), resting(bytes).cpu(cpu)));
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_with_lost_samples", "Samples are lost, once two in a row.", |s| {
        s.lost = 0.06;
        trainer_stops(s, 2.0, 20.0);
        s.edit(|snapshots, _| {
            let third_last = snapshots.len() - 8;
            snapshots.drain(third_last..third_last + 2);
        });
    }),
    family("idle_from_the_beginning", "It was idle before the recording began.", |s| {
        s.minutes(20.0, 40.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        stops(s, process, bytes, -1.0);
    }),
    family("idle_preallocated_notebook", "An idle notebook took most of the GPU.", |s| {
        let (mut kernel, bytes, stop) = (s.notebook(), s.share(0.75, 0.93), s.long_idle());
        kernel.framework = Some(s.random.pick(&["tensorflow", "jax"]).into());
        let pid = s.add(kernel, move |t, _| match t < stop {
            true => working(bytes).sm(30.0).notebook("busy", t),
            false => resting(bytes).notebook("idle", stop + 3.0),
        });
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_twice", "Two processes on one GPU are idle, and a third one works.", |s| {
        for _ in 0..2 {
            trainer_stops(s, 1.5, 3.0);
        }
        let (other, held) = (s.trainer(), s.gib(2.0, 4.0));
        s.add(other, move |_, _| working(held).sm(88.0));
    }),
    family("idle_with_hiccups", "The driver reports no utilization in single samples.", |s| {
        trainer_stops(s, 2.0, 20.0);
        s.edit(|snapshots, _| {
            for snapshot in snapshots.iter_mut().skip(7).step_by(29) {
                for gpu in &mut snapshot.gpus {
                    gpu.gpu_percent = None;
                    for row in gpu.processes.iter_mut().flatten() {
                        row.sm_percent = None;
                        row.memory_percent = None;
                    }
                }
            }
        });
    }),
    family("idle_offline_batch", "vLLM without a socket has finished its batch.", |s| {
        let (mut process, bytes, stop) = (s.trainer(), s.share(0.6, 0.9), s.long_idle());
        process.framework = Some("vllm".into());
        process.command = argv("python offline_batch.py --input prompts.jsonl");
        stops(s, process, bytes, stop);
    }),
    family("idle_in_a_container", "A container's process, seen from the host, is idle.", |s| {
        let process = s.trainer();
        let process = s.in_container(process);
        stops_within(s, process, 2.0, 20.0);
    }),
    family("idle_in_a_slurm_job", "A batch job has finished its work but does not exit.", |s| {
        let process = s.trainer();
        let process = s.in_slurm_job(process);
        stops_within(s, process, 2.0, 20.0);
    }),
    family("idle_notebook_of_an_unknown_server", "It may be waiting for input.", |s| {
        let (kernel, bytes, stop) = (s.notebook(), s.gib(2.0, 20.0), s.long_idle());
        s.add(kernel, until(stop, working(bytes), resting(bytes).cpu(1.0)));
    }),
    family("idle_seen_every_two_seconds", "An idle process sampled every two seconds.", |s| {
        s.minutes(22.0, 25.0);
        s.every(2.0);
        trainer_stops(s, 2.0, 20.0);
    }),
    family("idle_after_a_late_burst", "It worked in bursts with pauses of minutes.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 20.0), s.long_idle());
        let pid = s.add(process, move |t, _| {
            if t < stop && t % 420.0 < 200.0 { working(bytes) } else { resting(bytes) }
        });
        s.expect_finding("idle", pid, &[]);
    }),
    family("idle_row_without_memory_for_a_moment", "Its memory is unknown at times.", |s| {
        trainer_stops(s, 2.0, 20.0);
        s.edit(|snapshots, _| {
            for snapshot in snapshots.iter_mut().rev().skip(3).step_by(31) {
                for row in
                    snapshot.gpus.iter_mut().flat_map(|gpu| gpu.processes.iter_mut().flatten())
                {
                    row.used_bytes = None;
                }
            }
        });
    }),
];

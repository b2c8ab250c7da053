//! Normal processes that start, exit, sleep, stop and share a GPU.

use super::*;

pub const FAMILIES: &[Family] = &[
    family("stopped_for_a_minute", "Resumed after at most a minute and a half.", |s| {
        s.every(10.0);
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(70.0, 400.0));
        let pause = s.random.range(40.0, 85.0);
        s.add(process, during(at..at + pause, resting(bytes).state('T'), working(bytes)));
    }),
    family("stopped_again_and_again", "A CPU limiter stops it for half a minute at a time.", |s| {
        s.minutes(12.0, 20.0);
        s.every(5.0);
        let (process, bytes, every) = (s.trainer(), s.share(0.2, 0.7), s.random.range(60.0, 130.0));
        s.add(process, move |t, _| match t % every < 30.0 {
            true => resting(bytes).state('T'),
            false => working(bytes),
        });
    }),
    family("stopped_without_memory", "A stopped process that no longer holds GPU memory.", |s| {
        let (process, at) = (s.user_process("python monitor.py"), s.at(0.2, 0.4));
        let idle = resting(0).unlisted();
        s.add(process, until(at, idle, idle.state('T')));
    }),
    family("short_sleeps_on_nfs", "Waits for a slow file system in one of three samples.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let mut turn = 0;
        s.add(process, move |_, _| {
            turn += 1;
            if turn % 3 == 0 { working(bytes).sm(30.0).state('D') } else { working(bytes) }
        });
    }),
    family("a_minute_on_the_disk", "Uninterruptible for a minute and a half.", |s| {
        s.every(10.0);
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(90.0, 400.0));
        s.add(process, during(at..at + 85.0, resting(bytes).state('D'), working(bytes)));
    }),
    family("zombie_for_a_sample", "It exits, and is a zombie until its parent reaps it.", |s| {
        s.every(10.0);
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.at(0.5, 0.9));
        s.add(
            process,
            phases([(at, working(bytes)), (at + 10.0, resting(bytes).state('Z'))], gone()),
        );
    }),
    family("missing_for_a_sample", "NVML lists it in one sample after its exit.", |s| {
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.at(0.5, 0.9));
        let interval = s.interval();
        s.add(
            process,
            phases([(at, working(bytes)), (at + interval, resting(bytes).missing())], gone()),
        );
    }),
    family("dying_at_the_end", "It becomes a zombie in the last sample.", |s| {
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.end() - s.interval() * 0.7);
        s.add(process, until(at, working(bytes), resting(bytes).state('Z')));
    }),
    family("pid_reuse", "An idle process exits, and a new one gets its pid.", |s| {
        s.minutes(25.0, 45.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
        let (stop, at) = (s.before_end(900.0, 1100.0), s.before_end(200.0, 480.0));
        let next = s.trainer();
        let next = s.started_at(Process { pid: process.pid, ..next }, at);
        s.add(process, phases([(stop, working(bytes)), (at, resting(bytes))], gone()));
        s.add(next, until(at, gone(), resting(bytes)));
    }),
    family("container_namespace", "In a container, NVML's pids are foreign.", |s| {
        s.machine.host.pid_namespace = Some(PidNamespace::Container);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 5.0));
        s.add(process, move |_, _| working(bytes));
        let (stranger, held) = (s.trainer(), s.gib(2.0, 5.0));
        s.add(stranger, move |_, _| resting(held).missing());
        let gpu = s.gpu;
        s.add_unattributed(gpu, move |_| held);
    }),
    family("empty_container", "No process is visible; other tenants fill the GPU.", |s| {
        s.is_lonely = true;
        s.machine.host.pid_namespace = Some(PidNamespace::Container);
        let (gpu, bytes) = (s.gpu, s.gib(4.0, 12.0));
        s.add_unattributed(gpu, move |_| bytes);
    }),
    family("below_a_gibibyte", "It is idle, but holds too little to report.", |s| {
        let (process, stop) = (s.trainer(), s.long_idle());
        let bytes = s.mib(500, 860);
        s.add(process, until(stop, working(bytes), resting(bytes)));
    }),
    family("context_only", "A notebook that only imported the framework.", |s| {
        let (kernel, bytes) = (s.notebook(), s.mib(280, 600));
        s.add(kernel, move |_, _| resting(bytes).notebook("idle", -5000.0));
    }),
    family("came_minutes_ago", "It started a few minutes before the end, and is loading.", |s| {
        let start = s.before_end(150.0, 480.0);
        let process = s.trainer();
        let (process, bytes) = (s.started_at(process, start), s.gib(2.0, 12.0));
        s.add(process, until(start, gone(), resting(bytes)));
    }),
    family("recorded_for_five_minutes", "The recording is too short for an idle finding.", |s| {
        s.minutes(4.0, 8.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
        s.add(process, move |_, _| resting(bytes));
    }),
    family("idle_for_some_minutes", "It has not used the GPU for seven or eight minutes.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(300.0, 490.0));
        s.add(process, until(stop, working(bytes), resting(bytes)));
    }),
    family("went_and_freed", "It finished, and all its memory was freed.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.at(0.3, 0.7));
        s.add(process, until(at, working(bytes), gone()));
    }),
    family("idle_then_back", "Idle for twenty minutes, then working again.", |s| {
        s.minutes(45.0, 60.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(60.0, 400.0));
        s.add(process, during(at - 1200.0..at, resting(bytes), working(bytes)));
    }),
    family("a_desktop", "Xorg and a compositor hold a GiB and rarely draw.", |s| {
        for (words, low, high) in
            [("/usr/lib/xorg/Xorg vt2", 600, 640), ("/usr/bin/gnome-shell", 80, 150)]
        {
            let process = s.daemon(words, "gdm.service");
            let (bytes, gpu) = (s.random.whole(low, high) * 2 * MIB, s.gpu);
            s.add_of_kind(ProcessType::Graphics, process, &[gpu], move |_, _| {
                resting(bytes).cpu(1.0)
            });
        }
    }),
    family("small_workers_beside_one_at_work", "A job's workers keep their contexts.", |s| {
        let parent = s.user_process("python3 pool.py");
        for _ in 0..s.random.whole(3, 8) {
            let (worker, bytes) = (s.child(&parent), s.mib(300, 450));
            s.add(worker, move |_, _| resting(bytes));
        }
        let (worker, bytes) = (s.child(&parent), s.gib(2.0, 9.0));
        s.add(worker, move |_, _| working(bytes));
    }),
    family("small_workers_of_several_jobs", "Each belongs to its own job.", |s| {
        for _ in 0..s.random.whole(3, 6) {
            let (worker, bytes) = (s.trainer(), s.mib(300, 450));
            s.add(worker, move |_, _| resting(bytes));
        }
    }),
    family("video_that_no_row_reports", "Only the GPU's decoder is reported.", |s| {
        for _ in 0..2 {
            let (process, bytes) = (s.trainer(), s.gib(1.5, 4.0));
            s.add(process, move |_, _| resting(bytes));
        }
        let percent = s.random.whole(1, 60) as u32;
        match s.random.chance(0.5) {
            true => s.edit_scenario_gpu(move |_, gpu| gpu.decoder_percent = Some(percent)),
            false => s.edit_scenario_gpu(move |_, gpu| gpu.jpeg_percent = Some(percent)),
        }
    }),
    family("compiles_elsewhere_at_its_start", "It waits for a compilation, then works.", |s| {
        s.minutes(40.0, 60.0);
        let (start, bytes) = (s.random.range(60.0, 300.0), s.gib(2.0, 20.0));
        let begins = start + s.random.range(780.0, 1500.0);
        let process = s.trainer();
        let process = s.started_at(process, start);
        s.add(process, phases([(start, gone()), (begins, resting(bytes))], working(bytes)));
    }),
    family("kernels_of_other_languages", "Kernels of Julia, R and C++ that run a cell.", |s| {
        let words = s.random.pick(&[
            "/opt/julia/bin/julia -i /p/IJulia/src/kernel.jl /run/kernel-1.json",
            "/usr/lib/R/bin/exec/R --no-echo -e IRkernel::main() --args /run/kernel-1.json",
            "/opt/conda/bin/xcpp -f /run/kernel-1.json -std=c++17",
        ]);
        let kernel = Process { command: argv(words), ..s.notebook() };
        let (bytes, stop) = (s.gib(2.0, 12.0), s.long_idle());
        s.add(kernel, move |t, _| match t < stop {
            true => working(bytes).notebook("busy", t),
            // The cell computes on the CPU.
            false => resting(bytes).cpu(100.0).notebook("busy", stop),
        });
    }),
    family("virtual_machines", "A hypervisor's virtual machines with vGPUs, idle for long.", |s| {
        let (words, file) = s.random.pick(&[
            ("vgpu", "/usr/bin/nvidia-vgpu-mgr"),
            ("/usr/lib64/xen/bin/vgpu --domain=3", "/usr/lib64/xen/bin/vgpu"),
            ("/usr/lib/vmware/bin/vmware-vmx box.vmx", "/usr/lib/vmware/bin/vmware-vmx"),
        ]);
        for _ in 0..s.random.whole(1, 3) {
            let process = s.daemon(words, "nvidia-vgpu-mgr.service");
            let environment = Some(Arc::default());
            let process = Process { executable: Some(file.into()), environment, ..process };
            let (bytes, stop, gpu) = (s.gib(2.0, 6.0), s.long_idle(), s.gpu);
            let activity = until(stop, working(bytes), resting(bytes));
            s.add_of_kind(ProcessType::ComputeGraphics, process, &[gpu], activity);
        }
    }),
    family("unsaved_work_on_a_display", "A program with a window computes.", |s| {
        let words = s.random.pick(&["blender scene.blend", "chrome --type=gpu-process", "code"]);
        let display = s.random.pick(&[("DISPLAY", ":0"), ("WAYLAND_DISPLAY", "wayland-1")]);
        let environment = [(display.0.into(), display.1.into())].into_iter().collect();
        let process = s.user_process(words);
        let process = Process { environment: Some(Arc::new(environment)), ..process };
        let (bytes, stop, gpu) = (s.gib(1.5, 6.0), s.long_idle(), s.gpu);
        let activity = until(stop, working(bytes), resting(bytes));
        s.add_of_kind(ProcessType::ComputeGraphics, process, &[gpu], activity);
    }),
    family("rank_zero_validates", "The other ranks wait in a collective.", |s| {
        s.minutes(50.0, 70.0);
        let count = s.random.pick(&[2, 4, 8]);
        s.gpus(count);
        let (bytes, at) = (s.gib(4.0, 30.0), s.before_end(900.0, 1300.0));
        let launcher = s.user_process("torchrun --nproc_per_node 8 train.py");
        let on_gpu = s.random.chance(0.5);
        for gpu in 0..count {
            let rank = s.child(&launcher);
            s.add_on(rank, &[gpu], move |t, _| match (t < at, gpu) {
                (true, _) => working(bytes).sm(94.0),
                (false, 0) if on_gpu => working(bytes).sm(60.0),
                (false, 0) => resting(bytes).cpu(100.0),
                (false, _) => spinning(bytes),
            });
        }
    }),
    family("clients_of_mps", "Their use is attributed to the MPS server.", |s| {
        let words = "nvidia-cuda-mps-server";
        let server = Process { listening: Some(false), ..s.daemon(words, "mps.service") };
        s.add(server, |_, _| working(30 * MIB).sm(70.0).cpu(5.0));
        let gpu = s.gpu;
        for _ in 0..2 {
            let (client, bytes) = (s.trainer(), s.gib(1.5, 3.0));
            s.add_of_kind(ProcessType::Mps, client, &[gpu], move |_, _| resting(bytes).cpu(9.0));
        }
    }),
    family("workers_of_a_living_trainer", "Only their trainer uses the GPU.", |s| {
        let (parent, bytes) = (s.trainer(), s.share(0.2, 0.7));
        for _ in 0..3 {
            let worker = s.child(&parent);
            s.add(worker, |_, _| resting(0).unknown_bytes().cpu(70.0));
        }
        s.add(parent, move |_, _| working(bytes));
    }),
    family("workers_of_a_restarted_trainer", "The old workers exit late.", |s| {
        s.every(10.0);
        let (parent, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.at(0.4, 0.8));
        let worker = s.child(&parent);
        let idle = resting(0).unknown_bytes();
        let ends = [(at, idle.cpu(70.0)), (at + 30.0, idle.adopted_by(1))];
        s.add(worker, phases(ends, gone()));
        s.add(parent, until(at, working(bytes), gone()));
        let next = s.trainer();
        let next = s.started_at(next, at + 40.0);
        s.add(next, until(at + 40.0, gone(), working(bytes)));
    }),
    family("in_a_debugger", "Its owner has stopped it in a debugger.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.long_idle());
        let pid = s.add(process, until(at, working(bytes), resting(bytes).state('t')));
        s.allow(pid, &["idle", "stopped"]);
    }),
    family("server_that_nohup_kept", "vLLM without its shell waits for requests.", |s| {
        let words = "vllm serve m --port 8000";
        let process = s.server(words, Some("vllm"));
        let process = without_shell(s, process);
        let bytes = s.share(0.5, 0.9);
        let pid = s.add(process, move |_, _| resting(bytes).adopted_by(1));
        s.allow(pid, &["orphan"]);
    }),
    family("freed_some_minutes_ago", "It is idle, and freed memory minutes ago.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(4.0, 12.0), s.long_idle());
        let freed = s.before_end(120.0, 450.0);
        let ends = [(stop, working(bytes)), (freed, resting(bytes))];
        let pid = s.add(process, phases(ends, resting(bytes / 4 * 2)));
        // An idle finding is allowed but not expected, because freeing memory counts as activity.
        s.allow(pid, &["idle"]);
        s.labels.kill_ok.insert(pid, true);
    }),
    family("stopped_for_long_and_resumed", "Stopped for twenty minutes.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(100.0, 500.0));
        s.add(process, during(at - 1200.0..at, resting(bytes).state('T'), working(bytes)));
    }),
    family("stuck_and_saved", "In the driver for ten minutes, then working again.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(100.0, 500.0));
        s.add(process, during(at - 600.0..at, resting(bytes).state('D'), working(bytes)));
    }),
    family("zombie_that_was_reaped", "A zombie for ten minutes, then reaped.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(100.0, 500.0));
        s.add(
            process,
            phases([(at - 600.0, working(bytes)), (at, resting(bytes).state('Z'))], gone()),
        );
    }),
    family("orphans_that_left", "Workers outlived their trainer by ten minutes.", |s| {
        s.minutes(40.0, 60.0);
        let (parent, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(100.0, 500.0));
        for _ in 0..2 {
            let worker = s.child(&parent);
            let idle = resting(0).unknown_bytes();
            let ends = [(at - 600.0, idle.cpu(70.0)), (at, idle.adopted_by(1))];
            s.add(worker, phases(ends, gone()));
        }
        s.add(parent, until(at - 600.0, working(bytes), gone()));
    }),
    family("orphaned_just_now", "Its shell was closed a minute ago.", |s| {
        s.minutes(15.0, 30.0);
        s.every(10.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(30.0, 85.0));
        let process = without_shell(s, process);
        s.add(process, until(at, working(bytes), resting(bytes).adopted_by(1)));
    }),
];

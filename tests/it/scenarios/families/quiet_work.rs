//! Work that looks like waste: pauses, waiting, light and heavy kernels, power caps, and thermal throttling.

use super::*;

/// Adds a server that listens and receives no request.
fn add_unused_server(s: &mut Stage, words: &str, framework: Option<&str>) {
    let (process, bytes) = (s.server(words, framework), s.share(0.3, 0.9));
    let cpu = s.random.range(0.2, 4.0);
    s.add(process, move |_, _| resting(bytes).cpu(cpu));
}

/// Adds work during which the power limit is lowered to a share in this range, and the clock to `mhz`.
fn add_power_cap(s: &mut Stage, share: [f64; 2], mhz: u32) {
    let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(800.0, 1400.0));
    s.add(process, move |_, _| working(bytes).sm(98.0).load(1.1));
    let cap = s.random.range(share[0], share[1]);
    s.edit_scenario_gpu(move |t, gpu| {
        if t > at {
            let limit = gpu.power_limit_watts.unwrap_or(300.0) * cap;
            gpu.power_limit_watts = Some(limit.round());
            gpu.power_watts = gpu.power_watts.map(|watts| watts.min((limit * 9.9).round() / 10.0));
            gpu.sm_clock_mhz = Some(mhz);
        }
    });
}

pub const FAMILIES: &[Family] = &[
    family("steady_training", "Constant work.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.95));
        s.add(process, move |_, _| working(bytes).sm(92.0));
    }),
    family("dataloader_stall", "Data loading on the CPU delays the GPU.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let stall = s.before_end(200.0, 480.0);
        s.add(process, until(stall, working(bytes), resting(bytes).cpu(400.0)));
    }),
    family("long_cpu_phase", "A CPU phase of twenty minutes, while the GPU waits.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let (begin, cpu) = (s.before_end(1000.0, 1500.0), s.random.range(60.0, 1200.0));
        s.add(process, until(begin, working(bytes), resting(bytes).cpu(cpu)));
    }),
    family("single_core_preprocessing", "Tokenization takes a third of a core.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, begin) =
            (s.trainer(), s.share(0.2, 0.7), s.before_end(1000.0, 1500.0));
        let cpu = s.random.range(30.0, 60.0);
        s.add(process, until(begin, working(bytes), resting(bytes).cpu(cpu)));
    }),
    family("checkpoint_pauses", "It writes checkpoints for three minutes.", |s| {
        let (process, bytes, every) =
            (s.trainer(), s.share(0.2, 0.7), s.random.range(500.0, 900.0));
        let pause = s.random.range(100.0, 200.0);
        s.add(process, move |t, random| {
            if t % every < every - pause {
                working(bytes)
            } else if random.chance(0.5) {
                resting(bytes).cpu(15.0).state('D')
            } else {
                resting(bytes).cpu(15.0)
            }
        });
    }),
    family("low_duty_inference", "A request every few minutes.", |s| {
        let (process, bytes, every) = (s.trainer(), s.gib(2.0, 20.0), s.random.range(120.0, 420.0));
        let mut next = 0.0;
        s.add(process, move |t, _| {
            if t >= next {
                next = t + every;
                working(bytes).sm(12.0).cpu(10.0)
            } else {
                resting(bytes)
            }
        });
    }),
    family("federated_client", "It waits longer for each round.", |s| {
        s.minutes(90.0, 150.0);
        s.every(15.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        // The first pause is shorter than the duration in the rule.
        let (mut pause, mut next, mut stop) = (s.random.range(300.0, 540.0), 200.0, 0.0);
        s.add(process, move |t, random| {
            if t >= next {
                stop = t + random.range(40.0, 120.0);
                next = stop + pause;
                pause *= random.range(1.0, 1.4);
            }
            if t < stop { working(bytes).sm(60.0) } else { resting(bytes).cpu(0.5) }
        });
    }),
    family("pipe_before_it", "The previous program in the pipe prepares data on the CPU.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.long_idle());
        let (cpu, pid) = (s.random.range(40.0, 400.0), process.pid);
        s.add(process, until(stop, working(bytes), resting(bytes).cpu(0.3)));
        s.edit_process(pid, move |t, process| {
            process.descendants = Some(Arc::new(Descendants {
                count: Some(0),
                cpu_percent: Some(cpu),
                cpu_seconds: Some(t * cpu / 100.0),
                ..Descendants::default()
            }));
        });
    }),
    family("light_use_without_end", "One or two percent utilization, all the time.", |s| {
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        s.add(process, move |_, random| {
            resting(bytes).sm(random.range(1.0, 2.5)).traffic(0.0).cpu(3.0)
        });
    }),
    family("video_transcoding", "Only the video encoder works.", |s| {
        let process =
            s.user_process("ffmpeg -hwaccel cuda -i rtsp://camera -c:v h264_nvenc out.mp4");
        let (bytes, level) = (s.gib(1.3, 3.0), s.random.whole(20, 70) as u32);
        let pid = s.add(process, move |_, _| resting(bytes).cpu(12.0));
        s.edit_each(move |_, snapshot| {
            for row in snapshot.gpus.iter_mut().flat_map(|gpu| gpu.processes.iter_mut().flatten()) {
                if row.pid == pid {
                    row.encoder_percent = Some(level);
                    row.decoder_percent = Some(level / 2);
                }
            }
        });
    }),
    family("thinking_notebook", "Its user reads and tries something every few minutes.", |s| {
        let (kernel, bytes, every) = (s.notebook(), s.gib(2.0, 20.0), s.random.range(200.0, 460.0));
        s.add(kernel, move |t, _| {
            let since = t % every;
            if since < 25.0 {
                working(bytes).sm(40.0).notebook("busy", t)
            } else {
                resting(bytes).notebook("idle", t - since + 25.0)
            }
        });
    }),
    family("notebook_active_without_gpu", "Its user plots on the CPU.", |s| {
        let (kernel, bytes, stop) = (s.notebook(), s.gib(2.0, 20.0), s.before_end(900.0, 1500.0));
        let last = s.before_end(60.0, 460.0);
        s.add(kernel, move |t, _| {
            if t < stop {
                working(bytes).notebook("busy", t)
            } else {
                resting(bytes)
                    .cpu(2.0)
                    .notebook("idle", if t < last { t - t % 120.0 } else { last })
            }
        });
    }),
    family("notebook_busy_on_the_cpu", "A cell computes on the CPU for half an hour.", |s| {
        let (kernel, bytes, stop) = (s.notebook(), s.gib(2.0, 20.0), s.before_end(900.0, 1500.0));
        s.add(kernel, move |t, _| match t < stop {
            true => working(bytes).notebook("busy", t),
            false => resting(bytes).cpu(100.0).notebook("busy", stop),
        });
    }),
    family("vllm_never_used", "vLLM listens and gets no request.", |s| {
        add_unused_server(
            s,
            "python -m vllm.entrypoints.openai.api_server --model m",
            Some("vllm"),
        );
    }),
    family("triton_waits", "Triton listens and gets no request.", |s| {
        add_unused_server(s, "tritonserver --model-repository=/models --http-port=8000", None);
    }),
    family("ollama_kept_alive", "Ollama keeps a model loaded forever.", |s| {
        add_unused_server(s, "/usr/bin/ollama runner --model /m --port 39311", Some("llama.cpp"));
    }),
    family("llama_server_waits", "llama-server listens and gets no request.", |s| {
        add_unused_server(s, "/opt/llama.cpp/llama-server -m m.gguf", Some("llama.cpp"));
    }),
    family("text_generation_waits", "A text generation server gets no request.", |s| {
        add_unused_server(s, "text-generation-server serve m --port 3000", Some("tgi"));
    }),
    family("download_with_the_model_loaded", "It reads and writes files.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.long_idle());
        let (rate, pid) = (s.random.range(3e6, 40e6), process.pid);
        s.add(process, until(stop, working(bytes), resting(bytes).cpu(4.0)));
        s.edit_process(pid, move |t, process| {
            // gpumem reads this value only twice a minute.
            process.io_bytes = Some(((t / 30.0).floor() * 30.0 * rate) as u64);
        });
    }),
    family("engine_of_a_container", "Its server, pid 1, adopts orphans and waits.", |s| {
        let words = s.random.pick(&["vllm serve m --port 8000", "python -m app"]);
        let front = s.server(words, Some("vllm"));
        let front = s.in_container(Process { namespace_pid: Some(1), ..front });
        let bytes = s.share(0.3, 0.9);
        let (leads_its_group, child) = (s.random.chance(0.5), s.child(&front));
        let starter = Parent { pid: front.pid, command: argv(words), ..Parent::default() };
        let listener = Relative {
            pid: front.pid,
            start_ticks: front.start_ticks,
            relation: Relation::Cgroup,
            command: argv(words),
            working_directory: None,
            listening_on: ["tcp:0.0.0.0:8000".into()].into(),
            client_addresses: Some([].into()),
        };
        let engine = Process {
            command: argv(s.random.pick(&["VLLM::EngineCore", "sglang::scheduler"])),
            process_group: if leads_its_group { Some(child.pid) } else { child.process_group },
            parent: leads_its_group.then(|| Arc::new(starter)),
            listening_relatives: Some([listener].into()),
            parent_is_reaper: Some(true),
            namespace_pid: Some(s.random.whole(40, 900) as u32),
            ..child
        };
        s.add(engine, move |_, _| resting(bytes));
        s.add(front, move |_, _| resting(0).unlisted());
    }),
    family("engine_of_a_listening_server", "Its parent, the API server, listens.", |s| {
        let words = "python -m vllm.entrypoints.openai.api_server --model m --port 8000";
        let api = s.server(words, Some("vllm"));
        let engine = s.child(&api);
        let (engine, bytes) =
            (Process { command: argv("VLLM::EngineCore"), ..engine }, s.share(0.5, 0.9));
        s.add(engine, move |_, _| resting(bytes).cpu(3.0));
        s.add(api, |_, _| resting(0).cpu(1.0).unlisted());
    }),
    family("listens_where_clients_may_be", "An unknown program may have clients.", |s| {
        let port = s.random.whole(1_024, 32_000);
        let (words, address) = s.random.pick(&[
            ("python app.py", "tcp:0.0.0.0:PORT"),
            ("/opt/rank/engine", "tcp:10.0.0.3:PORT"),
            ("python app.py", "unix:/run/app/app.sock"),
            ("python app.py --port PORT", "tcp:127.0.0.1:PORT"),
        ]);
        let fill = |text: &str| text.replace("PORT", &port.to_string());
        let process = Process {
            listening_on: Some([fill(address).into()].into()),
            client_addresses: Some([].into()),
            ..s.server(&fill(words), None)
        };
        let (bytes, stop) = (s.gib(2.0, 12.0), s.long_idle());
        s.add(process, until(stop, working(bytes), resting(bytes)));
    }),
    family("answers_clients", "An unknown program had a client from elsewhere.", |s| {
        let port = s.random.whole(1_024, 60_000);
        let address = s.random.pick(&["127.0.0.1", "0.0.0.0", "[::1]", "10.0.0.3"]);
        let addresses: Arc<[Arc<str>]> = [format!("tcp:{address}:{port}").into()].into();
        let process = Process {
            listening_on: Some(addresses.clone()),
            client_addresses: Some(addresses),
            ..s.server("python app.py", None)
        };
        let (bytes, stop) = (s.gib(2.0, 12.0), s.long_idle());
        s.add(process, until(stop, working(bytes), resting(bytes)));
    }),
    family("waits_for_its_server", "The engine of a trainer's server works.", |s| {
        let port = s.random.whole(1_024, 60_000);
        let address = s.random.pick(&["127.0.0.1", "0.0.0.0", "[::]", "10.0.0.3"]);
        let addresses: Arc<[Arc<str>]> = [format!("tcp:{address}:{port}").into()].into();
        let trainer = Process { connected_to: Some(addresses.clone()), ..s.trainer() };
        let front = Process {
            uid: trainer.uid,
            user: trainer.user.clone(),
            listening_on: Some(addresses.clone()),
            ..s.server("python -m vllm.entrypoints.openai.api_server", Some("vllm"))
        };
        let listener = Relative {
            pid: front.pid,
            start_ticks: front.start_ticks,
            relation: Relation::Ancestor,
            command: front.command.clone(),
            working_directory: None,
            listening_on: addresses.clone(),
            client_addresses: Some(addresses),
        };
        let engine = Process {
            command: argv("VLLM::EngineCore"),
            listening_relatives: Some([listener].into()),
            ..s.child(&front)
        };
        let (bytes, engine_bytes, stop) = (s.share(0.2, 0.4), s.share(0.3, 0.5), s.long_idle());
        s.add(trainer, until(stop, working(bytes), resting(bytes)));
        s.add(engine, until(stop, resting(engine_bytes), working(engine_bytes)));
        s.add(front, |_, _| resting(0).unlisted());
    }),
    family("served_in_a_container", "vLLM waits in a container, seen from the host.", |s| {
        let words = "python3 -m vllm.entrypoints.openai.api_server --model m";
        let process = s.server(words, Some("vllm"));
        let (process, bytes) = (s.in_container(process), s.share(0.6, 0.9));
        s.add(process, move |_, _| resting(bytes).cpu(3.0));
    }),
    family("nohup_active", "Training under nohup, adopted by init.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let process = without_shell(s, process);
        s.add(process, move |_, _| working(bytes).adopted_by(1));
    }),
    family("nohup_with_short_pauses", "Under nohup, with pauses of a minute.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let every = s.random.range(200.0, 500.0);
        s.every(15.0);
        s.add(process, move |t, _| {
            let pauses = t % every < 60.0 && t > 100.0;
            if pauses {
                resting(bytes).cpu(120.0).adopted_by(1)
            } else {
                working(bytes).adopted_by(1)
            }
        });
    }),
    family("daemon_with_a_living_leader", "A service leads its own group.", |s| {
        let process = s.daemon("/opt/app/worker --gpu", "worker.service");
        let bytes = s.share(0.2, 0.6);
        s.add(process, move |t, _| {
            if t % 300.0 < 100.0 { working(bytes).sm(50.0) } else { resting(bytes).cpu(8.0) }
        });
    }),
    family("in_tmux", "A job in tmux, whose server was adopted by init.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.7));
        let process =
            Process { terminal: Some("pts/7".into()), session_leader_alive: Some(true), ..process };
        s.add(process, move |_, _| working(bytes));
    }),
    family("power_cap_lowered", "To a little more than half; the work continues.", |s| {
        add_power_cap(s, [0.52, 0.62], 960);
    }),
    family("power_cap_lowered_far", "To a third; memory traffic continues.", |s| {
        add_power_cap(s, [0.28, 0.33], 540);
        s.edit_scenario_gpu(|_, gpu| {
            if gpu.sm_clock_mhz == Some(540) {
                gpu.memory_percent = gpu.memory_percent.map(|percent| percent / 2);
            }
        });
    }),
    family("thermal_slowdown", "The GPU is too hot, so clocks and power drop.", |s| {
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(800.0, 1400.0));
        s.add(process, move |_, _| working(bytes).sm(98.0));
        let share = s.random.range(0.5, 0.65);
        s.edit_scenario_gpu(move |t, gpu| {
            if t > at {
                gpu.temperature_celsius = Some(91);
                gpu.sm_clock_mhz = Some(780);
                gpu.power_watts =
                    gpu.power_watts.map(|watts| (watts * share * 10.0).round() / 10.0);
            }
        });
    }),
    family("light_kernels_from_the_start", "Full use at low power from the start.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.1, 0.5));
        let load = s.random.range(0.08, 0.2);
        s.add(process, move |_, _| working(bytes).sm(100.0).load(load).traffic(0.05));
    }),
    family("memory_bound_phase", "Full use at 60 % of the power, much traffic.", |s| {
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(800.0, 1400.0));
        let load = s.random.range(0.5, 0.62);
        s.add(process, move |t, _| {
            let busy = working(bytes).sm(98.0);
            if t < at { busy } else { busy.load(load).traffic(0.9) }
        });
    }),
    family("low_power_for_some_minutes", "Synchronisation for six minutes.", |s| {
        let (process, bytes, at) = (s.trainer(), s.share(0.2, 0.7), s.before_end(200.0, 400.0));
        s.add(
            process,
            until(at, working(bytes).sm(97.0), working(bytes).sm(100.0).load(0.1).traffic(0.02)),
        );
    }),
    family("the_heavy_one_leaves", "The light process continues at full use.", |s| {
        let (light, heavy) = (s.trainer(), s.trainer());
        let (bytes, held, at) = (s.gib(2.0, 5.0), s.gib(2.0, 6.0), s.before_end(800.0, 1400.0));
        s.add(light, move |_, _| working(bytes).sm(100.0).load(0.12).traffic(0.1));
        s.add(heavy, until(at, working(held).sm(96.0), gone()));
    }),
    family("works_on_another_gpu", "It holds a small context on this one.", |s| {
        s.gpus(2);
        let (process, bytes) = (s.trainer(), s.share(0.2, 0.6));
        let (main, other) = (s.gpu, 1 - s.gpu);
        let small = s.mib(240, 580);
        let pid = s.add_on(process, &[main, other], move |_, _| working(bytes));
        s.edit_each(move |_, snapshot| {
            let gpu = &mut snapshot.gpus[other];
            for row in gpu.processes.iter_mut().flatten().filter(|row| row.pid == pid) {
                *row = GpuProcess {
                    used_bytes: Some(small),
                    sm_percent: row.sm_percent.map(|_| 0),
                    memory_percent: row.memory_percent.map(|_| 0),
                    ..*row
                };
            }
            gpu.gpu_percent = Some(0);
            gpu.memory_percent = Some(0);
            gpu.power_watts = Some(50.0);
            if let Some(memory) = &mut gpu.memory {
                let usable = memory.used_bytes + memory.free_bytes;
                memory.used_bytes = small + 12 * MIB;
                memory.free_bytes = usable - memory.used_bytes;
            }
        });
    }),
    family("hung_and_recovered", "A collective waited fifteen minutes.", |s| {
        s.minutes(45.0, 60.0);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(100.0, 500.0));
        s.add(
            process,
            during(
                at - 900.0..at,
                working(bytes).sm(100.0).load(0.1).traffic(0.0),
                working(bytes).sm(95.0),
            ),
        );
    }),
    family("preallocated_and_hardly_used", "JAX took most of the GPU.", |s| {
        let (mut process, bytes) = (s.trainer(), s.share(0.75, 0.92));
        process.framework = Some("jax".into());
        s.add(process, move |_, _| working(bytes).sm(6.0).cpu(30.0));
    }),
    family("full_to_the_last_and_busy", "It has taken almost all memory, and works.", |s| {
        let (process, free) = (s.trainer(), s.mib(120, 240));
        let model = &s.machine.model;
        let bytes = model.total_bytes - model.reserved_bytes - free;
        s.add(process, move |_, _| working(bytes).sm(96.0));
    }),
    family("nearly_full_and_busy", "It fills nearly the whole GPU, and works.", |s| {
        let (process, bytes) = (s.trainer(), s.share(0.95, 0.96));
        s.add(process, move |_, _| working(bytes).sm(96.0));
    }),
];

//! Processes with owners and command lines, but not their activity.

use std::sync::Arc;

use gpumem::api::model::{Container, Jupyter, Process, Slurm};

use super::stage::Stage;

const USERS: &[(&str, u32)] = &[
    ("alice", 1001),
    ("bao", 1002),
    ("chidi", 1003),
    ("dora", 1004),
    ("emre", 1005),
    ("fatima", 1006),
    ("goran", 1007),
    ("hana", 1008),
];

const SCRIPTS: &[&str] = &[
    "train.py",
    "main.py",
    "finetune.py",
    "train_ddp.py",
    "src/fit.py",
    "diffusion/train_unet.py",
    "experiments/resnet.py",
    "pretrain_gpt.py",
];

const PYTHONS: &[&str] = &["/usr/bin/python3.11", "/opt/conda/bin/python3.10"];

const NOTEBOOKS: &[&str] = &["course/hw4.ipynb", "Untitled7.ipynb", "thesis/ablation.ipynb"];

pub fn argv(words: &str) -> Option<Arc<[Arc<str>]>> {
    Some(words.split(' ').map(Arc::from).collect())
}

/// Processes without their activity. [`Stage::add`] sets the start time.
impl Stage {
    /// Returns a process of a random user. The stage sets `start_time`.
    pub fn user_process(&mut self, words: &str) -> Process {
        let (user, uid) = self.random.pick(USERS);
        let pid = self.random.whole(3_000, 4_190_000) as u32;
        let has_terminal = self.random.chance(0.4);
        let parent = self.random.whole(2_000, 4_190_000) as u32;
        Process {
            pid,
            ppid: Some(parent),
            process_group: Some(pid),
            session: Some(if has_terminal { parent } else { pid }),
            parent_is_reaper: Some(false),
            group_leader_alive: Some(true),
            session_leader_alive: Some(true),
            uid: Some(uid),
            user: Some(user.into()),
            command: argv(words),
            executable: Some(self.random.pick(PYTHONS).into()),
            rss_bytes: Some(self.random.whole(1 << 30, 9 << 30)),
            threads: Some(self.random.pick(&[27, 38, 52, 74, 113])),
            terminal: has_terminal.then(|| format!("pts/{}", self.random.whole(0, 20)).into()),
            listening: Some(false),
            framework: Some("pytorch".into()),
            ..Process::default()
        }
    }

    pub fn trainer(&mut self) -> Process {
        let script = self.random.pick(SCRIPTS);
        let config = self.random.hex(4);
        let seed = self.random.whole(1, 99);
        let words = format!("python {script} --config configs/{config}.yaml --seed {seed}");
        self.user_process(&words)
    }

    /// Returns a notebook kernel. The execution state comes from its activity.
    pub fn notebook(&mut self) -> Process {
        let kernel = self.random.uuid();
        let process = self.trainer();
        let user = process.user.clone().unwrap_or_default();
        let file = format!("/home/{user}/.local/share/jupyter/runtime/kernel-{kernel}.json");
        Process {
            session: Some(process.pid),
            terminal: None,
            listening: Some(true),
            command: argv(&format!("/opt/conda/bin/python3 -m ipykernel_launcher -f {file}")),
            jupyter: Some(Arc::new(Jupyter {
                kernel_id: Some(kernel.into()),
                connection_file: Some(file.into()),
                server_url: Some("http://127.0.0.1:8888/".into()),
                notebook_path: Some(self.random.pick(NOTEBOOKS).into()),
                connections: Some(0),
                ..Jupyter::default()
            })),
            ..process
        }
    }

    pub fn server(&mut self, words: &str, framework: Option<&str>) -> Process {
        Process {
            terminal: None,
            listening: Some(true),
            framework: framework.map(Arc::from),
            ..self.user_process(words)
        }
    }

    /// Returns a child in the process group and session of its parent.
    pub fn child(&mut self, parent: &Process) -> Process {
        Process {
            pid: self.random.whole(3_000, 4_190_000) as u32,
            ppid: Some(parent.pid),
            process_group: Some(parent.pid),
            session: parent.session,
            listening: Some(false),
            threads: Some(3),
            ..parent.clone()
        }
    }

    pub fn daemon(&mut self, words: &str, unit: &str) -> Process {
        let process = self.user_process(words);
        let program = words.split(' ').next().unwrap_or_default();
        Process {
            ppid: Some(1),
            session: Some(process.pid),
            parent_is_reaper: Some(true),
            uid: Some(0),
            user: Some("root".into()),
            executable: Some(program.into()),
            rss_bytes: Some(2 << 20),
            threads: Some(1),
            terminal: None,
            framework: None,
            systemd_unit: Some(unit.into()),
            ..process
        }
    }

    pub fn in_container(&mut self, process: Process) -> Process {
        Process {
            container: Some(Arc::new(Container {
                runtime: Some(self.random.pick(&["docker", "containerd", "podman"]).into()),
                id: Some(self.random.hex(64).into()),
                ..Container::default()
            })),
            terminal: None,
            ..process
        }
    }

    pub fn in_slurm_job(&mut self, process: Process) -> Process {
        Process {
            slurm: Some(Arc::new(Slurm {
                job_id: Some(self.random.whole(10_000, 999_999).to_string().into()),
                step_id: Some("batch".into()),
                ..Slurm::default()
            })),
            terminal: None,
            ..process
        }
    }
}

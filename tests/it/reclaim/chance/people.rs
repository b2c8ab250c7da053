//! Random families: processes, activity, and reactions to SIGTERM.

use std::collections::BTreeMap;

use crate::scenarios::random::Random;

const NOBODY: u32 = 65534;

/// A process and its children.
#[derive(Default)]
struct Part {
    words: Vec<String>,
    children: Vec<Part>,
}

impl Part {
    fn word(mut self, words: impl AsRef<str>) -> Self {
        let words = words.as_ref().split(' ');
        self.words.extend(words.map(str::to_owned));
        self
    }

    fn word_if(self, condition: bool, word: &str) -> Self {
        if condition { self.word(word) } else { self }
    }

    fn with(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own_word| own_word == word)
    }

    fn text(&self) -> String {
        let children = self.children.iter().map(Self::text);
        let words: Vec<String> = self.words.iter().cloned().chain(children).collect();
        format!("({})", words.join(" "))
    }
}

/// The families that live on the machine at the same time.
#[derive(Default)]
pub struct Population {
    /// Requests to the spawner, one per family.
    pub requests: Vec<String>,
    /// Ids of processes that are alive when the population is complete.
    pub stays: Vec<i64>,
    /// Ids of processes that have exited when the population is complete.
    pub gone: Vec<i64>,
    /// For each process that NVML lists, the GPU.
    pub listed: BTreeMap<i64, u32>,
    /// For each process, the index of the request that created it.
    pub family: BTreeMap<i64, usize>,
    next: i64,
}

impl Population {
    pub fn new(random: &mut Random, families: usize) -> Self {
        let mut population = Self::default();
        while population.requests.len() < families {
            match random.whole(0, 9) {
                0..=2 => population.add_login(random),
                3..=4 => population.add_run(random),
                5 => {
                    let has_port = random.chance(0.5);
                    population.add_ranks_of(random, "100", has_port);
                }
                6 => population.add_orphaned_loaders(random),
                7 => population.add_supervisor(random),
                8 => population.add_daemon(random),
                _ => population.add_job_without_owner(random),
            }
        }
        population
    }

    fn add_request(&mut self, part: &Part) {
        self.note(part);
        self.requests.push(part.text());
    }

    fn note(&mut self, part: &Part) {
        let id = part.words.iter().find_map(|word| word.strip_prefix("id="));
        let id = id.unwrap().parse().unwrap();
        let list = if part.has("gone") { &mut self.gone } else { &mut self.stays };
        list.push(id);
        self.family.insert(id, self.requests.len());
        part.children.iter().for_each(|child| self.note(child));
    }

    fn part(&mut self) -> Part {
        self.next += 1;
        Part::default().word(format!("id={}", self.next))
    }

    fn shell(&mut self, random: &mut Random) -> Part {
        let is_gone = random.chance(0.6);
        self.part().word("exe=bash argv=-bash session stay").word_if(is_gone, "gone")
    }

    /// Adds a program that holds a GPU and has data loaders.
    fn job(&mut self, random: &mut Random, environment: &str) -> Part {
        let id = self.next + 1;
        let gpu = u32::from(random.chance(0.3));
        let keep = match random.chance(0.08) {
            true => "GPUMEM_KEEP=forever",
            false => "HOME=/",
        };
        let mut part = self
            .part()
            .word(format!("argv=python3,train-{id}.py gpu={gpu}"))
            .word(format!("env={environment}{keep}"));
        if random.chance(0.85) {
            self.listed.insert(id, gpu);
        }
        let reactions = ["die", "die", "die", "stay", "stay", "attach", "attach_kept", "detach"];
        part = part.word(random.pick(&reactions));
        // A stopped process needs a separate session, because the kernel continues stopped processes when their
        // process group becomes orphaned.
        part = part.word_if(random.chance(0.06), "session stop");
        part = part.word_if(random.chance(0.15), "fork=40");
        if random.chance(0.4) {
            for _ in 0..random.whole(1, 4) {
                let reaction = random.pick(&["die", "stay"]);
                let child = self.part().word(reaction);
                // NVML lists this worker.
                if random.chance(0.15) {
                    self.listed.insert(self.next, gpu);
                }
                part = part.with([child]);
            }
        }
        // Pid 1 adopts a helper in a separate session.
        if random.chance(0.25) {
            let helper = self.part().word("session daemon die");
            part = part.with([helper]);
        }
        part
    }

    /// Adds a login with jobs. In most cases, the login has ended.
    fn add_login(&mut self, random: &mut Random) {
        let mut shell = self.shell(random);
        // The children of a script are in the script's process group.
        let is_interactive = random.chance(0.7);
        for _ in 0..random.whole(1, 3) {
            let job = self.job(random, "");
            shell = shell.with([job.word_if(is_interactive, "group")]);
        }
        self.add_request(&shell);
    }

    /// Adds a distributed run. The launcher can have exited.
    fn add_run(&mut self, random: &mut Random) {
        let is_mpi = random.chance(0.3);
        let (argv, size) = match is_mpi {
            true => ("mpirun,-np,2,python3,train.py", random.whole(2, 4)),
            false => ("python3,/usr/bin/torchrun,train.py", random.whole(2, 3)),
        };
        let mut launcher = self
            .part()
            .word(format!("argv={argv}"))
            .word(random.pick(&["die", "stay"]))
            .word(random.pick(&["session", "group"]))
            .word_if(random.chance(0.15), "gone");
        let id = random.pick(&["100", "none", "mine"]);
        let port = random.chance(0.5);
        for rank in 0..size {
            let environment = match is_mpi {
                true => format!("OMPI_COMM_WORLD_RANK={rank},"),
                false => torch(id, rank, port),
            };
            let rank = self.job(random, &environment);
            launcher = launcher.with([rank.word_if(random.chance(0.4), "session")]);
        }
        self.add_request(&launcher);
        if random.chance(0.3) {
            self.add_ranks_of(random, id, port);
        }
    }

    fn add_ranks_of(&mut self, random: &mut Random, id: &str, port: bool) {
        let mut launcher =
            self.part().word("argv=python3,/usr/bin/torchrun,train.py session die gone");
        for rank in 0..random.whole(1, 2) {
            let rank = self.job(random, &torch(id, rank + 1, port));
            launcher = launcher.with([rank.word_if(random.chance(0.4), "session")]);
        }
        self.add_request(&launcher);
    }

    fn add_orphaned_loaders(&mut self, random: &mut Random) {
        let mut trainer = self
            .part()
            .word("argv=python3,trainer.py gpu=0 die gone")
            .word(random.pick(&["session", "group"]));
        for _ in 0..random.whole(1, 4) {
            let worker = self.part().word(random.pick(&["die", "stay", "detach"]));
            self.listed.insert(self.next, 0);
            trainer = trainer.with([worker]);
        }
        self.add_request(&trainer);
    }

    /// Adds a loop that restarts its job.
    fn add_supervisor(&mut self, random: &mut Random) {
        let shell = self.shell(random);
        let mut script = self
            .part()
            .word("exe=bash argv=bash,again.sh restart")
            .word(random.pick(&["die", "stay"]))
            .word_if(random.chance(0.5), "group");
        script = script.with([self.job(random, "")]);
        self.add_request(&shell.with([script]));
    }

    fn add_daemon(&mut self, random: &mut Random) {
        let job = self.job(random, "");
        self.add_request(&job.word("session daemon"));
    }

    fn add_job_without_owner(&mut self, random: &mut Random) {
        let mut job = self.job(random, "").word("session");
        if rustix::process::geteuid().is_root() && may_become_others() {
            job = job.word(format!("uid={NOBODY}"));
        }
        self.add_request(&job);
    }
}

/// Returns whether processes can change to other users. In a user namespace, other users' ids can be unmapped.
fn may_become_others() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = map.split_whitespace().nth(2);
    count.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 65534))
}

fn torch(id: &str, rank: u64, has_port: bool) -> String {
    let port = if has_port { "MASTER_PORT=29500," } else { "" };
    format!("RANK={rank},WORLD_SIZE=4,TORCHELASTIC_RUN_ID={id},{port}")
}

//! Tests over a fake /proc and cgroup.

use std::fs;

use super::*;
use crate::host::Holders;
use crate::host::testing::{FakeProc, StatLine};
use crate::model::process::{Container, Slurm};

struct Fake {
    proc: FakeProc,
    around: Surroundings,
    holders: Holders,
    now_ns: u64,
}

impl Fake {
    fn new() -> Self {
        let proc = FakeProc::new();
        Self {
            around: Surroundings::new(proc.roots.clone()),
            holders: Holders::new(proc.roots.clone()),
            proc,
            now_ns: VALID_NS,
        }
    }

    /// A process that holds this socket.
    fn process(&self, pid: u32, ppid: u32, session: u32, socket: u64) {
        self.proc.stat(pid, &StatLine { ppid, session, ..StatLine::ASLEEP });
        self.proc.put(pid, "cmdline", format!("program{pid}\0-x\0"));
        self.proc.link(pid, "ns/net", "net:[1]");
        self.proc.link(pid, "fd/3", format!("socket:[{socket}]"));
        let lines: String = [8, 9]
            .iter()
            .map(|inode| format!("0: 0100007F:1F9{inode} 0:0 0A 0:0 0:0 0 0 0 {inode} 1\n"))
            .collect();
        self.proc.put(pid, "net/tcp", format!("heading\n{lines}"));
    }

    fn relatives(&mut self, process: &Process) -> Vec<(u32, Relation, String)> {
        self.around.begin(self.now_ns);
        self.holders.look_at_parents(self.now_ns);
        self.holders.fill_descendants(&mut [], |_| None, self.now_ns);
        let mut processes = [process.clone()];
        self.around.fill_relatives(&mut processes, self.holders.tree(), self.now_ns);
        let relatives = processes[0].listening_relatives.clone().unwrap();
        relatives
            .iter()
            .map(|it| {
                assert_eq!(*it.command.as_ref().unwrap()[0], *format!("program{}", it.pid));
                (it.pid, it.relation, it.listening_on.join(" "))
            })
            .collect()
    }
}

fn process(pid: u32) -> Process {
    Process { pid, start_ticks: Some(7), session: Some(70), ..Process::default() }
}

#[test]
fn those_of_its_line_and_of_its_session_are_looked_at() {
    let mut fake = Fake::new();
    // A terminal's server, a shell, a listening front end, the process, its listening child.
    fake.process(60, 1, 60, 8);
    fake.process(70, 60, 70, 1);
    fake.process(71, 70, 70, 8);
    fake.process(72, 71, 70, 1);
    fake.process(73, 72, 73, 9);
    fake.process(74, 70, 70, 9);
    let (eight, nine) = ("tcp:127.0.0.1:8088", "tcp:127.0.0.1:8089");
    assert_eq!(
        fake.relatives(&process(72)),
        [(71, Relation::Ancestor, eight.to_owned()), (73, Relation::Descendant, nine.to_owned()),]
    );
    // It is read again after half a minute, not before.
    fs::remove_file(fake.proc.proc.join("71/fd/3")).unwrap();
    fake.now_ns += VALID_NS - 1;
    assert_eq!(fake.relatives(&process(72)).len(), 2);
    fake.now_ns += 1;
    assert_eq!(fake.relatives(&process(72)), [(73, Relation::Descendant, nine.to_owned())]);
    // Another process with the number.
    let other = Process { start_ticks: Some(8), ..process(72) };
    assert_eq!(fake.relatives(&other).len(), 1);
    let unknown = Process { pid: 72, ..Process::default() };
    let mut processes = [unknown];
    fake.around.fill_relatives(&mut processes, fake.holders.tree(), fake.now_ns);
    assert_eq!(processes[0].listening_relatives, None);
}

#[test]
fn an_ancestor_is_looked_at_where_their_session_is_of_another_namespace() {
    let mut fake = Fake::new();
    // Their session began outside; a server above began its own here.
    fake.process(60, 1, 60, 8);
    fake.process(70, 60, 0, 1);
    fake.process(71, 70, 0, 8);
    fake.process(72, 71, 0, 1);
    let outside = Process { session: None, ..process(72) };
    let relative = (71, Relation::Ancestor, "tcp:127.0.0.1:8088".to_owned());
    assert_eq!(fake.relatives(&outside), [relative]);
}

#[test]
fn the_others_of_its_service_or_container_are_looked_at() {
    let mut fake = Fake::new();
    fake.process(70, 1, 70, 1);
    fake.process(80, 1, 80, 8);
    let cgroup = "/system.slice/llm.service";
    let folder = fake.proc.root.join("sys/fs/cgroup").join(&cgroup[1..]);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cgroup.procs"), "70\n80\n99\n").unwrap();
    let of = |cgroup: &str, unit: Option<&str>| Process {
        cgroup: Some(cgroup.into()),
        systemd_unit: unit.map(Arc::from),
        ..process(70)
    };
    let unit = of(cgroup, Some("llm.service"));
    let container = Process { container: Some(Arc::new(Container::default())), ..of(cgroup, None) };
    let found = [(80, Relation::Cgroup, "tcp:127.0.0.1:8088".to_owned())];
    for process in [unit.clone(), container] {
        assert_eq!(fake.relatives(&process), found);
        fake.now_ns += VALID_NS;
    }
    let step = Process { slurm: Some(Arc::new(Slurm::default())), ..unit };
    for process in [
        of(cgroup, None),
        of(cgroup, Some("user@1000.service")),
        of(cgroup, Some("session-3.scope")),
        of("/../llm.service", Some("llm.service")),
        of("/", Some("llm.service")),
        step,
    ] {
        assert_eq!(fake.relatives(&process), [], "{:?}", process.systemd_unit);
        fake.now_ns += VALID_NS;
    }
}

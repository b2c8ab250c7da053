//! `gpumem watch` on a real pseudo-terminal: what it draws, and what it leaves behind.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use mock_nvml::scene::{Fault, Gpu, Process, Scene};

use crate::machine::{GIB, Machine, Running};
use crate::support;

/// Nothing here takes longer on a machine that is alive.
const DEADLINE: Duration = Duration::from_secs(30);

/// A program on a terminal of its own.
pub struct Terminal {
    child: Child,
    master: File,
    /// Kept open, so that the terminal's modes can be read after the program has ended.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    before: Termios,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

impl Terminal {
    /// A shell with job control, which brings a stopped gpumem back when Enter is pressed: without
    /// one nobody could, and gpumem would rightly refuse to stop.
    const SHELL: &[&str] = &[
        "bash",
        "-c",
        "set -m; \"$@\"; code=$?; while [ -n \"$(jobs -ps)\" ]; do read; fg; code=$?; done; exit $code",
        "bash",
    ];

    /// Runs a program on a terminal of its own, below a shell where one is given.
    pub fn start(shell: &[&str], program: &Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        tcsetwinsize(&slave, size(rows, columns)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // A controlling terminal has to be taken by the child itself; setsid does that for us.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(shell);
        command.arg(program.get_program()).args(program.get_args());
        support::clean_environment(&mut command);
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm-256color");
        let child = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            cells(rows),
            cells(columns),
            0,
        )));
        let (mut reader, parser) = (master.try_clone().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self {
            child,
            master,
            slave,
            screen,
            before,
        }
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub fn wait_for(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text();
            if so(&text) {
                return text;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "no {what} on the screen:\n{text}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// gpumem's pid: the last in the line of only children that begins with what was started.
    fn pid(&self) -> Pid {
        let mut parents = HashMap::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            let parent = stat[stat.rfind(')').unwrap() + 2..]
                .split(' ')
                .nth(1)
                .unwrap();
            parents.insert(parent.to_owned(), entry.file_name().into_string().unwrap());
        }
        let mut pid = self.child.id().to_string();
        while let Some(child) = parents.get(&pid) {
            pid.clone_from(child);
        }
        Pid::from_raw(pid.parse().unwrap()).unwrap()
    }

    fn state(&self) -> char {
        let stat = format!("/proc/{}/stat", self.pid().as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
    }

    pub fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "it does not end:\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The modes that a screen program changes.
    fn modes(termios: &Termios) -> (LocalModes, bool) {
        (
            termios.local_modes,
            termios
                .output_modes
                .contains(rustix::termios::OutputModes::OPOST),
        )
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave)
            .unwrap()
            .local_modes
            .contains(LocalModes::ICANON)
    }

    fn assert_restored(&self) {
        let now = tcgetattr(&self.slave).unwrap();
        assert_eq!(
            Self::modes(&now),
            Self::modes(&self.before),
            "the terminal's modes"
        );
        // What was written last may still be on its way to the parser.
        let begun = Instant::now();
        loop {
            let parser = self.screen.lock().unwrap();
            let screen = parser.screen();
            let restored = !screen.alternate_screen() && !screen.hide_cursor();
            if restored {
                return;
            }
            drop(parser);
            assert!(
                begun.elapsed() < DEADLINE,
                "still in the alternate screen, or without cursor"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Where a test failed half way.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process(self.pid(), Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn demo(rows: u16, columns: u16) -> Option<Terminal> {
    demo_in(&[], rows, columns)
}

fn demo_in(shell: &[&str], rows: u16, columns: u16) -> Option<Terminal> {
    support::find("setsid", "util-linux")?;
    let terminal = Terminal::start(
        shell,
        &support::command(&["watch", "--demo"]),
        rows,
        columns,
    );
    terminal.wait_for("demo", |text| {
        text.contains("demo") && text.contains("fine-tune")
    });
    Some(terminal)
}

#[test]
fn it_draws_the_demo_and_q_leaves_the_terminal_as_it_was() {
    let Some(mut terminal) = demo(40, 160) else {
        return;
    };
    assert!(terminal.is_raw());
    let text = terminal.text();
    assert!(text.contains("nothing can be signalled"), "{text}");
    assert!(
        text.contains("IDLE"),
        "the idle notebook is marked:\n{text}"
    );
    terminal.press("?");
    terminal.wait_for("help", |text| text.contains("leaves this help"));
    terminal.press("q");
    // q may close the help first.
    thread::sleep(Duration::from_millis(100));
    if terminal.child.try_wait().unwrap().is_none() {
        terminal.press("q");
    }
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn it_follows_a_resize_down_to_one_cell_and_back() {
    let Some(mut terminal) = demo(24, 80) else {
        return;
    };
    for (rows, columns) in [(50, 200), (1, 1), (10, 40), (30, 120)] {
        terminal
            .screen
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(cells(rows), cells(columns));
        tcsetwinsize(&terminal.master, size(rows, columns)).unwrap();
        if rows > 9 {
            terminal.wait_for("GPU", |text| text.contains("GPU") || text.contains("gpu"));
        }
    }
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn signals_end_it_with_the_terminal_restored() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let Some(mut terminal) = demo(24, 80) else {
            return;
        };
        kill_process(terminal.pid(), signal).unwrap();
        let status = terminal.end();
        let by = status
            .signal()
            .or_else(|| status.code().map(|code| code - 128));
        assert_eq!(by, Some(signal.as_raw()), "{status}");
        terminal.assert_restored();
    }
}

#[test]
fn it_stops_and_continues_like_any_program() {
    if support::find("bash", "bash").is_none() {
        return;
    }
    let Some(mut terminal) = demo_in(Terminal::SHELL, 24, 80) else {
        return;
    };
    for stop_by_key in [true, false] {
        if stop_by_key {
            terminal.press("\u{1a}");
        } else {
            kill_process(terminal.pid(), Signal::TSTP).unwrap();
        }
        let begun = Instant::now();
        while terminal.state() != 'T' {
            assert!(
                begun.elapsed() < DEADLINE,
                "it does not stop:\n{}",
                terminal.text()
            );
            thread::sleep(Duration::from_millis(20));
        }
        terminal.assert_restored();
        terminal.press("\n");
        terminal.wait_for("demo again", |text| {
            text.contains("nothing can be signalled")
        });
        assert!(terminal.is_raw());
    }
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn it_wants_a_terminal() {
    let output = support::run(&["watch", "--demo"]);
    assert_eq!(output.code, 2, "{output:?}");
    assert!(
        output.stderr.contains("terminal") && output.stderr.contains("gpumem ps"),
        "{output:?}"
    );
}

#[test]
fn it_wants_a_terminal_that_has_a_screen() {
    if support::find("setsid", "util-linux").is_none() {
        return;
    }
    let mut watch = Command::new("env");
    watch
        .arg("TERM=dumb")
        .arg(support::gpumem())
        .args(["watch", "--demo"]);
    let mut terminal = Terminal::start(&[], &watch, 24, 80);
    assert_eq!(terminal.end().code(), Some(2));
    terminal.wait_for("reason", |text| text.contains("TERM=dumb"));
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let Some(terminal) = demo(24, 80) else { return };
    let pid = terminal.pid();
    let file = terminal.slave.as_fd().try_clone_to_owned().unwrap();
    drop(file);
    kill_process(pid, Signal::HUP).unwrap();
    let mut terminal = terminal;
    terminal.end();
}

#[test]
fn a_panic_is_printed_on_a_restored_terminal() {
    const CHILD: &str = "GPUMEM_TEST_PANIC";
    if std::env::var_os(CHILD).is_some() {
        // This test, run again as the program on the terminal.
        let _ = gpumem::watch::terminal::with_screen(|_| panic!("as a bug would"));
        return;
    }
    if support::find("setsid", "util-linux").is_none() {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        "--nocapture",
        "pty::a_panic_is_printed_on_a_restored_terminal",
    ]);
    let mut terminal = Terminal::start(
        &[],
        again.env(CHILD, "1").env("RUST_BACKTRACE", "0"),
        60,
        100,
    );
    assert_ne!(terminal.end().code(), Some(0));
    terminal.assert_restored();
    terminal.wait_for("panic's message", |text| text.contains("as a bug would"));
}

#[test]
fn keys_answer_and_healthy_gpus_go_on_while_one_hangs() {
    if support::find("setsid", "util-linux").is_none() {
        return;
    }
    let child = Running::sleep();
    let scene = Scene::new()
        .gpu(Gpu::new("NVIDIA L40S"))
        .gpu(Gpu::default().process(Process::compute(child.pid(), 2 * GIB)));
    let machine = Machine::new(&scene);
    let watch = machine.command(&["watch", "--interval", "200ms"]);
    let mut terminal = Terminal::start(&[], &watch, 24, 100);
    terminal.wait_for("process", |text| {
        text.contains("sleep 600") && text.contains("2.0 GiB")
    });
    machine.play(
        &scene
            .clone()
            .fault(Fault::hang("nvmlDeviceGetPowerUsage").on(0)),
    );
    terminal.wait_for("mark at the GPU that hangs", |text| text.contains("stale"));
    let mut grown = scene.fault(Fault::hang("nvmlDeviceGetPowerUsage").on(0));
    grown.gpus[1].processes[0] = Process::compute(child.pid(), 7 * GIB);
    machine.play(&grown);
    terminal.wait_for("news of the healthy GPU", |text| text.contains("7.0 GiB"));
    terminal.press("?");
    terminal.wait_for("help", |text| text.contains("leaves this help"));
    terminal.press("\u{3}");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn the_demo_stands_still_steps_and_is_sought_through() {
    let Some(mut terminal) = demo(24, 100) else {
        return;
    };
    let clock = |text: &str| {
        let line = text.lines().next().unwrap_or_default();
        let at = line.find(" UTC")?;
        line.get(at - 8..at).map(str::to_owned)
    };
    // Its history has to be there before it is halted.
    terminal.wait_for("finding", |text| text.contains("has held"));
    terminal.press("p");
    let still = terminal.wait_for("pause", |text| text.contains("PAUSED, p plays"));
    let still = clock(&still).unwrap();
    terminal.press("[");
    let back = terminal.wait_for("step back", |text| clock(text) != Some(still.clone()));
    assert!(clock(&back).unwrap() < still, "{back}");
    terminal.press("]");
    terminal.wait_for("step on", |text| clock(text) == Some(still.clone()));
    // Back to where somebody was accused, and all the way on to the end.
    terminal.press("N");
    terminal.wait_for("finding", |text| {
        clock(text).is_some_and(|time| time < still) && text.contains("PAUSED")
    });
    terminal.press("p+++++++");
    terminal.wait_for("end", |text| text.contains(", the end"));
    terminal.press("[");
    terminal.wait_for("step back from the end", |text| text.contains("PAUSED"));
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn this_machine_stands_still_and_goes_on_with_now() {
    if support::find("setsid", "util-linux").is_none() {
        return;
    }
    let child = Running::sleep();
    let process = Process::compute(child.pid(), 2 * GIB);
    let scene = Scene::new().gpu(Gpu::default().process(process));
    let machine = Machine::new(&scene);
    let watch = machine.command(&["watch", "--interval", "200ms"]);
    let mut terminal = Terminal::start(&[], &watch, 24, 100);
    terminal.wait_for("process", |text| text.contains("2.0 GiB"));
    terminal.press("p");
    terminal.wait_for("pause", |text| text.contains("PAUSED"));
    let mut grown = scene;
    grown.gpus[0].processes[0] = Process::compute(child.pid(), 7 * GIB);
    machine.play(&grown);
    let text = terminal.wait_for("distance from now", |text| text.contains(" behind"));
    assert!(
        text.contains("2.0 GiB") && !text.contains("7.0 GiB"),
        "{text}"
    );
    terminal.press("L");
    terminal.wait_for("news", |text| text.contains("7.0 GiB"));
    terminal.press("-");
    terminal.wait_for("longer interval", |text| text.contains("every 250ms"));
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn the_stored_history_is_there_with_the_first_sample() {
    if support::find("setsid", "util-linux").is_none() {
        return;
    }
    let child = Running::sleep();
    let gpu = Gpu::default().process(Process::compute(child.pid(), 20 * GIB));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    machine.configure("[rules.idle]\nduration = \"2500ms\"\n");
    let folder = machine.path("store");
    let folder = folder.to_str().unwrap();
    let recorded = machine.run(&[
        "record",
        "--store",
        "--store-dir",
        folder,
        "--interval",
        "100ms",
        "--duration",
        "4s",
    ]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    // A second sample does not come.
    let watch = ["watch", "--interval", "1h", "--store-dir", folder];
    let mut terminal = Terminal::start(&[], &machine.command(&watch), 40, 160);
    terminal.wait_for("idle process", |text| text.contains("without using it"));
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));

    let command = machine.command(&[&watch[..], &["--no-store"]].concat());
    let mut terminal = Terminal::start(&[], &command, 40, 160);
    let text = terminal.wait_for("process", |text| text.contains("sleep 600"));
    assert!(!text.contains("without using it"), "{text}");
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

//! `gpumem watch` on a real pseudo-terminal draws its screen, and restores the terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    Action, LocalModes, OptionalActions, Termios, Winsize, tcflow, tcgetattr, tcsetattr,
    tcsetwinsize,
};

use vt100::{MouseProtocolEncoding, MouseProtocolMode};

use crate::machine::{Machine, Running, one_gpu};
use crate::procs;
use crate::support::{self, PATIENCE};

/// Start and end of a synchronized update, which a terminal shows as one frame.
const FRAME: [&[u8]; 2] = [b"\x1b[?2026h", b"\x1b[?2026l"];

/// Returns the number of trailing bytes that belong to an unfinished frame or to the start of a mark.
fn unfinished_length(bytes: &[u8]) -> usize {
    let [begin, end] = FRAME;
    let last = |mark: &[u8]| bytes.windows(mark.len()).rposition(|window| window == mark);
    match (last(begin), last(end)) {
        (Some(start), ended) if ended.is_none_or(|end| end < start) => bytes.len() - start,
        _ => (1..begin.len())
            .rev()
            .find(|&length| bytes.ends_with(&begin[..length]))
            .unwrap_or_default(),
    }
}

/// A program on a terminal.
pub struct Terminal {
    child: Child,
    master: File,
    /// While this file is open, the terminal keeps its modes even after the program has exited, so that tests can
    /// check them.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// All output so far.
    output: Arc<Mutex<Vec<u8>>>,
    before: Termios,
    /// Cleared to stop reading the output, so that the terminal's buffer becomes full.
    is_read: Arc<AtomicBool>,
    /// The state directory of the program, unless the caller has set another directory.
    _state: tempfile::TempDir,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

impl Terminal {
    /// A shell with job control that continues a stopped gpumem when Enter is pressed. gpumem does not stop without
    /// job control.
    pub const SHELL: &[&str] = &[
        "bash",
        "-c",
        "set -m; \"$@\"; code=$?; while [ -n \"$(jobs -ps)\" ]; do read; fg; code=$?; done; exit $code",
        "bash",
    ];

    /// Runs a program on a terminal, with `shell` in front of the command.
    pub fn start(shell: &[&str], program: &Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&slave, size(rows, columns)).unwrap();
        let mut before = tcgetattr(&slave).unwrap();
        // By default, Ctrl-C discards output that has not been read. On a busy machine, the test can lag behind.
        before.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&slave, OptionalActions::Now, &before).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // The child must acquire the controlling terminal, which setsid does.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(shell);
        command.arg(program.get_program()).args(program.get_args());
        support::clean_environment(&mut command);
        let state = tempfile::tempdir().unwrap();
        for (name, value) in program.get_envs() {
            match value {
                // Every program gets its own state directory.
                Some(value) if name == "STATE_DIRECTORY" && value == support::NOWHERE => {
                    command.env(name, state.path())
                }
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm-256color");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(cells(rows), cells(columns), 0)));
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, parser) = (master.try_clone().unwrap(), Arc::clone(&screen));
        let log = Arc::clone(&output);
        let is_read = Arc::new(AtomicBool::new(true));
        let reads = Arc::clone(&is_read);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            let mut pending = Vec::new();
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                while !reads.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(10));
                }
                log.lock().unwrap().extend_from_slice(&bytes[..length]);
                pending.extend_from_slice(&bytes[..length]);
                let complete = pending.len() - unfinished_length(&pending);
                let complete = pending.drain(..complete).collect::<Vec<u8>>();
                parser.lock().unwrap().process(&complete);
            }
            parser.lock().unwrap().process(&pending);
        });
        Self { child, master, slave, screen, output, before, is_read, _state: state }
    }

    pub fn set_reading(&self, is_read: bool) {
        self.is_read.store(is_read, Ordering::SeqCst);
    }

    /// Returns whether the terminal's buffer has room.
    pub fn takes_output(&self) -> bool {
        let mut polled = [PollFd::new(&self.slave, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    }

    /// Suspends output, like Ctrl-S.
    pub fn hold(&self) {
        tcflow(&self.slave, Action::OOff).unwrap();
    }

    /// Returns everything that a program can change: modes, bracketed paste, alternate screen, cursor, keypad and
    /// mouse.
    pub fn modes(&self) -> String {
        let modes = tcgetattr(&self.slave).unwrap();
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        format!(
            "{:?} {:?} {:?} {:?}\npaste {} alternate screen {} hidden cursor {} keys {} {} mouse {:?} {:?}",
            modes.input_modes,
            modes.output_modes,
            modes.control_modes,
            modes.local_modes,
            screen.bracketed_paste(),
            screen.alternate_screen(),
            screen.hide_cursor(),
            screen.application_cursor(),
            screen.application_keypad(),
            screen.mouse_protocol_mode(),
            screen.mouse_protocol_encoding(),
        )
    }

    /// Returns all output of a program that has exited.
    pub fn bytes(&self) -> Vec<u8> {
        const MARK: &[u8] = b"(end of output)";
        (&self.slave).write_all(MARK).unwrap();
        self.wait_until("end of the output", || self.output.lock().unwrap().ends_with(MARK));
        let mut bytes = self.output.lock().unwrap().clone();
        bytes.truncate(bytes.len() - MARK.len());
        bytes
    }

    pub fn bytes_written(&self) -> usize {
        self.output.lock().unwrap().len()
    }

    /// Returns the cells that were written after the first `from` bytes of output.
    pub fn written_since(&self, from: usize, rows: u16, columns: u16) -> String {
        let mut blank = vt100::Parser::new(cells(rows), cells(columns), 0);
        blank.process(&self.output.lock().unwrap()[from..]);
        blank.screen().contents()
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub fn wait_for(&self, description: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        self.wait_until(description, || {
            text = self.text();
            condition(&text)
        });
        text
    }

    /// Waits until the program has written `text` and has then ended a line. Keys that are pressed earlier are echoed
    /// into the line.
    pub fn wait_for_line(&self, text: &str) {
        self.wait_until(text, || {
            let written = self.output.lock().unwrap();
            let written = String::from_utf8_lossy(&written);
            written.contains(text) && written.ends_with('\n')
        });
    }

    fn wait_until(&self, description: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < PATIENCE,
                "no {description}; on the screen:\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.send(keys.as_bytes());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).unwrap();
    }

    /// Clicks on the first occurrence of `text`.
    pub fn click(&mut self, text: &str) {
        let screen = self.wait_for(text, |screen| screen.contains(text));
        let mut lines = screen.lines().enumerate();
        let position = lines.find_map(|(row, line)| Some((row, line.find(text)?, line)));
        let (row, offset, line) = position.unwrap_or_else(|| panic!("no {text} in\n{screen}"));
        // The column is correct only if no wide character precedes the text.
        let column = line[..offset].chars().count();
        let (x, y) = (column + 1, row + 1);
        self.press(&format!("\x1b[<0;{x};{y}M\x1b[<0;{x};{y}m"));
    }

    /// Waits until the selected row contains `word`.
    pub fn wait_for_selected(&self, word: &str) {
        let is_selected = |line: &str| line.contains('▸') && line.contains(word);
        self.wait_for("selected row", |text| text.lines().any(is_selected));
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let mut parser = self.screen.lock().unwrap();
        parser.screen_mut().set_size(cells(rows), cells(columns));
        tcsetwinsize(&self.master, size(rows, columns)).unwrap();
    }

    pub fn wait_for_stop(&self) {
        let state = || procs::state(self.pid().as_raw_nonzero().get().cast_unsigned());
        self.wait_until("stop", || state() == Some('T'));
    }

    /// Returns the pid of gpumem, which is the last process in the chain of children below the started program.
    pub fn pid(&self) -> Pid {
        let mut pid = self.child.id();
        // gpumem has one child, a helper that reads other processes' memory.
        let is_reader = |pid: &u32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.ends_with(b"\0__read\0")
        };
        while let Some(child) = procs::children(pid).into_iter().find(|pid| !is_reader(pid)) {
            pid = child;
        }
        procs::pid(pid)
    }

    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the program does not exit:\n{}", self.text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses q. Asserts that the program exits with code 0 and restores the terminal.
    pub fn quit(&mut self) {
        self.press("q");
        assert_eq!(self.wait_for_exit().code(), Some(0));
        self.assert_restored();
    }

    /// Presses Ctrl-C until the program exits, because the first Ctrl-C can close a dialog.
    pub fn interrupt_until_exit(&mut self) -> ExitStatus {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "{}", self.text());
            // Ignore the error: the program can exit first.
            let _ = self.master.write_all(b"\x03");
            thread::sleep(Duration::from_millis(50));
        }
        self.wait_for_exit()
    }

    fn screen_modes(termios: &Termios) -> (LocalModes, bool) {
        (termios.local_modes, termios.output_modes.contains(rustix::termios::OutputModes::OPOST))
    }

    pub fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    pub fn assert_restored(&self) {
        let now = tcgetattr(&self.slave).unwrap();
        assert_eq!(
            Self::screen_modes(&now),
            Self::screen_modes(&self.before),
            "the terminal's modes"
        );
        // The reading thread can lag behind the output.
        self.wait_until("restored screen, cursor, mouse and paste modes", || {
            let parser = self.screen.lock().unwrap();
            let screen = parser.screen();
            let restored = !screen.alternate_screen() && !screen.hide_cursor();
            let is_mouse_free = screen.mouse_protocol_mode() == MouseProtocolMode::None
                && screen.mouse_protocol_encoding() == MouseProtocolEncoding::Default;
            restored && is_mouse_free && !screen.bracketed_paste()
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program is still running if the test has failed.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process(self.pid(), Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Plays the short demo. Reading the whole demo takes an unoptimized gpumem seconds of CPU time.
pub fn demo(rows: u16, columns: u16) -> Terminal {
    demo_in(&[], &["--replay", support::short_demo()], rows, columns)
}

fn demo_in(shell: &[&str], replay: &[&str], rows: u16, columns: u16) -> Terminal {
    let watch = support::command(&[&["watch"], replay].concat());
    let terminal = Terminal::start(shell, &watch, rows, columns);
    terminal.wait_for("demo", |text| text.contains("fine-tune"));
    terminal
}

#[test]
fn the_demo_is_drawn_and_q_restores_the_terminal() {
    let mut terminal = demo_in(&[], &["--demo"], 40, 160);
    assert!(terminal.is_raw());
    terminal.press("?");
    terminal.wait_for("help", |text| text.contains("closes this help"));
    terminal.press("q");
    // The first q can close the help.
    thread::sleep(Duration::from_millis(100));
    if terminal.child.try_wait().unwrap().is_none() {
        terminal.press("q");
    }
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn signals_end_the_screen_and_restore_the_terminal() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = demo(24, 80);
        kill_process(terminal.pid(), signal).unwrap();
        let status = terminal.wait_for_exit();
        let signalled = status.signal().or_else(|| status.code().map(|code| code - 128));
        assert_eq!(signalled, Some(signal.as_raw()), "{status}");
        terminal.assert_restored();
    }
}

#[test]
fn the_screen_stops_and_continues() {
    or_skip!(support::find("bash", "bash"));
    let mut terminal = demo_in(Terminal::SHELL, &["--demo"], 24, 80);
    for stop_by_key in [true, false] {
        if stop_by_key {
            terminal.press("\u{1a}");
        } else {
            kill_process(terminal.pid(), Signal::TSTP).unwrap();
        }
        terminal.wait_for_stop();
        terminal.assert_restored();
        terminal.press("\n");
        terminal.wait_for("demo again", |text| text.contains("REPLAY demo"));
        assert!(terminal.is_raw());
    }
    terminal.quit();
}

#[test]
fn watch_without_a_terminal_is_a_usage_error() {
    support::run(&["watch", "--demo"]).exits(2);
}

#[test]
fn a_panic_in_any_thread_is_shown_on_a_restored_terminal() {
    const CHILD: &str = "GPUMEM_TEST_PANIC";
    if let Some(thread_name) = std::env::var_os(CHILD) {
        // The test runs itself as the program on the terminal.
        let _ = gpumem::api::watch::with_screen(true, false, |screen| {
            let fail = || panic!("a test panic");
            if thread_name == "main" {
                fail();
            }
            let _ = thread::spawn(fail).join();
            // The main thread runs until it notices the panic, and must not draw.
            let drawn = screen.draw(|canvas| {
                canvas.set_string(0, 0, "drawn", ratatui::style::Style::new());
            });
            assert!(drawn.is_ok());
            std::process::exit(3);
        });
        return;
    }
    for thread in ["main", "other"] {
        assert_panic_is_shown(CHILD, thread);
    }
}

fn assert_panic_is_shown(variable: &str, thread: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        "--nocapture",
        "pty::a_panic_in_any_thread_is_shown_on_a_restored_terminal",
    ]);
    let mut terminal =
        Terminal::start(&[], again.env(variable, thread).env("RUST_BACKTRACE", "0"), 60, 100);
    assert_ne!(terminal.wait_for_exit().code(), Some(0));
    terminal.assert_restored();
    let text = terminal.wait_for("panic message", |text| text.contains("a test panic"));
    assert!(!text.contains("drawn"), "{text}");
}

#[test]
fn the_order_of_the_table_is_restored_at_the_next_start() {
    let state = tempfile::tempdir().unwrap();
    let sleeper = Running::sleep();
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    let mut watch = machine.command(&["watch", "--no-store"]);
    watch.env("STATE_DIRECTORY", state.path());
    let mut demo = support::command(&["watch", "--demo"]);
    demo.env("STATE_DIRECTORY", state.path());
    let show = |program: &Command, mark: &'static str| {
        let terminal = Terminal::start(&[], program, 40, 160);
        terminal.wait_for(mark, |text| text.contains(mark));
        terminal
    };
    let start = |mark| show(&watch, mark);
    let mut terminal = start("MEMORY▼");
    terminal.quit();
    let count = || std::fs::read_dir(state.path()).unwrap().count();
    assert_eq!(count(), 0, "nothing was changed, so nothing is saved");
    let mut terminal = show(&demo, "MEMORY▼");
    terminal.press("oU");
    terminal.wait_for("order by user", |text| text.contains("USER▼"));
    terminal.quit();
    assert_eq!(count(), 0, "the layout of a recording is not saved");

    let mut terminal = start("MEMORY▼");
    terminal.press("oU");
    terminal.wait_for("order by user", |text| text.contains("USER▼"));
    terminal.quit();
    let mut terminal = start("USER▼");
    terminal.press("op");
    terminal.wait_for("order by pid", |text| text.contains("PID▲"));
    kill_process(terminal.pid(), Signal::TERM).unwrap();
    terminal.wait_for_exit();
    terminal.assert_restored();
    let mut terminal = start("PID▲");
    terminal.quit();
    assert_eq!(count(), 1);

    std::fs::write(state.path().join("watch.json"), b"\xff{\0").unwrap();
    let mut terminal = start("MEMORY▼");
    terminal.quit();
}

#[test]
fn bytes_that_are_not_keys_are_harmless() {
    // Unsolicited replies, a bracketed paste, invalid UTF-8, unknown and unterminated sequences, and clicks off the
    // screen.
    const STRANGE: [&[u8]; 10] = [
        b"\x1b[?62;22c\x1b[24;80R\x1b[I\x1b[O",
        b"\x1b[200~rm -rf /\r\x1b[201~",
        b"\xff\xfe\xc3\x28\xf0\x9f\x80",
        b"\x1b[999;999;999Z\x1bOZ\x1b[",
        b"\x1b]52;c;AAAA\x07\x1bPzz\x1b\\",
        b"\x1b[<0;9999;9999M\x1b[<99;0;0m\x1b[<;;M",
        b"\x1b[M\x20\xff\xff\x1b[M",
        "日本語 \u{202e} 🦀".as_bytes(),
        b"\0\x01\x02\x04\x05\x06\x07\x08\x0b\x0c\x0e",
        b"\x1b[1;5;5;5;5;5;5;5;5;5;5;5;5;5;5;5;5;5;5A",
    ];
    for bytes in STRANGE {
        let mut terminal = demo(24, 80);
        terminal.send(bytes);
        let status = terminal.interrupt_until_exit();
        assert_eq!(status.code(), Some(0), "{}", bytes.escape_ascii());
        terminal.assert_restored();
        let text = terminal.text();
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn a_storm_of_keys_is_processed_to_the_last() {
    let mut terminal = demo(24, 100);
    for _ in 0..100 {
        terminal.press(&"jkjkj\x1b[B\x1b[A><rI".repeat(10));
    }
    terminal.press("g?");
    terminal.wait_for("help", |text| text.contains("closes this help"));
    assert!(terminal.is_raw());
    assert_eq!(terminal.interrupt_until_exit().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn metrics_on_a_terminal_have_no_escape_sequences() {
    let line = concat!(
        r#"{"schema":"gpumem.snapshot/1","time":"2025-12-04T08:15:38Z","gpus":[{"index":0,"name":"\u001b[2JGPU","#,
        r#""memory":{"total_bytes":9,"used_bytes":5,"free_bytes":4},"processes":[]}],"processes":[]}"#
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    std::fs::write(&path, format!("{line}\n")).unwrap();
    let metrics = support::command(&["metrics", "--replay", path.to_str().unwrap()]);
    let mut terminal = Terminal::start(&[], &metrics, 40, 160);
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
    let bytes = String::from_utf8(terminal.bytes()).unwrap();
    assert!(bytes.contains(r"\e[2JGPU") && !bytes.contains('\u{1b}'), "{bytes}");
}

//! Reads the system calls of a program from strace's log.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use rustix::process::{Pid, test_kill_process};

/// The system calls that can signal another process, and the call that opens a pidfd.
pub const CALLS: &str =
    "pidfd_open,pidfd_send_signal,kill,tkill,tgkill,rt_sigqueueinfo,rt_tgsigqueueinfo";

/// Above every pid (`PID_MAX_LIMIT`, include/linux/threads.h).
const NO_PID: i32 = 1 << 22;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    Opened {
        pid: i64,
    },
    Sent {
        pid: i64,
        signal: String,
    },
    /// A mark that this process has written to the log.
    Mark(i32),
    /// A call that can signal a process without a pidfd, which the program must not use.
    Other(String),
}

/// A system call, and its time in microseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub at: i64,
    pub call: Call,
}

/// The unread part of the log.
pub struct Trace {
    file: File,
    rest: String,
    marks: i32,
    held: HashMap<String, i64>,
}

impl Trace {
    pub fn open(path: &Path) -> Self {
        Self {
            file: File::open(path).unwrap(),
            rest: String::new(),
            marks: 0,
            held: HashMap::new(),
        }
    }

    /// Writes a mark to the log. Returns the number of the mark.
    pub fn mark(&mut self) -> i32 {
        self.marks += 1;
        let absent = Pid::from_raw(NO_PID + self.marks).unwrap();
        assert!(test_kill_process(absent).is_err());
        self.marks
    }

    /// Returns the calls since the last call of this method.
    pub fn until_now(&mut self) -> Vec<Event> {
        let last = Call::Mark(self.mark());
        let start = Instant::now();
        let mut events = Vec::new();
        loop {
            self.file.read_to_string(&mut self.rest).unwrap();
            let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
            let lines: String = self.rest.drain(..whole).collect();
            let found = lines.lines().filter_map(|line| self.parse(line));
            events.extend(found.collect::<Vec<_>>());
            if events.last().is_some_and(|event| event.call == last) {
                return events;
            }
            assert!(start.elapsed() < crate::support::PATIENCE, "no mark: {events:?}");
        }
    }

    /// Parses `PID SECONDS.MICROSECONDS call(arguments) = result`. Returns `None` if the line does not start a call.
    fn parse(&mut self, line: &str) -> Option<Event> {
        let mut words = line.splitn(2, ' ');
        let (_, rest) = (words.next()?, words.next()?.trim_start());
        let (time, call_text) = rest.split_once(' ')?;
        let (seconds, micro) = time.split_once('.')?;
        let at = seconds.parse::<i64>().ok()? * 1_000_000 + micro.parse::<i64>().ok()?;
        if call_text.starts_with("<...")
            || call_text.starts_with("---")
            || call_text.starts_with("+++")
        {
            return None;
        }
        let (name, arguments) = call_text.split_once('(')?;
        let mut arguments = arguments.split([',', ')']).map(str::trim);
        let first = arguments.next()?;
        let second = arguments.next().unwrap_or_default().to_owned();
        let call = match name {
            "pidfd_open" => {
                let pid = first.parse().unwrap();
                if let Some((_, result)) = call_text.rsplit_once(" = ") {
                    let number = result.split('<').next().unwrap_or_default();
                    self.held.insert(number.to_owned(), pid);
                }
                Call::Opened { pid }
            }
            "pidfd_send_signal" => {
                let reported = first
                    .split_once("<pid:")
                    .and_then(|(_, pid)| pid.trim_end_matches('>').parse().ok())
                    .filter(|&pid: &i64| pid > 0);
                let number = first.split('<').next().unwrap_or_default();
                // strace does not print the pid of a pidfd whose process has exited, so use the pid from `pidfd_open`.
                match reported.or_else(|| self.held.get(number).copied()) {
                    Some(pid) => Call::Sent { pid, signal: second },
                    None => Call::Other(call_text.to_owned()),
                }
            }
            "kill" if first.parse::<i32>().is_ok_and(|pid| pid > NO_PID) => {
                Call::Mark(first.parse::<i32>().unwrap() - NO_PID)
            }
            _ => Call::Other(call_text.to_owned()),
        };
        Some(Event { at, call })
    }
}

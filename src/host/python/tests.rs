//! Interpreters that are made up, folders that are not safe, and what a script does when it is run.

use crate::model::dice::Dice;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fd::OwnedFd;

use super::interpreter::{Disarmed, Interpreter, TargetMemory};
use super::offsets::{Offsets, PythonVersion, TABLE_BYTES};
use super::script::{FileOwner, ScriptFolder, wrap};
use super::{PythonError, mapped_at};

/// Memory that is made up of some pieces; nothing else is mapped.
#[derive(Clone, Debug, Default)]
struct Pieces(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Pieces {
    fn put(&self, address: u64, bytes: &[u8]) {
        let written = self.write(address, bytes);
        if written.is_err() {
            self.0.borrow_mut().insert(address, bytes.to_vec());
        }
    }

    fn word(&self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    fn piece<T>(
        &self,
        address: u64,
        length: usize,
        each: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, PythonError> {
        let damaged = PythonError::Damaged("address");
        let mut pieces = self.0.borrow_mut();
        let (start, piece) =
            pieces.range_mut(..=address).next_back().ok_or_else(|| damaged.clone())?;
        let at = usize::try_from(address - start).map_err(|_| damaged.clone())?;
        let end = at.checked_add(length).ok_or_else(|| damaged.clone())?;
        piece.get_mut(at..end).map(each).ok_or(damaged)
    }
}

impl TargetMemory for Pieces {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), PythonError> {
        self.piece(address, into.len(), |piece| into.copy_from_slice(piece))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), PythonError> {
        self.piece(address, bytes.len(), |piece| piece.copy_from_slice(bytes))
    }
}

const RUNTIME: u64 = 0x1_0000;
const INTERPRETER: u64 = 0x2_0000;
const MAIN: u64 = 0x3_0000;
const OTHER: u64 = 0x4_0000;
/// Of 3.14.8 on x86-64.
const THREAD_BYTES: usize = 832;

/// The table as CPython 3.14.8 has it, as far as it is read: index and value.
const TABLE: [(usize, u64); 20] = [
    (0, 0x030e_08f0),
    (2, 316_616),
    (3, 784),
    (4, 808),
    (5, 225_864),
    (6, 7280),
    (7, 7272),
    (8, 7344),
    (9, 7360),
    (21, 832),
    (22, 0),
    (23, 8),
    (24, 16),
    (27, 160),
    (88, 24),
    (89, 304),
    (90, 8076),
    (91, 0),
    (92, 4),
    (93, 512),
];

fn table(changed: &[(usize, u64)]) -> Vec<u8> {
    let mut table = vec![0; TABLE_BYTES];
    table[..8].copy_from_slice(b"xdebugpy");
    for (index, value) in TABLE.iter().chain(changed) {
        let at = 8 + index * 8;
        table[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    table
}

/// An interpreter of two threads.
fn python() -> Pieces {
    let memory = Pieces::default();
    memory.put(RUNTIME, &table(&[]));
    memory.0.borrow_mut().get_mut(&RUNTIME).unwrap().resize(1024, 0);
    memory.word(RUNTIME + 808, INTERPRETER);
    memory.put(INTERPRETER, &[0; 8192]);
    memory.word(INTERPRETER + 7344, OTHER);
    memory.word(INTERPRETER + 7360, MAIN);
    memory.put(INTERPRETER + 8076, &1_u32.to_le_bytes());
    for (thread, next, number) in [(OTHER, MAIN, 78), (MAIN, 0, 77)] {
        memory.put(thread, &[0; THREAD_BYTES]);
        memory.word(thread + 8, next);
        memory.word(thread + 16, INTERPRETER);
        memory.word(thread + 160, number);
        memory.word(thread + 24, 0x0123_4567_89ab_cd02);
    }
    memory
}

#[test]
fn a_request_is_a_path_a_flag_and_one_bit_and_is_taken_back() {
    let memory = python();
    let before = memory.clone();
    let interpreter = Interpreter::read(memory, RUNTIME).unwrap();
    let threads = interpreter.threads().unwrap();
    let numbers: Vec<_> = threads.iter().map(|it| (it.native_id, it.is_main)).collect();
    assert_eq!(numbers, [(77, true), (78, false)]);
    for thread in &threads {
        assert_eq!(interpreter.is_pending(thread), Ok(false));
        interpreter.arm(thread, b"/tmp/x/release.py").unwrap();
        assert_eq!(interpreter.is_pending(thread), Ok(true));
        // Another's is not written over, and is not taken back for one's own.
        let again = interpreter.arm(thread, b"/tmp/y");
        assert_eq!(again, Err(PythonError::OtherScript));
        let foreign = interpreter.disarm(thread, b"/tmp/x/release");
        assert_eq!(foreign, Ok(Disarmed::WasTaken));
        assert_eq!(interpreter.is_pending(thread), Ok(true));
    }
    let expected = before;
    for thread in [MAIN, OTHER] {
        expected.put(thread + 304 + 4, b"/tmp/x/release.py\0");
        expected.put(thread + 304, &[1]);
        expected.word(thread + 24, 0x0123_4567_89ab_cd22);
    }
    let written = |interpreter: &Interpreter<Pieces>| format!("{interpreter:?}");
    let wanted = Interpreter::read(expected.clone(), RUNTIME).unwrap();
    assert_eq!(written(&interpreter), written(&wanted));
    for thread in &threads {
        let taken_back = interpreter.disarm(thread, b"/tmp/x/release.py");
        assert_eq!(taken_back, Ok(Disarmed::Cleared));
        let again = interpreter.disarm(thread, b"/tmp/x/release.py");
        assert_eq!(again, Ok(Disarmed::WasTaken));
    }
    for thread in [MAIN, OTHER] {
        expected.put(thread + 304, &[0]);
        expected.put(thread + 304 + 4, &[0]);
    }
    let wanted = Interpreter::read(expected, RUNTIME).unwrap();
    assert_eq!(written(&interpreter), written(&wanted));
}

#[test]
fn a_path_that_does_not_fit_is_not_written() {
    let interpreter = Interpreter::read(python(), RUNTIME).unwrap();
    let before = format!("{interpreter:?}");
    let main = interpreter.threads().unwrap()[0];
    for path in [&b""[..], &[b'x'; 512], b"a\0b"] {
        let refused = Err(PythonError::Damaged("path"));
        assert_eq!(interpreter.arm(&main, path), refused);
    }
    assert_eq!(format!("{interpreter:?}"), before);
    interpreter.arm(&main, &[b'x'; 511]).unwrap();
}

#[test]
fn a_thread_that_has_ended_is_neither_armed_nor_disarmed() {
    let memory = python();
    let interpreter = Interpreter::read(memory.clone(), RUNTIME).unwrap();
    let other = interpreter.threads().unwrap()[1];
    memory.word(INTERPRETER + 7344, MAIN);
    let interpreter = Interpreter::read(memory, RUNTIME).unwrap();
    let before = format!("{interpreter:?}");
    assert_eq!(interpreter.arm(&other, b"/x"), Err(PythonError::ThreadGone));
    assert_eq!(interpreter.disarm(&other, b"/x"), Ok(Disarmed::WasTaken));
    assert_eq!(format!("{interpreter:?}"), before);
}

#[test]
fn each_version_but_3_14_is_refused_by_its_name() {
    let version = |hex: u64| match Offsets::parse(&table(&[(0, hex)])) {
        Err(PythonError::Version(version)) => version.to_string(),
        other => panic!("{other:?}"),
    };
    for (hex, name) in [
        (0x030d_0df0, "3.13.13"),
        (0x030f_00f0, "3.15.0"),
        (0x030e_00a1, "3.14.0 before its release"),
        (0x030e_00c3, "3.14.0 before its release"),
        (0x0310_00a7, "3.16.0 before its release"),
        (0x040e_00f0, "4.14.0"),
        (0, "0.0.0 before its release"),
    ] {
        assert_eq!(version(hex), name);
    }
    let version =
        PythonError::Version(PythonVersion { major: 3, minor: 15, micro: 2, is_final: true });
    let words = "it runs CPython 3.15.2, and gpumem can attach to 3.14 only";
    assert_eq!(version.to_string(), words);
    let free = Offsets::parse(&table(&[(1, 1)]));
    assert_eq!(free, Err(PythonError::FreeThreaded));
    assert_eq!(Offsets::parse(&[]), Err(PythonError::NoInterpreter));
    assert_eq!(Offsets::parse(&[0; TABLE_BYTES]), Err(PythonError::NoInterpreter));
}

#[test]
fn an_interpreter_by_chance_is_an_error_or_ends_soon() {
    let mut dice = Dice::new(7);
    let interesting = [
        0,
        1,
        8,
        24,
        RUNTIME,
        INTERPRETER,
        MAIN,
        OTHER,
        MAIN + 8,
        1 << 40,
        u64::MAX,
        u64::MAX - 7,
        1 << 63,
    ];
    let mut readable = 0;
    for _ in 0..30_000 {
        let memory = python();
        for _ in 0..=dice.roll(3) {
            let value = match dice.roll(4) {
                0 => dice.next(),
                1 => dice.roll(9000),
                _ => interesting[dice.place(interesting.len())],
            };
            let at = match dice.roll(4) {
                0 => RUNTIME + 8 + 8 * TABLE[dice.place(TABLE.len())].0 as u64,
                1 => RUNTIME + 8 * dice.roll(120),
                2 => INTERPRETER + [7272, 7280, 7344, 7360, 8072][dice.place(5)],
                _ => [MAIN, OTHER][dice.place(2)] + 8 * dice.roll(100),
            };
            memory.word(at, value);
        }
        let Ok(interpreter) = Interpreter::read(memory, RUNTIME) else {
            continue;
        };
        let Ok(threads) = interpreter.threads() else {
            continue;
        };
        assert!(threads.len() <= 4096);
        for thread in &threads {
            let armed = interpreter.arm(thread, b"/tmp/a");
            let _ = interpreter.is_pending(thread);
            let disarmed = interpreter.disarm(thread, b"/tmp/a");
            readable += usize::from(armed.is_ok() && disarmed == Ok(Disarmed::Cleared));
        }
    }
    assert!(readable > 1000, "most of what was changed does not matter: {readable}");
}

#[test]
fn threads_in_a_circle_and_interpreters_without_end_are_refused() {
    let memory = python();
    memory.word(MAIN + 8, OTHER);
    let interpreter = Interpreter::read(memory, RUNTIME).unwrap();
    let damaged = PythonError::Damaged("list of threads");
    assert_eq!(interpreter.threads(), Err(damaged));
    let memory = python();
    memory.word(INTERPRETER + 7280, 3);
    memory.word(INTERPRETER + 7272, INTERPRETER);
    let endless = Interpreter::read(memory, RUNTIME).map(drop);
    assert_eq!(endless, Err(PythonError::Damaged("address")));
}

#[test]
fn one_that_ends_or_has_been_closed_is_not_entered() {
    let changed = |address: u64, word: u64| {
        let memory = python();
        memory.word(address, word);
        Interpreter::read(memory, RUNTIME).map(drop)
    };
    assert_eq!(changed(RUNTIME + 784, MAIN), Err(PythonError::Ending));
    let flag = INTERPRETER + 8072;
    assert_eq!(changed(flag, 0), Err(PythonError::Disabled));
    assert_eq!(changed(flag, 7 << 32), Err(PythonError::Damaged("flag")));
    assert_eq!(changed(flag, 1 << 32), Ok(()));
}

#[test]
fn a_file_is_where_its_first_mapping_is() {
    let maps = b"00400000-00401000 rw-p 00000000 08:01 7    /usr/bin/python3.14\n\
        00401000-00422000 r--p 00001000 08:01 7    /usr/bin/python3.14\n\
        7f00000000-7f00001000 r--p 00002000 08:01 8    /x/libpython3.14.so.1.0 (deleted)\n";
    let at = |path: &str, offset| mapped_at(maps, Path::new(path), offset);
    assert_eq!(at("/usr/bin/python3.14", 0), Some(0x40_0000));
    assert_eq!(at("/usr/bin/python3.14", 0x2000), Some(0x40_2000));
    assert_eq!(at("/x/libpython3.14.so.1.0", 0x2000), Some(0x7f_0000_0000));
    assert_eq!(at("/x/libpython3.14.so.1.0", 0x1000), None);
    assert_eq!(at("/x/libpython3.14.so.1.0", 0x3000), None);
    assert_eq!(at("/usr/bin/python", 0), None);
}

/// A root directory of this user's with a `/tmp` of this mode.
fn root(mode: u32) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let tmp = root.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    fs::set_permissions(tmp, fs::Permissions::from_mode(mode)).unwrap();
    root
}

fn own() -> FileOwner {
    FileOwner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn folder(root: &Path) -> Result<ScriptFolder, PythonError> {
    let root = OwnedFd::from(fs::File::open(root).unwrap());
    ScriptFolder::create(std::os::fd::AsFd::as_fd(&root), own(), "gpumem-x")
}

#[test]
fn a_script_lies_where_its_user_alone_may_write() {
    for (mode, is_safe) in
        [(0o1777, true), (0o755, true), (0o700, true), (0o777, false), (0o775, false)]
    {
        let root = root(mode);
        let made = folder(root.path());
        assert_eq!(made.is_ok(), is_safe, "{mode:o}");
        let path = root.path().join("tmp/gpumem-x");
        assert_eq!(path.exists(), is_safe);
        let Ok(made) = made else {
            continue;
        };
        assert_eq!(made.write("1").as_deref(), Ok("/tmp/gpumem-x/release.py"));
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("release.py")), 0o600);
        assert!(made.write("2").is_err(), "it is there");
        made.remove();
        assert!(!path.exists());
    }
}

#[test]
fn what_lies_there_or_leads_elsewhere_is_not_used() {
    let elsewhere = tempfile::tempdir().unwrap();
    // Where the folder is to be, there is a link, or a folder that others may write to.
    let planted = root(0o1777);
    symlink(elsewhere.path(), planted.path().join("tmp/gpumem-x")).unwrap();
    assert_eq!(folder(planted.path()).map(drop), Err(PythonError::Files(rustix::io::Errno::NOENT)));
    // /tmp is a link: the next place is tried, of which there is none.
    let linked = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), linked.path().join("tmp")).unwrap();
    assert!(folder(linked.path()).is_err());
    // The second place is as good.
    let second = root(0o777);
    fs::create_dir_all(second.path().join("var/tmp")).unwrap();
    let made = folder(second.path()).unwrap();
    assert_eq!(made.path(), "/var/tmp/gpumem-x");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn an_answer_is_a_plain_file_of_a_bounded_length() {
    let root = root(0o1777);
    let made = folder(root.path()).unwrap();
    let answer = root.path().join("tmp/gpumem-x/answer");
    assert_eq!(made.answer(), Ok(None));
    fs::write(root.path().join("secret"), "s").unwrap();
    symlink("../../secret", &answer).unwrap();
    assert_eq!(made.answer(), Err(PythonError::Answer));
    fs::remove_file(&answer).unwrap();
    fs::create_dir(&answer).unwrap();
    assert_eq!(made.answer(), Err(PythonError::Answer));
    fs::remove_dir(&answer).unwrap();
    // It has no writer: to open it must not wait.
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &answer, fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert_eq!(made.answer(), Err(PythonError::Answer));
    fs::remove_file(&answer).unwrap();
    let huge = fs::File::create(&answer).unwrap();
    huge.set_len(1 << 30).unwrap();
    assert_eq!(made.answer(), Err(PythonError::Answer));
    huge.set_len(1 << 20).unwrap();
    assert_eq!(made.answer().unwrap().unwrap().len(), 1 << 20);
    // What the user has put there beside is the user's.
    fs::write(root.path().join("tmp/gpumem-x/kept"), "").unwrap();
    made.remove();
    assert!(root.path().join("tmp/gpumem-x/kept").exists() && !answer.exists());
}

#[test]
fn the_one_who_begins_first_has_it() {
    let root = root(0o1777);
    let made = folder(root.path()).unwrap();
    assert!(!made.has_begun());
    assert_eq!(made.withdraw(), Ok(true));
    assert!(made.has_begun());
    assert_eq!(made.withdraw(), Ok(false));
}

/// Runs a script by the system's Python, twice; what it has printed, and the answer.
fn run(source: &str, deadline_ms: i64, prepare: impl Fn(&Path)) -> (String, Option<String>) {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let script = wrap(source, folder.path().to_str().unwrap(), deadline_ms);
    let path = folder.path().join("release.py");
    fs::write(&path, script).unwrap();
    let mut printed = String::new();
    for _ in 0..2 {
        let output = Command::new("python3").arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        printed.push_str(&String::from_utf8(output.stdout).unwrap());
        printed.push_str(&String::from_utf8(output.stderr).unwrap());
    }
    let left = !folder.path().join("answer.part").exists();
    assert!(left, "an answer is renamed once it is whole");
    (printed, fs::read_to_string(folder.path().join("answer")).ok())
}

#[test]
fn a_script_runs_once_in_time_and_its_failure_is_an_answer() {
    let never = |_: &Path| ();
    for (source, printed, answer) in [
        ("print('a \"b\" \\\\ ä €')\nout = {'x': 1}", "a \"b\" \\ ä €\n", r#"{"out": {"x": 1}}"#),
        ("pass", "", r#"{"out": null}"#),
        ("out = 1 / 0", "", r#"{"error": "ZeroDivisionError"}"#),
        ("out = object()", "", r#"{"error": "TypeError"}"#),
        ("raise SystemExit(3)", "", r#"{"error": "SystemExit"}"#),
        ("def", "", r#"{"error": "SyntaxError"}"#),
        ("E = type('A\"}\\n', (Exception,), {})\nraise E", "", r#"{"error": "A"}"#),
    ] {
        let ran = run(source, i64::MAX, never);
        assert_eq!(ran, (printed.to_owned(), Some(answer.to_owned())), "{source}");
    }
    let source = "print('ran')\nout = 1";
    assert_eq!(run(source, 1000, never), (String::new(), None), "it is too late");
    let withdrawn = |folder: &Path| fs::write(folder.join("begun"), "").unwrap();
    assert_eq!(run(source, i64::MAX, withdrawn), (String::new(), None));
    // Somebody has removed the folder, or planted something.
    let planted = |folder: &Path| symlink("/nowhere", folder.join("answer.part")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    planted(folder.path());
    let script = wrap(source, folder.path().to_str().unwrap(), i64::MAX);
    let output = Command::new("python3").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ran\n");
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(!folder.path().join("answer").exists());
}

#[test]
fn an_owner_is_who_opens_files() {
    let status = b"Name:\tx\nUid:\t1000\t0\t0\t1001\nGid:\t5\t6\t7\t8\nGroups:\t\n";
    assert_eq!(FileOwner::parse(status), Some(FileOwner { uid: 1001, gid: 8 }));
    for cut in [&b""[..], b"Uid:\t1\t2\t3\t4\n", b"Uid:\t1\t2\nGid:\t1\t2\t3\t4\n", b"\xff"] {
        assert_eq!(FileOwner::parse(cut), None);
    }
    own().assume().unwrap();
}

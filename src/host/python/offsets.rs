//! Where CPython keeps what a debugger may write: the table at the start of its runtime (PEP 768).
//!
//! `Include/internal/pycore_debug_offsets.h`: a cookie, the version, whether there is no global lock, then
//! groups of offsets. Which groups there are, and how long, differs from one minor version to the next, and
//! may change until a version is final: a version that is not known here is refused.

use super::PythonError;

/// As much as is read of it: of 3.14 the table ends there.
pub const TABLE_BYTES: usize = 24 + OFFSETS * 8;

/// How many offsets it has.
const OFFSETS: usize = 92;
const COOKIE: &[u8] = b"xdebugpy";
/// What no structure of an interpreter's reaches; that of 3.14's interpreters has 200 KiB.
const MOST_BYTES: u64 = 16 << 20;
/// `MAX_SCRIPT_PATH_SIZE` is 512.
const SCRIPT_PATH_BYTES: std::ops::RangeInclusive<u64> = 64..=4096;

/// A version of CPython.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonVersion {
    pub major: u8,
    pub minor: u8,
    pub micro: u8,
    /// Not a pre-release.
    pub is_final: bool,
}

impl std::fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { major, minor, micro, is_final } = self;
        let suffix = if *is_final { "" } else { " before its release" };
        write!(f, "{major}.{minor}.{micro}{suffix}")
    }
}

impl PythonVersion {
    /// From `PY_VERSION_HEX`: a byte each, then four bits of the level, 15 of a final one, and four of its
    /// number.
    fn from_hex(hex: u64) -> Option<Self> {
        let [serial, micro, minor, major] = u32::try_from(hex).ok()?.to_le_bytes();
        Some(Self { major, minor, micro, is_final: serial == 0xf0 })
    }
}

/// Offsets within the structures of one interpreter, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offsets {
    /// In the runtime: whether it ends.
    pub finalizing: u64,
    /// In the runtime: the first interpreter.
    pub interpreters_head: u64,
    /// In an interpreter: its number; the main one's is 0.
    pub id: u64,
    /// In an interpreter: the next one.
    pub next_interpreter: u64,
    /// In an interpreter: its first thread.
    pub threads_head: u64,
    /// In an interpreter: its main thread.
    pub threads_main: u64,
    /// In an interpreter: whether it lets itself be entered.
    pub remote_debugging_enabled: u64,
    /// In a thread: the next one.
    pub next: u64,
    /// In a thread: its interpreter.
    pub interpreter: u64,
    /// In a thread: what gettid(2) says.
    pub native_thread_id: u64,
    /// In a thread: what stops the evaluation of bytecode.
    pub eval_breaker: u64,
    /// In a thread: whether a script is to be run.
    pub pending: u64,
    /// In a thread: the script's path.
    pub script_path: u64,
    /// How long that may be, its NUL included.
    pub script_path_bytes: u64,
}

impl Offsets {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// Where it is none, of a version that is not known, or its numbers fit no interpreter.
    pub fn parse(table: &[u8]) -> Result<Self, PythonError> {
        let cookie = table.get(..8).ok_or(PythonError::NoInterpreter)?;
        if cookie != COOKIE {
            return Err(PythonError::NoInterpreter);
        }
        let words: Vec<u64> = table[8..]
            .chunks_exact(8)
            .filter_map(<[u8]>::first_chunk)
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        let word = |at: usize| words.get(at).copied().ok_or(PythonError::NoInterpreter);
        let hex = word(0)?;
        let version = PythonVersion::from_hex(hex).ok_or(PythonError::Damaged("version"))?;
        if !version.is_final || (version.major, version.minor) != (3, 14) {
            return Err(PythonError::Version(version));
        }
        if word(1)? != 0 {
            return Err(PythonError::FreeThreaded);
        }
        // Of 3.14: runtime 3, interpreter 16, thread 9, then 54 others and the debugger's 6.
        let (runtime, interpreter, thread) = (2, 2 + 3, 2 + 3 + 16);
        let debugger = 2 + OFFSETS - 6;
        let sizes = [word(runtime)?, word(interpreter)?, word(thread)?];
        let [runtime_bytes, interpreter_bytes, thread_bytes] = sizes;
        if sizes.iter().any(|size| *size > MOST_BYTES) {
            return Err(PythonError::Damaged("size"));
        }
        let offset = |within: u64, at: usize, bytes: u64| {
            let offset = word(at)?;
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= within);
            let is_aligned = offset.is_multiple_of(bytes.min(8));
            (fits && is_aligned).then_some(offset).ok_or(PythonError::Damaged("offset"))
        };
        let support = offset(thread_bytes, debugger + 1, 4)?;
        let (pending, script_path) = (word(debugger + 3)?, word(debugger + 4)?);
        let script_path_bytes = word(debugger + 5)?;
        let within_thread = |from: u64, bytes: u64| {
            let start = support.checked_add(from)?;
            (start.checked_add(bytes)? <= thread_bytes).then_some(start)
        };
        if !SCRIPT_PATH_BYTES.contains(&script_path_bytes) || !pending.is_multiple_of(4) {
            return Err(PythonError::Damaged("offset"));
        }
        let damaged = PythonError::Damaged("offset");
        Ok(Self {
            finalizing: offset(runtime_bytes, runtime + 1, 8)?,
            interpreters_head: offset(runtime_bytes, runtime + 2, 8)?,
            id: offset(interpreter_bytes, interpreter + 1, 8)?,
            next_interpreter: offset(interpreter_bytes, interpreter + 2, 8)?,
            threads_head: offset(interpreter_bytes, interpreter + 3, 8)?,
            threads_main: offset(interpreter_bytes, interpreter + 4, 8)?,
            remote_debugging_enabled: offset(interpreter_bytes, debugger + 2, 4)?,
            next: offset(thread_bytes, thread + 2, 8)?,
            interpreter: offset(thread_bytes, thread + 3, 8)?,
            native_thread_id: offset(thread_bytes, thread + 6, 8)?,
            eval_breaker: offset(thread_bytes, debugger, 8)?,
            pending: within_thread(pending, 4).ok_or_else(|| damaged.clone())?,
            script_path: within_thread(script_path, script_path_bytes).ok_or(damaged)?,
            script_path_bytes,
        })
    }
}

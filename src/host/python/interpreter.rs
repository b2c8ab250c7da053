//! A CPython seen from outside: its threads, and what of them a debugger may write (PEP 768).
//!
//! Everything that is read comes from the process and may be made up: pointers are checked before they are
//! followed, lists end, and nothing longer than a path is read. What is written is a path, a flag and one
//! bit, each into a thread that has just been seen in its interpreter's list. How the memory is reached is
//! in [`memory`](super::memory).

use super::PythonError;
use super::offsets::{Offsets, TABLE_BYTES};

/// More threads than this are not looked at.
const MOST_THREADS: usize = 4096;
/// More interpreters than this are not looked at.
const MOST_INTERPRETERS: usize = 256;
/// How often the list of threads is read that changes meanwhile.
const LOOKS: usize = 20;
/// The number of the one that a program starts with.
const MAIN_INTERPRETER: u64 = 0;
/// Where the structures of a program may lie: neither in the first page nor in the kernel's half.
const ADDRESSES: std::ops::Range<u64> = 4096..1 << 56;
/// `_PY_EVAL_PLEASE_STOP_BIT`: the thread looks up from its bytecode.
const PLEASE_STOP: u8 = 1 << 5;

/// The memory of a process.
pub trait TargetMemory {
    /// Fills `into` with what stands at an address.
    ///
    /// # Errors
    ///
    /// Where nothing is there, or the program is not there any more.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), PythonError>;

    /// Writes to an address.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), PythonError>;
}

/// A thread that runs Python.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonThread {
    /// Where its state is.
    address: u64,
    /// What gettid(2) says in its own pid namespace.
    pub native_id: u32,
    pub is_main: bool,
}

/// What became of a script that was to be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disarmed {
    /// It will not be run.
    Cleared,
    /// It was not waiting any more: it was run, or vetoed; or another's waits there.
    WasTaken,
}

/// An interpreter of a version that is known.
#[derive(Debug)]
pub struct Interpreter<M> {
    memory: M,
    offsets: Offsets,
    /// Where its runtime is.
    runtime: u64,
    /// Where the main interpreter is.
    address: u64,
}

impl<M: TargetMemory> Interpreter<M> {
    /// Reads the runtime at an address.
    ///
    /// # Errors
    ///
    /// Where there is none, or it is not one that may be entered.
    pub fn read(memory: M, runtime: u64) -> Result<Self, PythonError> {
        let mut table = [0; TABLE_BYTES];
        memory.read(checked(runtime)?, &mut table)?;
        let offsets = Offsets::parse(&table)?;
        let mut interpreter = Self { memory, offsets, runtime, address: 0 };
        // A new one is put first, and most have but the main one.
        let mut address = interpreter.pointer(runtime, offsets.interpreters_head)?;
        for _ in 0..MOST_INTERPRETERS {
            if interpreter.pointer(checked(address)?, offsets.id)? == MAIN_INTERPRETER {
                interpreter.address = address;
                break;
            }
            address = interpreter.pointer(address, offsets.next_interpreter)?;
        }
        checked(interpreter.address)?;
        interpreter.check()?;
        Ok(interpreter)
    }

    /// Whether it may be entered now.
    fn check(&self) -> Result<(), PythonError> {
        if self.pointer(self.runtime, self.offsets.finalizing)? != 0 {
            return Err(PythonError::Ending);
        }
        let mut enabled = [0; 4];
        let at = self.address + self.offsets.remote_debugging_enabled;
        self.memory.read(at, &mut enabled)?;
        match u32::from_le_bytes(enabled) {
            1 => Ok(()),
            0 => Err(PythonError::Disabled),
            _ => Err(PythonError::Damaged("flag")),
        }
    }

    /// Whether its memory is there: not where the process has ended, or executed another program.
    ///
    /// # Errors
    ///
    /// Where it is not.
    pub fn check_memory(&self) -> Result<(), PythonError> {
        self.memory.read(self.runtime, &mut [0])
    }

    /// Its threads, the main one first.
    ///
    /// # Errors
    ///
    /// Where they cannot be read, or do not fit together.
    pub fn threads(&self) -> Result<Vec<PythonThread>, PythonError> {
        let mut looks = 1;
        loop {
            match self.look_at_threads() {
                // One ended while the list was read.
                Err(PythonError::Damaged(_)) if looks < LOOKS => looks += 1,
                threads => return threads,
            }
        }
    }

    fn look_at_threads(&self) -> Result<Vec<PythonThread>, PythonError> {
        let main = self.pointer(self.address, self.offsets.threads_main)?;
        let mut next = self.pointer(self.address, self.offsets.threads_head)?;
        let mut threads = Vec::new();
        while next != 0 {
            if threads.len() == MOST_THREADS {
                return Err(PythonError::Damaged("list of threads"));
            }
            let address = checked(next)?;
            if self.pointer(address, self.offsets.interpreter)? != self.address {
                return Err(PythonError::Damaged("thread"));
            }
            let native_id = self.pointer(address, self.offsets.native_thread_id)?;
            let native_id = u32::try_from(native_id);
            threads.push(PythonThread {
                address,
                native_id: native_id.map_err(|_| PythonError::Damaged("thread"))?,
                is_main: address == main,
            });
            next = self.pointer(address, self.offsets.next)?;
        }
        threads.sort_by_key(|thread| !thread.is_main);
        if threads.is_empty() {
            return Err(PythonError::Damaged("list of threads"));
        }
        Ok(threads)
    }

    /// Whether a script waits to be run in a thread.
    ///
    /// # Errors
    ///
    /// Where it cannot be read.
    pub fn is_pending(&self, thread: &PythonThread) -> Result<bool, PythonError> {
        let mut pending = [0; 4];
        let at = thread.address + self.offsets.pending;
        self.memory.read(at, &mut pending)?;
        match u32::from_le_bytes(pending) {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(PythonError::Damaged("flag")),
        }
    }

    /// Has a thread run the script at a path, once it next evaluates bytecode.
    ///
    /// # Errors
    ///
    /// Where it is not the thread that it was, another's script waits there, or the path is too long.
    pub fn arm(&self, thread: &PythonThread, path: &[u8]) -> Result<(), PythonError> {
        self.check()?;
        let room = usize::try_from(self.offsets.script_path_bytes).unwrap_or(0);
        if path.is_empty() || path.len() >= room || path.contains(&0) {
            return Err(PythonError::Damaged("path"));
        }
        if !self.is_there(thread)? {
            return Err(PythonError::ThreadGone);
        }
        if self.is_pending(thread)? {
            return Err(PythonError::OtherScript);
        }
        let mut ended = path.to_vec();
        ended.push(0);
        let at = |offset: u64| thread.address + offset;
        self.memory.write(at(self.offsets.script_path), &ended)?;
        self.memory.write(at(self.offsets.pending), &1_u32.to_le_bytes())?;
        // The word is read and written, and the thread changes it meanwhile by one instruction. So only the byte
        // with this bit is, right after one another: its upper bytes count versions, and are left.
        let mut events = [0];
        let breaker = at(self.offsets.eval_breaker);
        self.memory.read(breaker, &mut events)?;
        self.memory.write(breaker, &[events[0] | PLEASE_STOP])
    }

    /// Takes a script back that was not run yet.
    ///
    /// # Errors
    ///
    /// Where it cannot be seen whether it still waits.
    pub fn disarm(&self, thread: &PythonThread, path: &[u8]) -> Result<Disarmed, PythonError> {
        // With its thread the request is gone, too.
        if !self.is_there(thread)? {
            return Ok(Disarmed::WasTaken);
        }
        let mut written = vec![0; path.len() + 1];
        let at = thread.address + self.offsets.script_path;
        self.memory.read(at, &mut written)?;
        let is_ours = written.strip_prefix(path) == Some(&[0]);
        if !self.is_pending(thread)? || !is_ours {
            return Ok(Disarmed::WasTaken);
        }
        self.memory.write(thread.address + self.offsets.pending, &0_u32.to_le_bytes())?;
        // An empty path is not run either.
        self.memory.write(at, &[0])?;
        Ok(Disarmed::Cleared)
    }

    /// Whether a thread is still there.
    ///
    /// # Errors
    ///
    /// Where that cannot be read.
    pub fn is_there(&self, thread: &PythonThread) -> Result<bool, PythonError> {
        if thread.is_main {
            let main = self.pointer(self.address, self.offsets.threads_main)?;
            return Ok(main == thread.address);
        }
        Ok(self.threads()?.contains(thread))
    }

    fn pointer(&self, base: u64, offset: u64) -> Result<u64, PythonError> {
        let mut bytes = [0; 8];
        self.memory.read(base + offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// An address that a structure may have.
fn checked(address: u64) -> Result<u64, PythonError> {
    let is_one = ADDRESSES.contains(&address) && address.is_multiple_of(8);
    is_one.then_some(address).ok_or(PythonError::Damaged("address"))
}

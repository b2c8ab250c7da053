//! The memory of a process, opened once: what is read and written later is this program's or no one's.
//!
//! `/proc/PID/mem` rather than process_vm_readv(2), which takes a number: a file that was opened stays with the
//! address space that it was opened for. Once that is gone, by an end or an exec(2), it is at its end, so that no
//! write can reach a later program. Opening it takes the right to trace the process (ptrace(2)).

use rustix::fd::OwnedFd;
use rustix::io::{Errno, pread, pwrite};

use super::PythonError;
use super::interpreter::TargetMemory;

/// The memory of one program.
#[derive(Debug)]
pub struct ProcessMemory(OwnedFd);

impl ProcessMemory {
    /// What was opened of `/proc/PID/mem`, for reading and writing.
    pub fn new(file: OwnedFd) -> Self {
        Self(file)
    }
}

impl TargetMemory for ProcessMemory {
    fn read(&self, address: u64, mut into: &mut [u8]) -> Result<(), PythonError> {
        let mut at = address;
        while !into.is_empty() {
            match pread(&self.0, &mut *into, at) {
                Ok(0) => return Err(PythonError::ProgramGone),
                Ok(read) => {
                    at += read as u64;
                    into = &mut into[read..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn write(&self, address: u64, mut bytes: &[u8]) -> Result<(), PythonError> {
        let mut at = address;
        while !bytes.is_empty() {
            match pwrite(&self.0, bytes, at) {
                Ok(0) => return Err(PythonError::ProgramGone),
                Ok(written) => {
                    at += written as u64;
                    bytes = &bytes[written..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }
}

fn failed(errno: Errno) -> PythonError {
    match errno {
        // Nothing is mapped there.
        Errno::IO | Errno::FAULT | Errno::INVAL | Errno::OVERFLOW => {
            PythonError::Damaged("address")
        }
        Errno::SRCH | Errno::NOENT => PythonError::ProgramGone,
        errno => PythonError::Memory(errno),
    }
}

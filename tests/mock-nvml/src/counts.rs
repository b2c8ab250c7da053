//! Counts the calls of each function on each GPU, in a file that outlives the process.
//!
//! The driver maps the file named by `GPUMEM_MOCK_COUNTS`, and increments counts atomically. Other processes see each
//! count immediately, even if the process is killed, and several processes can share one file. To start over, remove
//! the file. Truncating the file would crash processes that use it.
//!
//! All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `GMCOUNT1` |
//! | 8..12 | F, the number of functions (u32) |
//! | 12..16 | C, the number of columns (u32) |
//! | 16..16 + 64 F | the functions' names, 64 bytes each, padded with NUL |
//! | then 8 F C | C counts (u64) per function: calls without a GPU, on GPU 0, on GPU 1, … |

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::abi::Function;

const MAGIC: &[u8; 8] = b"GMCOUNT1";
const HEADER: usize = 16;
const NAME: usize = 64;
/// One column for calls without a GPU, and one for each of the GPUs 0 to 127. The first column also counts calls on
/// GPUs with higher indices.
const COLUMNS: usize = 129;

/// Reads a file of counts in the format that the module's documentation describes.
#[derive(Debug)]
pub struct Counts;

impl Counts {
    /// Returns the nonzero counts by function and GPU. The GPU is `None` for calls without a GPU.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not a file of counts.
    pub fn read(path: &Path) -> io::Result<BTreeMap<(String, Option<u32>), u64>> {
        let bytes = std::fs::read(path)?;
        parse(&bytes).ok_or_else(|| {
            let message = format!("{} is not a counts file", path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<(String, Option<u32>), u64>> {
    let number = |at: usize| {
        let field = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(field) as usize)
    };
    let (functions, columns) = (number(8)?, number(12)?);
    let names = bytes.get(HEADER..)?.get(..functions.checked_mul(NAME)?)?;
    let cells = functions.checked_mul(columns)?.checked_mul(8)?;
    let cells = bytes.get(HEADER + names.len()..)?.get(..cells)?;
    if !bytes.starts_with(MAGIC) || columns == 0 {
        return None;
    }
    let mut counts = BTreeMap::new();
    for (cell, count) in cells.chunks_exact(8).enumerate() {
        let count = u64::from_le_bytes(count.try_into().ok()?);
        if count > 0 {
            let name = &names[cell / columns * NAME..][..NAME];
            let name = String::from_utf8_lossy(name);
            let gpu = (cell % columns).checked_sub(1).map(|gpu| gpu as u32);
            let key = (name.trim_end_matches('\0').to_owned(), gpu);
            counts.insert(key, count);
        }
    }
    Some(counts)
}

/// The counts in the mapped file.
pub(crate) struct Counter {
    /// `Function::NAMES.len() * COLUMNS` counts, which are mapped until the process exits.
    cells: NonNull<AtomicU64>,
}

// SAFETY: the mapping is never moved or unmapped, and all accesses are atomic.
unsafe impl Send for Counter {}
// SAFETY: all accesses are atomic.
unsafe impl Sync for Counter {}

impl Counter {
    /// Maps the file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let header = header();
        let length = header.len() + Function::NAMES.len() * COLUMNS * 8;
        if file.metadata()?.len() == 0 {
            // Several processes can do this at the same time, because they write the same bytes.
            file.set_len(length as u64)?;
            file.write_all_at(&header, 0)?;
        }
        let mut found = vec![0; header.len()];
        file.read_exact_at(&mut found, 0)?;
        if found != header || file.metadata()?.len() != length as u64 {
            let message = "contains the counts of another mock-nvml; remove it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Self::map(&file, length, header.len())
    }

    fn map(file: &File, length: usize, header: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address, and the file is at least `length` bytes long.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        // SAFETY: the header is shorter than the mapping.
        let cells = unsafe { start.byte_add(header) };
        NonNull::new(cells.cast())
            .map(|cells| Self { cells })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(crate) fn count(&self, function: Function, gpu: Option<u32>) {
        let column = gpu.map_or(0, |gpu| gpu as usize + 1);
        let column = if column < COLUMNS { column } else { 0 };
        let cell = function as usize * COLUMNS + column;
        // SAFETY: the cell is in the mapping, because the function and the column are below their limits. The cell is
        // aligned, because the mapping's address and the header's length are multiples of 8 bytes.
        let cell = unsafe { self.cells.add(cell).as_ref() };
        cell.fetch_add(1, Ordering::Relaxed);
    }
}

const _: () = assert!(HEADER.is_multiple_of(8) && NAME.is_multiple_of(8));
const _: () = assert!(cfg!(target_endian = "little"), "counts are little-endian");

fn header() -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend((Function::NAMES.len() as u32).to_le_bytes());
    header.extend((COLUMNS as u32).to_le_bytes());
    for name in Function::NAMES {
        let start = header.len();
        header.extend(name.as_bytes());
        header.resize(start + NAME, 0);
    }
    header
}

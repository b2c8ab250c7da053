//! Finds the driver that cargo has built, and copies the driver without some symbols.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "libmock_nvml.so";

/// Returns the path of the driver that cargo has built for the calling test, benchmark or binary.
///
/// If a package depends on this package, cargo builds both crate types, and leaves the cdylib beside the test
/// binaries in `target/<profile>/deps/`. If this package itself is built, cargo also creates a hard link in
/// `target/<profile>/`. The link can belong to an older build, so this function searches `deps` first.
///
/// # Panics
///
/// If there is no driver.
#[allow(clippy::panic, reason = "only tests call this, and they cannot continue")]
pub fn library() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let folders = executable.ancestors().skip(1).take(3);
    let found = folders
        .flat_map(|folder| [folder.join("deps").join(NAME), folder.join(NAME)])
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("no {NAME} near {}; build mock-nvml for the same profile", executable.display())
    })
}

/// Copies the driver without the given symbols to `libnvidia-ml.so.1` in `folder`, and returns the path of the copy.
/// A lookup of these symbols fails, as in a driver that never had them.
///
/// The function changes the last character of each name in the table of dynamic symbols, but not the hash tables. A
/// lookup of the old name fails because the names differ, and a lookup of the new name fails because the hashes differ.
///
/// # Errors
///
/// If the driver does not export a symbol, or if `folder` cannot be written.
pub fn library_without<S: AsRef<str>>(symbols: &[S], folder: &Path) -> io::Result<PathBuf> {
    let mut image = fs::read(library())?;
    for symbol in symbols {
        let symbol = symbol.as_ref();
        hide(&mut image, symbol).ok_or_else(|| {
            let message = format!("the driver does not export {symbol:?}");
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
    }
    let path = folder.join("libnvidia-ml.so.1");
    fs::write(&path, image)?;
    Ok(path)
}

/// Renames a dynamic symbol of a 64-bit little-endian ELF file. Returns `None` if the symbol does not exist.
fn hide(image: &mut [u8], symbol: &str) -> Option<()> {
    const SECTION_BYTES: usize = 64;
    const DYNAMIC_SYMBOLS: u64 = 11;

    let number = |record: usize, field: usize, bytes: usize| {
        let at = record.checked_add(field)?;
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(image.get(at..at.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(number))
    };
    let sections = number(0, 0x28, 8)? as usize;
    let section = |index: usize| sections.checked_add(index.checked_mul(SECTION_BYTES)?);
    let symbols = (0..number(0, 0x3c, 2)? as usize)
        .filter_map(section)
        .find(|&section| number(section, 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let names = section(number(symbols, 0x28, 4)? as usize)?;
    let start = number(names, 0x18, 8)? as usize;
    let length = number(names, 0x20, 8)? as usize;
    let names = image.get_mut(start..start.checked_add(length)?)?;
    let whole = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let found = names.windows(whole.len()).position(|window| window == whole)?;
    names[found + symbol.len()] = b'-';
    Some(())
}

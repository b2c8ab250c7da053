//! Finds the path of a library that gpumem has loaded. The loader finds the library by its name and does not report
//! the path.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use std::ffi::OsStr;

/// Maximum number of bytes read from gpumem's maps, which list about a hundred files.
const MAPS_BYTES: u64 = 4 << 20;

/// Returns the first file mapped by gpumem for which `is_wanted` returns `true`, or `None` if there is none or the
/// maps cannot be read.
pub fn read_own_mapped_file(proc: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let file = File::open(proc.join("self/maps")).ok()?;
    let mut lines = BufReader::new(file.take(MAPS_BYTES)).split(b'\n');
    lines.find_map(|line| {
        let line = line.ok()?;
        parse_mapped_file(&line).filter(|path| is_wanted(path)).map(Path::to_owned)
    })
}

/// Parses the path in a line of `/proc/PID/maps`, without the suffix ` (deleted)` of an unlinked file. The path is
/// the sixth field and can contain spaces.
pub fn parse_mapped_file(line: &[u8]) -> Option<&Path> {
    let at = line.iter().position(|&byte| byte == b'/')?;
    // Address, permissions, offset, device and inode precede the path.
    let fields = line[..at].split(|&byte| byte == b' ');
    if fields.filter(|field| !field.is_empty()).count() != 5 {
        return None;
    }
    let path = &line[at..];
    Some(Path::new(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_path_follows_five_fields() {
        let parse = |line: &str| parse_mapped_file(line.as_bytes()).map(Path::to_owned);
        let start = "7f0c1a200000-7f0c1a3f5000 r-xp 00028000 08:01 1053";
        for (end, path) in [
            ("       /usr/lib/libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"),
            (" /a folder/lib.so (deleted)", "/a folder/lib.so"),
        ] {
            assert_eq!(parse(&format!("{start}{end}")), Some(path.into()));
        }
        for line in ["", "[stack]", "/usr/lib/x", &format!("{start} [heap]")] {
            assert_eq!(parse(line), None, "{line}");
        }
        assert!(parse_mapped_file(b"\xff\xff/\xff").is_none());
    }

    #[test]
    fn the_current_process_has_mapped_its_program() {
        let program = std::fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        let mapped = read_own_mapped_file(Path::new("/proc"), |path| path == program);
        assert_eq!(mapped, Some(program));
        assert_eq!(read_own_mapped_file(Path::new("/proc"), |_| false), None);
        assert_eq!(read_own_mapped_file(Path::new("/nonexistent"), |_| true), None);
    }
}

//! Reads small kernel files up to a limit.
//!
//! Must not be used for files that users can create. Such a file can be a pipe, a link, or a file on a file server
//! that hangs.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

pub(in crate::host) fn read_start(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads text like [`read_start`]. Returns `None` if the file cannot be read or is not UTF-8.
pub(in crate::host) fn read_text(path: &Path, most_bytes: u64) -> Option<String> {
    String::from_utf8(read_start(path, most_bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_stops_at_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"12\n3\xff").unwrap();
        assert_eq!(read_start(&path, 4).unwrap(), b"12\n3");
        assert_eq!(read_text(&path, 4).as_deref(), Some("12\n3"));
        assert_eq!(read_text(&path, 64), None);
        assert_eq!(read_text(&folder.path().join("b"), 64), None);
    }
}

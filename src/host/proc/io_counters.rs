//! Parses `/proc/PID/io`: how much a process has read and written.
//!
//! It counts the bytes of read(2), write(2) and their like on any descriptor: file, pipe, terminal. It does not
//! count send(2) and recv(2) (proc_pid_io(5)); see `traffic`. Only root and the process's owner may read it.

/// The most that is read; the file has seven lines.
pub const IO_BYTES: usize = 512;

/// Total bytes read and written; `None` if the file lacks either.
pub fn parse_io(content: &[u8]) -> Option<u64> {
    field(content, "rchar:")?.checked_add(field(content, "wchar:")?)
}

fn field(content: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?;
    // A line without its newline is cut, and may be missing digits.
    let mut lines = text.split_inclusive('\n');
    let value = lines.find_map(|line| line.strip_suffix('\n')?.strip_prefix(name))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_and_written_is_added_up() {
        let whole = b"rchar: 4292\nwchar: 8\nsyscr: 13\nsyscw: 1\nread_bytes: 0\n";
        assert_eq!(parse_io(whole), Some(4300));
        for broken in [
            &b""[..],
            b"rchar: 4292\n",
            b"rchar: 4292\nwchar: 8",
            b"rchar: -1\nwchar: 8\n",
            b"rchar: 18446744073709551615\nwchar: 1\n",
            b"rchar: \xff\nwchar: 1\n",
        ] {
            assert_eq!(parse_io(broken), None, "{broken:?}");
        }
    }
}

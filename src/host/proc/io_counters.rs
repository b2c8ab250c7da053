//! `/proc/PID/io`: how much a process has read and written.
//!
//! Counted are the bytes of read(2), write(2) and their like, whatever the descriptor is: a file, a pipe, a
//! terminal. What goes through send(2) and recv(2) is not (proc_pid_io(5)); see `traffic`. Only root and the process's
//! owner may read it.

/// How much of the file is read: seven lines.
pub const IO_BYTES: usize = 512;

/// What was read and written in all; `None` where the file does not tell both.
pub fn parse_io(content: &[u8]) -> Option<u64> {
    field(content, "rchar:")?.checked_add(parse_written(content)?)
}

/// What was written.
pub fn parse_written(content: &[u8]) -> Option<u64> {
    field(content, "wchar:")
}

fn field(content: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?;
    // A line without its newline was cut, and its number with it.
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

//! A line to somebody's terminals, as wall(1) writes one.
//!
//! Only to terminals that the user owns, seen after they were opened; nothing here waits for one that
//! does not take it. The text has to be escaped: a terminal acts on what it is sent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::termios::isatty;

/// More terminals than this are not written to.
const MOST_TERMINALS: usize = 64;
/// A few lines.
const LONGEST_TEXT: usize = 1024;

/// Writes to the terminals of a user below `dev`; how many have taken all of it.
pub(super) fn write(dev: &Path, uid: u32, text: &str) -> usize {
    let found = find(dev, uid).into_iter();
    found.filter(|path| write_to(path, uid, text).is_ok()).count()
}

/// A user's terminals: the pseudo ones and the consoles.
fn find(dev: &Path, uid: u32) -> Vec<PathBuf> {
    let numbered = |folder: &Path, prefix: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let prefix = prefix.to_owned();
        entries.filter_map(move |entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix(&prefix)?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            let is_owned = || entry.metadata().is_ok_and(|it| it.uid() == uid);
            (is_number && is_owned()).then(|| entry.path())
        })
    };
    let pseudo = numbered(&dev.join("pts"), "");
    let consoles = numbered(dev, "tty");
    let mut found: Vec<PathBuf> = pseudo.chain(consoles).collect();
    found.sort();
    found.truncate(MOST_TERMINALS);
    found
}

fn write_to(path: &Path, uid: u32, text: &str) -> io::Result<()> {
    // A terminal that is held up must not hold us up, nor become ours.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let mut terminal: File =
        OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if terminal.metadata()?.uid() != uid || !isatty(&terminal) {
        return Err(io::Error::other("not a terminal of this user"));
    }
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Who was shown a part was not told: it may be the part that says nothing.
    match terminal.write(&text.as_bytes()[..end])? {
        written if written == end => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fd::OwnedFd;
    use rustix::process::geteuid;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    /// A terminal of this user's.
    pub struct Pty {
        path: PathBuf,
        master: OwnedFd,
    }

    impl Pty {
        pub fn open() -> Self {
            let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&master).unwrap();
            unlockpt(&master).unwrap();
            let name = ptsname(&master, Vec::new()).unwrap();
            Self { path: name.to_str().unwrap().into(), master }
        }

        /// What it shows since it was last asked.
        pub fn shown(&self) -> String {
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut fds, Some(&now)).unwrap() == 0 {
                return String::new();
            }
            let mut shown = [0; 4096];
            let length = rustix::io::read(&self.master, &mut shown).unwrap();
            String::from_utf8_lossy(&shown[..length]).into_owned()
        }
    }

    #[test]
    fn a_users_terminal_is_found_and_shows_it() {
        let pty = Pty::open();
        let path = pty.path.clone();
        let uid = geteuid().as_raw();
        assert!(find(Path::new("/dev"), uid).contains(&path));
        assert!(!find(Path::new("/dev"), uid + 1).contains(&path));
        write_to(&path, uid, "it will be ended\r\n").unwrap();
        assert_eq!(pty.shown().trim_end(), "it will be ended");
    }

    #[test]
    fn nothing_is_written_to_what_is_not_the_users_terminal() {
        let pty = Pty::open();
        let path = pty.path.clone();
        let uid = geteuid().as_raw();
        assert!(write_to(&path, uid + 1, "x").is_err());
        assert!(write_to(Path::new("/dev/null"), uid, "x").is_err());
        let folder = tempfile::tempdir().unwrap();
        let pts = folder.path().join("pts");
        fs::create_dir(&pts).unwrap();
        fs::write(pts.join("7"), "").unwrap();
        std::os::unix::fs::symlink(&path, pts.join("8")).unwrap();
        fs::write(folder.path().join("tty"), "").unwrap();
        fs::write(folder.path().join("ttyS0"), "").unwrap();
        assert_eq!(write(folder.path(), uid, "x"), 0);
        assert_eq!(fs::read_to_string(pts.join("7")).unwrap(), "");
    }

    #[test]
    fn a_terminal_that_takes_nothing_delays_no_other() {
        let pty = Pty::open();
        let path = pty.path.clone();
        let uid = geteuid().as_raw();
        let text = "ä".repeat(5000);
        // No program reads: it fills, and then takes no more.
        let mut refused = None;
        for _ in 0..10_000 {
            if let Err(error) = write_to(&path, uid, &text) {
                refused = Some(error.kind());
                break;
            }
        }
        // It has taken a part of the last text, or none of it: that is no warning.
        let kinds = [io::ErrorKind::WouldBlock, io::ErrorKind::WriteZero];
        assert!(refused.is_some_and(|it| kinds.contains(&it)), "{refused:?}");
        assert!(write_to(&path, uid, &text).is_err());
    }
}

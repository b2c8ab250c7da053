//! `watch.json` in the state directory: how the screen was arranged when it was left.
//!
//! A convenience: what cannot be read counts as nothing, what cannot be written is not written, and
//! no one is told. It is replaced as a whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::store;
use crate::deadline::Task;
use crate::watch::ui_state::{UiState, parse};

/// More than this is no file of ours.
const MOST_BYTES: u64 = 64 * 1024;
/// How long a file system that hangs may keep a screen that has been left from ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was remembered; nothing where there is none.
pub(super) fn load() -> UiState {
    path().map_or_else(UiState::default, |path| read(&path))
}

/// Remembers `changes` on top of what is there now: another screen may have been left meanwhile.
pub(super) fn save(changes: UiState) {
    let Some(path) = path().filter(|_| !changes.is_empty()) else {
        return;
    };
    // A home directory may be on a server that does not answer.
    if let Ok(writing) = Task::start("watch-state", move || write(&path, changes)) {
        let _ = writing.wait(PATIENCE);
    }
}

fn path() -> Option<PathBuf> {
    store::state().ok().map(|folder| folder.join("watch.json"))
}

fn read(path: &Path) -> UiState {
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new()
            .read(true)
            // Not to wait for whoever writes into a pipe of that name.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        let mut text = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_or_else(|_| UiState::default(), |text| parse(&text))
}

fn write(path: &Path, changes: UiState) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut all = read(path);
    all.extend(changes);
    let mut text = serde_json::to_vec_pretty(&all)?;
    text.push(b'\n');
    // Of this process alone: two screens may be left at once.
    let new = folder.join(format!("watch.json.{}.new", std::process::id()));
    let replaced = write_new(&new, &text).and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

fn write_new(new: &Path, text: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(new)?;
    file.write_all(text)?;
    // Or a machine that loses power now has an empty file instead of the old one.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn tree(tree: bool) -> UiState {
        UiState::from_iter([("tree".to_owned(), tree.into())])
    }

    fn theme(theme: &str) -> UiState {
        UiState::from_iter([("theme".to_owned(), theme.into())])
    }

    #[test]
    fn what_is_written_is_read_and_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there/watch.json");
        assert_eq!(read(&path), UiState::default());
        write(&path, tree(true)).unwrap();
        assert_eq!(read(&path), tree(true));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let count = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(count, 1, "nothing is left behind");
    }

    #[test]
    fn two_screens_keep_what_each_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.json");
        write(&path, tree(true)).unwrap();
        write(&path, theme("dark")).unwrap();
        write(&path, tree(false)).unwrap();
        assert_eq!(read(&path), tree(false).into_iter().chain(theme("dark")).collect::<UiState>());
    }

    #[test]
    fn what_is_no_file_of_ours_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.json");
        fs::create_dir(&path).unwrap();
        assert_eq!(read(&path), UiState::default());
        assert!(write(&path, tree(true)).is_err());
        fs::remove_dir(&path).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
        assert_eq!(read(&path), UiState::default(), "and nothing waits");
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b'['; 1 << 20]).unwrap();
        assert_eq!(read(&path), UiState::default());
        write(&path, tree(true)).unwrap();
        assert_eq!(read(&path), tree(true));
        assert!(fs::metadata(&path).unwrap().len() < MOST_BYTES);
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.json");
        write(&path, tree(true)).unwrap();
        // As on a full disk: the new file cannot be made.
        let new = folder.path().join(format!("watch.json.{}.new", std::process::id()));
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        assert!(write(&path, tree(false)).is_err());
        assert_eq!(read(&path), tree(true));
        assert!(!new.is_symlink(), "nothing is left behind");
        write(&path, tree(false)).unwrap();
        assert!(write_new(Path::new("/dev/full"), b"{}").is_err());
        let in_a_file = path.join("watch.json");
        assert!(write(&in_a_file, tree(false)).is_err());
        assert_eq!(read(&path), tree(false));
    }
}

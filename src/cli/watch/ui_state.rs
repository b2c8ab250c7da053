//! `watch.json` in the state directory: how the screen was arranged when it was left.
//!
//! A convenience: what cannot be read counts as nothing, what cannot be written is not written, and
//! no one is told. It is replaced as a whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::store;
use crate::deadline::Task;
use crate::host::replace_file;
use crate::watch::ui_state::{UiState, parse};

/// The largest file that is read.
const MOST_BYTES: u64 = 64 * 1024;
/// How long a hung file system may delay the exit of the screen.
const PATIENCE: Duration = Duration::from_secs(2);

/// Loads the saved state; empty if there is none.
pub(super) fn load() -> UiState {
    path().map_or_else(UiState::default, |path| read(&path))
}

/// Saves `changes` on top of the current file: another screen may have been left meanwhile.
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
            // If the file is a named pipe, opening it must not wait for a writer.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        let mut text = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_or_else(|_| UiState::default(), |text| parse(&text))
}

fn write(path: &Path, changes: UiState) -> io::Result<()> {
    let mut all = read(path);
    all.extend(changes);
    let mut text = serde_json::to_vec_pretty(&all)?;
    text.push(b'\n');
    if let Some(folder) = path.parent() {
        // Root's contains a store as well, which everybody may read.
        fs::create_dir_all(folder)?;
    }
    replace_file(path, &text, 0o600)
}

#[cfg(test)]
mod tests {
    use std::fs;
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
        let count = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(count, 1, "nothing is left behind");
    }

    #[test]
    fn two_screens_keep_what_each_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/watch.json");
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
        let new = folder.path().join(format!(".watch.json.{}.new", std::process::id()));
        fs::create_dir(&new).unwrap();
        assert!(write(&path, tree(false)).is_err());
        assert_eq!(read(&path), tree(true));
        fs::remove_dir(&new).unwrap();
        write(&path, tree(false)).unwrap();
        let in_a_file = path.join("watch.json");
        assert!(write(&in_a_file, tree(false)).is_err());
        assert_eq!(read(&path), tree(false));
    }
}

//! Replacing a file as a whole, or leaving it as it is.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Replaces a file by one with this content and these permissions. Whoever reads it sees the old one or the new one,
/// also after a power failure. Of links in the directory none is followed.
///
/// # Errors
///
/// The directory cannot be written to, or is full; or what has this name is no file (a link, a device). It is as it was.
pub fn replace_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is there already, and is no file"));
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Two processes may write the same file at once.
    let new = folder.join(format!(".{name}.{}.new", std::process::id()));
    // One of an earlier process of this number.
    let _ = fs::remove_file(&new);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// As [`replace_file`], in a directory of the user's own, which is made where there is none.
///
/// # Errors
///
/// As there.
pub fn replace_own_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        // Root's has a store in it as well, which everybody may read.
        fs::create_dir_all(folder)?;
    }
    replace_file(path, content, 0o600)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_the_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let path = folder.path().join("state/waste.json");
        replace_own_file(&path, b"{}").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, mode(&plain)));
    }

    #[test]
    fn a_file_is_replaced_whole_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("elsewhere"), "untouched").unwrap();
        fs::write(at("page"), "old").unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        symlink(at("elsewhere"), at(&format!(".page.{}.new", std::process::id()))).unwrap();
        replace_file(&at("page"), b"new", 0o644).unwrap();
        assert_eq!(fs::read_to_string(at("elsewhere")).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(at("page")).unwrap(), "new");
        assert_eq!(fs::symlink_metadata(at("page")).unwrap().permissions().mode() & 0o777, 0o644);
        // What cannot be replaced leaves nothing behind.
        fs::create_dir(at("folder")).unwrap();
        replace_file(&at("folder"), b"new", 0o644).unwrap_err();
        for path in [Path::new("/"), Path::new("/dev/full"), &at("link"), &at("none/page")] {
            replace_file(path, b"new", 0o644).unwrap_err();
        }
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["elsewhere", "folder", "link", "page"]);
    }
}

//! Checks the owner and mode of all components of a path if the content of the file controls what gpumem does.
//!
//! The configuration, a notify command and the state directory control actions on other users' processes. A user who
//! can write to one of these files, or to a directory on its path, gains the rights of the process that reads the file.
//! If gpumem has more rights than a plain user, it therefore uses only files that no one except root and the effective
//! user can change, like sudo and sshd. Root or the effective user must own the file and all directories on its path,
//! and neither group nor others may have write permission. A sticky directory such as `/tmp` may be writable, but must
//! not contain the file directly. An access control list that grants write permission also sets the group bits
//! (acl(5)), so checking the mode is sufficient.
//!
//! After a successful check, no other user can change the path. Callers may therefore check a path before or after
//! they open the file.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Uid, User};

use crate::host::machine::rights::has_gained_rights;
use crate::units::system_message;

pub(super) const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this mode bit, only the owner of an entry and the owner of the directory can replace the entry.
pub(super) const STICKY: u32 = 0o1000;
/// Maximum number of symbolic links followed. The kernel has the same limit (`MAXSYMLINKS`).
pub(super) const MAX_LINKS: usize = 40;
const MAX_ENTRIES: usize = 4096;

/// Reason why gpumem does not use a file: which component other users can change, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum NotOurs {
    #[error(
        "{} belongs to {} (mode {mode:04o}), not to {}; {}",
        component.display(),
        name(*uid),
        allowed_owners(*own_uid),
        if *is_directory {
            format!("put it where only {} may write", name(*own_uid))
        } else {
            format!("if you trust its content: chown {} {}", name(*own_uid), component.display())
        }
    )]
    Owner {
        component: PathBuf,
        uid: u32,
        mode: u32,
        own_uid: u32,
        /// Whether the component is a directory. The message then does not suggest chown, because the entries of the
        /// directory may also belong to another user.
        is_directory: bool,
    },
    #[error(
        "{} is writable by others (owner {}, mode {mode:04o}); {}",
        component.display(),
        name(*uid),
        match is_special {
            true => "it is a device or a pipe; name a regular file".to_owned(),
            false => format!("if you trust its content: chmod go-w {}", component.display()),
        }
    )]
    Writable {
        component: PathBuf,
        uid: u32,
        mode: u32,
        /// Whether the component is a device, pipe or socket. The message then does not suggest chmod, because other
        /// users may need write permission.
        is_special: bool,
    },
    #[error(
        "{} is a shared directory (owner {}, mode {mode:04o}); move it to a directory of its own",
        component.display(),
        name(*uid)
    )]
    Shared { component: PathBuf, uid: u32, mode: u32 },
    #[error("cannot check who may write to {}: {}; make it readable", component.display(), system_message(cause))]
    Unknown { component: PathBuf, cause: io::Error },
}

pub(super) fn name(uid: u32) -> String {
    if uid == 0 {
        return "root".to_owned();
    }
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

fn allowed_owners(own_uid: u32) -> String {
    match own_uid {
        0 => "root".to_owned(),
        own_uid => format!("root or {}", name(own_uid)),
    }
}

/// Returns whether gpumem has rights that plain users lack. If so, it must not use files that other users can change.
pub fn has_more_rights() -> bool {
    rustix::process::geteuid().is_root() || has_gained_rights()
}

/// Checks that only root and the effective user can change the file at a path. If the file does not exist, the
/// existing part of the path is checked. Always succeeds without additional rights, because other users then gain
/// nothing. The error contains the first component that other users can change.
pub fn prove_ours(path: &Path) -> Result<(), NotOurs> {
    match has_more_rights() {
        true => check_path(path, rustix::process::geteuid().as_raw()),
        false => Ok(()),
    }
}

pub fn prove_directory_ours(folder: &Path) -> Result<(), NotOurs> {
    match has_more_rights() {
        true => check_directory(folder, rustix::process::geteuid().as_raw()),
        false => Ok(()),
    }
}

/// Checks that only root and the effective user can change a directory. Does not check the path that leads to it.
pub fn prove_leaf_ours(path: &Path) -> Result<(), NotOurs> {
    let metadata = fs::metadata(path)
        .map_err(|cause| NotOurs::Unknown { component: path.to_owned(), cause })?;
    check_component(path, &metadata, rustix::process::geteuid().as_raw())
}

fn check_directory(folder: &Path, own_uid: u32) -> Result<(), NotOurs> {
    check_path(folder, own_uid)?;
    let unknown = |cause| NotOurs::Unknown { component: folder.to_owned(), cause };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(unknown(error)),
    };
    for entry in entries.take(MAX_ENTRIES) {
        let entry = entry.map_err(unknown)?;
        // gpumem never follows links in its state directory, so this check does not follow them either.
        if let Ok(metadata) = entry.metadata()
            && !metadata.is_symlink()
        {
            check_component(&entry.path(), &metadata, own_uid)?;
        }
    }
    Ok(())
}

/// Resolves a path as the kernel does, and checks each directory and link on the way.
fn check_path(path: &Path, own_uid: u32) -> Result<(), NotOurs> {
    let unknown =
        |component: &Path, cause| NotOurs::Unknown { component: component.to_owned(), cause };
    let path = std::path::absolute(path).map_err(|cause| unknown(path, cause))?;
    let mut components: VecDeque<OsString> = VecDeque::new();
    push_front(&mut components, &path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let mut shared =
        check_ancestor(&at, &metadata_of(&at).map_err(|cause| unknown(&at, cause))?, own_uid)?;
    while let Some(component) = components.pop_front() {
        if component == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&component);
        let metadata = match metadata_of(&next) {
            Ok(metadata) => metadata,
            // Another user may still create the file, but a later check then returns an error.
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unknown(&next, error)),
        };
        if metadata.is_symlink() {
            // The mode of a link has no effect. Who can replace the link depends on its directory, which has been
            // checked.
            if metadata.uid() != 0 && metadata.uid() != own_uid {
                return Err(not_owned(&next, &metadata, own_uid));
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(unknown(&next, rustix::io::Errno::LOOP.into()));
            }
            let target = fs::read_link(&next).map_err(|cause| unknown(&next, cause))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            push_front(&mut components, &target);
            continue;
        }
        at = next;
        if metadata.is_dir() && !components.is_empty() {
            shared = check_ancestor(&at, &metadata, own_uid)?;
            continue;
        }
        check_component(&at, &metadata, own_uid)?;
        if let (Some(metadata), false) = (&shared, metadata.is_dir()) {
            return Err(NotOurs::Shared {
                component: at.parent().unwrap_or(&at).to_owned(),
                uid: metadata.uid(),
                mode: metadata.mode() & 0o7777,
            });
        }
    }
    Ok(())
}

fn metadata_of(path: &Path) -> io::Result<Metadata> {
    fs::symlink_metadata(path)
}

pub(super) fn push_front(components: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => components.push_front(name.to_owned()),
            Component::ParentDir => components.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Checks a directory on the path. A sticky directory may be writable by other users, because they cannot replace
/// each other's files in it. Returns the metadata of such a directory.
fn check_ancestor(
    path: &Path,
    metadata: &Metadata,
    own_uid: u32,
) -> Result<Option<Metadata>, NotOurs> {
    let is_shared = metadata.mode() & STICKY != 0 && metadata.mode() & OTHERS_WRITE != 0;
    if is_shared && (metadata.uid() == 0 || metadata.uid() == own_uid) {
        return Ok(Some(metadata.clone()));
    }
    check_component(path, metadata, own_uid).map(|()| None)
}

fn check_component(path: &Path, metadata: &Metadata, own_uid: u32) -> Result<(), NotOurs> {
    let uid = metadata.uid();
    if uid != 0 && uid != own_uid {
        return Err(not_owned(path, metadata, own_uid));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(NotOurs::Writable {
            component: path.to_owned(),
            uid,
            mode: metadata.mode() & 0o7777,
            is_special: !metadata.is_file() && !metadata.is_dir(),
        });
    }
    Ok(())
}

fn not_owned(path: &Path, metadata: &Metadata, own_uid: u32) -> NotOurs {
    NotOurs::Owner {
        component: path.to_owned(),
        uid: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        own_uid,
        is_directory: metadata.is_dir(),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const OTHER_USER: u32 = 4242;

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a directory and a file in it, both writable only by the current user, inside a temporary directory.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        fs::create_dir(path.join("etc")).unwrap();
        set_mode(&path.join("etc"), 0o755);
        fs::write(path.join("etc/config.toml"), "").unwrap();
        set_mode(&path.join("etc/config.toml"), 0o644);
        (folder, path)
    }

    #[test]
    fn paths_writable_only_by_the_caller_pass() {
        let (_folder, path) = tree();
        let file = path.join("etc/config.toml");
        check_path(&file, own_uid()).unwrap();
        check_path(&path.join("etc"), own_uid()).unwrap();
        check_directory(&path.join("etc"), own_uid()).unwrap();
        check_path(&path.join("etc/../etc/./config.toml"), own_uid()).unwrap();
        check_path(&path.join("etc/absent/config.toml"), own_uid()).unwrap();
        check_path(&file.join("below-a-file"), own_uid()).unwrap();
        symlink("etc/config.toml", path.join("link")).unwrap();
        check_path(&path.join("link"), own_uid()).unwrap();
        symlink(path.join("link"), path.join("etc/again")).unwrap();
        check_path(&path.join("etc/again"), own_uid()).unwrap();
    }

    #[test]
    fn the_component_writable_by_others_is_named() {
        for (component, bits) in
            [("etc", 0o775), ("etc", 0o757), ("etc/config.toml", 0o664), ("etc/config.toml", 0o646)]
        {
            let (_folder, path) = tree();
            set_mode(&path.join(component), bits);
            symlink("etc/config.toml", path.join("link")).unwrap();
            for path_used in ["etc/config.toml", "link"] {
                let error = check_path(&path.join(path_used), own_uid()).unwrap_err();
                assert!(
                    matches!(&error, NotOurs::Writable { component, .. } if *component == path.join(component)),
                    "{path_used}: {error}"
                );
                let text = error.to_string();
                let next = format!("chmod go-w {}", path.join(component).display());
                assert!(text.contains(&format!("mode {bits:04o}")), "{text}");
                assert!(text.ends_with(&next), "{text}");
            }
        }
    }

    #[test]
    fn a_sticky_directory_passes_only_as_an_ancestor() {
        let (_folder, path) = tree();
        set_mode(&path.join("etc"), 0o1777);
        let file = path.join("etc/config.toml");
        let error = check_path(&file, own_uid()).unwrap_err();
        assert!(matches!(&error, NotOurs::Shared { .. }), "{error}");
        fs::create_dir(path.join("etc/own")).unwrap();
        set_mode(&path.join("etc/own"), 0o700);
        fs::write(path.join("etc/own/config.toml"), "").unwrap();
        set_mode(&path.join("etc/own/config.toml"), 0o600);
        check_path(&path.join("etc/own/config.toml"), own_uid()).unwrap();
        check_directory(&path.join("etc/own"), own_uid()).unwrap();
        assert!(check_path(&path.join("etc"), own_uid()).is_err());
        assert!(check_directory(&path.join("etc"), own_uid()).is_err());
    }

    #[test]
    fn a_state_directory_passes_only_with_its_entries() {
        let (_folder, path) = tree();
        set_mode(&path.join("etc/config.toml"), 0o666);
        check_path(&path.join("etc"), own_uid()).unwrap();
        assert!(check_directory(&path.join("etc"), own_uid()).is_err());
        fs::remove_file(path.join("etc/config.toml")).unwrap();
        symlink("/dev/null", path.join("etc/config.toml")).unwrap();
        check_directory(&path.join("etc"), own_uid()).unwrap();
        check_directory(&path.join("absent"), own_uid()).unwrap();
    }

    #[test]
    fn a_cycle_of_links_ends() {
        let (_folder, path) = tree();
        symlink("b", path.join("a")).unwrap();
        symlink("a", path.join("b")).unwrap();
        let error = check_path(&path.join("a"), own_uid()).unwrap_err();
        assert!(matches!(error, NotOurs::Unknown { .. }), "{error}");
    }

    #[test]
    fn paths_of_another_user_are_refused() {
        // Without root rights, the test cannot change owners, so it performs the check for a user who owns none of
        // the files.
        let (_folder, path) = tree();
        let file = path.join("etc/config.toml");
        if own_uid() != 0 {
            let error = check_path(&file, OTHER_USER).unwrap_err();
            assert!(matches!(error, NotOurs::Owner { .. }), "{error}");
            return;
        }
        check_path(&file, OTHER_USER).unwrap();
        for changed in ["", "etc", "etc/config.toml"] {
            let (_folder, path) = tree();
            let changed = path.join(changed).components().collect::<PathBuf>();
            chown(&changed, Some(OTHER_USER), None).unwrap();
            let error = check_path(&path.join("etc/config.toml"), 0).unwrap_err();
            assert!(
                matches!(&error, NotOurs::Owner { component, uid, .. }
                    if *component == changed && *uid == OTHER_USER),
                "{error}"
            );
            assert!(error.to_string().contains("uid 4242 (mode 0"), "{error}");
            check_path(&path.join("etc/config.toml"), OTHER_USER).unwrap();
        }
        // In a shared directory, a link is followed only if it belongs to root or the effective user.
        let (_folder, path) = tree();
        let shared = path.join("shared");
        fs::create_dir(&shared).unwrap();
        set_mode(&shared, 0o1777);
        symlink(path.join("etc/config.toml"), shared.join("link")).unwrap();
        check_path(&shared.join("link"), 0).unwrap();
        std::os::unix::fs::lchown(shared.join("link"), Some(OTHER_USER), None).unwrap();
        assert!(check_path(&shared.join("link"), 0).is_err());
    }
}

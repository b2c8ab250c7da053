//! Checks who may write to the files that gpumem obeys: the owner and mode of every component of a path.
//!
//! The configuration, a notify command and the state directory control actions on other users' processes. A user
//! who can write to one of them, or to a directory above it, gains the rights of the process that obeys it. So a
//! process with more rights than a plain user obeys only files that no one but root and itself can change, as sudo
//! and sshd do. Root or the effective user must own the file and each directory from `/` on, and neither group nor
//! others may write. An access control list that grants writing also sets the group bits (acl(5)), so checking the
//! mode is enough.
//!
//! Callers may check before or after opening. Others cannot change a path that passes, so it still leads to the
//! checked file.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Uid, User};

use crate::host::machine::rights::has_gained_rights;

pub(super) const OTHERS_WRITE: u32 = 0o022;
/// The bit that lets only the owner of an entry, or of the directory, replace it.
pub(super) const STICKY: u32 = 0o1000;
/// The maximum number of links that are followed: the kernel's limit (`MAXSYMLINKS`).
pub(super) const MOST_LINKS: usize = 40;
/// The maximum number of entries checked in a state directory, which normally has a handful.
const MOST_ENTRIES: usize = 4096;

/// Why a file or directory is not obeyed: the component that others may change, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum NotOurs {
    #[error(
        "{} belongs to {} (mode {mode:04o}), and not to {}; {}",
        component.display(),
        name(*uid),
        ours(*own),
        if *is_directory {
            format!("put it where only {} may write", name(*own))
        } else {
            format!("if you trust what is in it: chown {} {}", name(*own), component.display())
        }
    )]
    Owner {
        component: PathBuf,
        uid: u32,
        mode: u32,
        /// The only user besides root who may own it.
        own: u32,
        /// A directory needs more than a change of owner.
        is_directory: bool,
    },
    #[error(
        "others may write to {} (of {}, mode {mode:04o}); {}",
        component.display(),
        name(*uid),
        match is_special {
            true => "it is a device or a pipe; name a regular file".to_owned(),
            false => format!("if you trust what is in it: chmod go-w {}", component.display()),
        }
    )]
    Writable {
        component: PathBuf,
        uid: u32,
        mode: u32,
        /// Neither a file nor a directory, so others use it, too.
        is_special: bool,
    },
    #[error(
        "{} is a shared directory (of {}, mode {mode:04o}); move it to a directory of its own",
        component.display(),
        name(*uid)
    )]
    Shared { component: PathBuf, uid: u32, mode: u32 },
    #[error("who may write to {} is not known: {cause}; see that it can be read", component.display())]
    Unknown { component: PathBuf, cause: io::Error },
}

/// A user's name, or the number if the user has no name.
pub(super) fn name(uid: u32) -> String {
    if uid == 0 {
        return "root".to_owned();
    }
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

fn ours(own: u32) -> String {
    match own {
        0 => "root".to_owned(),
        own => format!("root or {}", name(own)),
    }
}

/// Whether gpumem has rights that plain users lack, and so must not obey other users.
pub fn has_more_rights() -> bool {
    rustix::process::geteuid().is_root() || has_gained_rights()
}

/// Checks that only root and the effective user may change the file at a path. A missing file passes if the
/// existing part of its path does. For a plain user, every path passes, because other users' rights are not at
/// stake. The error is the first component that others may change.
pub fn prove_ours(path: &Path) -> Result<(), NotOurs> {
    match has_more_rights() {
        true => prove(path, rustix::process::geteuid().as_raw()),
        false => Ok(()),
    }
}

/// Like [`prove_ours`], for a directory and its direct entries.
pub fn prove_directory_ours(folder: &Path) -> Result<(), NotOurs> {
    match has_more_rights() {
        true => prove_directory(folder, rustix::process::geteuid().as_raw()),
        false => Ok(()),
    }
}

/// Checks that only root and the effective user may change a directory itself. The path to it is not checked.
pub fn prove_leaf_ours(path: &Path) -> Result<(), NotOurs> {
    let metadata = fs::metadata(path)
        .map_err(|cause| NotOurs::Unknown { component: path.to_owned(), cause })?;
    prove_one(path, &metadata, rustix::process::geteuid().as_raw())
}

fn prove_directory(folder: &Path, own: u32) -> Result<(), NotOurs> {
    prove(folder, own)?;
    let unknown = |cause| NotOurs::Unknown { component: folder.to_owned(), cause };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(unknown(error)),
    };
    for entry in entries.take(MOST_ENTRIES) {
        let entry = entry.map_err(unknown)?;
        // Check the entry itself; the target of a link is never opened. A missing entry passes.
        if let Ok(metadata) = entry.metadata()
            && !metadata.is_symlink()
        {
            prove_one(&entry.path(), &metadata, own)?;
        }
    }
    Ok(())
}

/// Resolves a path as the kernel would, and checks every directory and link on the way.
fn prove(path: &Path, own: u32) -> Result<(), NotOurs> {
    let unknown =
        |component: &Path, cause| NotOurs::Unknown { component: component.to_owned(), cause };
    let path = std::path::absolute(path).map_err(|cause| unknown(path, cause))?;
    let mut left: VecDeque<OsString> = VecDeque::new();
    push_front(&mut left, &path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let mut shared = prove_step(&at, &metadata_of(&at).map_err(|cause| unknown(&at, cause))?, own)?;
    while let Some(component) = left.pop_front() {
        if component == ".." {
            // The parent was checked on the way down.
            at.pop();
            continue;
        }
        let next = at.join(&component);
        let metadata = match metadata_of(&next) {
            Ok(metadata) => metadata,
            // Others may still create it, but then it is checked again.
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unknown(&next, error)),
        };
        if metadata.is_symlink() {
            // The mode of a link has no effect. Its directory, already checked, decides who may replace it.
            if metadata.uid() != 0 && metadata.uid() != own {
                return Err(owner(&next, &metadata, own));
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(unknown(&next, rustix::io::Errno::LOOP.into()));
            }
            let target = fs::read_link(&next).map_err(|cause| unknown(&next, cause))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            push_front(&mut left, &target);
            continue;
        }
        at = next;
        if metadata.is_dir() && !left.is_empty() {
            shared = prove_step(&at, &metadata, own)?;
            continue;
        }
        prove_one(&at, &metadata, own)?;
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

pub(super) fn push_front(left: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Checks a directory on the path. A world-writable directory passes if it is sticky, because users cannot replace
/// each other's files in it; its metadata is then returned.
fn prove_step(path: &Path, metadata: &Metadata, own: u32) -> Result<Option<Metadata>, NotOurs> {
    let is_shared = metadata.mode() & STICKY != 0 && metadata.mode() & OTHERS_WRITE != 0;
    if is_shared && (metadata.uid() == 0 || metadata.uid() == own) {
        return Ok(Some(metadata.clone()));
    }
    prove_one(path, metadata, own).map(|()| None)
}

fn prove_one(path: &Path, metadata: &Metadata, own: u32) -> Result<(), NotOurs> {
    let uid = metadata.uid();
    if uid != 0 && uid != own {
        return Err(owner(path, metadata, own));
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

fn owner(path: &Path, metadata: &Metadata, own: u32) -> NotOurs {
    NotOurs::Owner {
        component: path.to_owned(),
        uid: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        own,
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

    /// The id of a user who does not exist here, and is not root.
    const OTHER_USER: u32 = 4242;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A directory of the current user inside a shared one, with a file in a subdirectory.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        fs::create_dir(path.join("etc")).unwrap();
        mode(&path.join("etc"), 0o755);
        fs::write(path.join("etc/config.toml"), "").unwrap();
        mode(&path.join("etc/config.toml"), 0o644);
        (folder, path)
    }

    #[test]
    fn what_only_we_may_write_to_is_ours() {
        let (_folder, path) = tree();
        let file = path.join("etc/config.toml");
        prove(&file, own()).unwrap();
        prove(&path.join("etc"), own()).unwrap();
        prove_directory(&path.join("etc"), own()).unwrap();
        prove(&path.join("etc/../etc/./config.toml"), own()).unwrap();
        // A missing file passes, and is checked once it exists.
        prove(&path.join("etc/absent/config.toml"), own()).unwrap();
        prove(&file.join("below-a-file"), own()).unwrap();
        symlink("etc/config.toml", path.join("link")).unwrap();
        prove(&path.join("link"), own()).unwrap();
        symlink(path.join("link"), path.join("etc/again")).unwrap();
        prove(&path.join("etc/again"), own()).unwrap();
    }

    #[test]
    fn what_others_may_write_to_on_the_way_is_named() {
        for (what, bits) in
            [("etc", 0o775), ("etc", 0o757), ("etc/config.toml", 0o664), ("etc/config.toml", 0o646)]
        {
            let (_folder, path) = tree();
            mode(&path.join(what), bits);
            symlink("etc/config.toml", path.join("link")).unwrap();
            for by in ["etc/config.toml", "link"] {
                let error = prove(&path.join(by), own()).unwrap_err();
                assert!(
                    matches!(&error, NotOurs::Writable { component, .. } if *component == path.join(what)),
                    "{by}: {error}"
                );
                let text = error.to_string();
                let next = format!("chmod go-w {}", path.join(what).display());
                assert!(text.contains(&format!("mode {bits:04o}")), "{text}");
                assert!(text.ends_with(&next), "{text}");
            }
        }
    }

    #[test]
    fn a_sticky_directory_is_a_way_and_no_place() {
        let (_folder, path) = tree();
        mode(&path.join("etc"), 0o1777);
        let file = path.join("etc/config.toml");
        let error = prove(&file, own()).unwrap_err();
        assert!(matches!(&error, NotOurs::Shared { .. }), "{error}");
        fs::create_dir(path.join("etc/own")).unwrap();
        mode(&path.join("etc/own"), 0o700);
        fs::write(path.join("etc/own/config.toml"), "").unwrap();
        mode(&path.join("etc/own/config.toml"), 0o600);
        prove(&path.join("etc/own/config.toml"), own()).unwrap();
        prove_directory(&path.join("etc/own"), own()).unwrap();
        assert!(prove(&path.join("etc"), own()).is_err());
        assert!(prove_directory(&path.join("etc"), own()).is_err());
    }

    #[test]
    fn a_directory_of_state_is_as_good_as_what_lies_in_it() {
        let (_folder, path) = tree();
        mode(&path.join("etc/config.toml"), 0o666);
        prove(&path.join("etc"), own()).unwrap();
        assert!(prove_directory(&path.join("etc"), own()).is_err());
        fs::remove_file(path.join("etc/config.toml")).unwrap();
        symlink("/dev/null", path.join("etc/config.toml")).unwrap();
        prove_directory(&path.join("etc"), own()).unwrap();
        prove_directory(&path.join("absent"), own()).unwrap();
    }

    #[test]
    fn links_that_lead_nowhere_end() {
        let (_folder, path) = tree();
        symlink("b", path.join("a")).unwrap();
        symlink("a", path.join("b")).unwrap();
        let error = prove(&path.join("a"), own()).unwrap_err();
        assert!(matches!(error, NotOurs::Unknown { .. }), "{error}");
    }

    #[test]
    fn what_belongs_to_somebody_else_is_not_ours() {
        // Checked for a user who owns none of these files.
        let (_folder, path) = tree();
        let file = path.join("etc/config.toml");
        if own() != 0 {
            let error = prove(&file, OTHER_USER).unwrap_err();
            assert!(matches!(error, NotOurs::Owner { .. }), "{error}");
            return;
        }
        prove(&file, OTHER_USER).unwrap();
        for what in ["", "etc", "etc/config.toml"] {
            let (_folder, path) = tree();
            let what = path.join(what).components().collect::<PathBuf>();
            chown(&what, Some(OTHER_USER), None).unwrap();
            let error = prove(&path.join("etc/config.toml"), 0).unwrap_err();
            assert!(
                matches!(&error, NotOurs::Owner { component, uid, .. }
                    if *component == what && *uid == OTHER_USER),
                "{error}"
            );
            assert!(error.to_string().contains("uid 4242 (mode 0"), "{error}");
            prove(&path.join("etc/config.toml"), OTHER_USER).unwrap();
        }
        // Another user's link to a file of root, in a shared directory.
        let (_folder, path) = tree();
        let shared = path.join("shared");
        fs::create_dir(&shared).unwrap();
        mode(&shared, 0o1777);
        symlink(path.join("etc/config.toml"), shared.join("link")).unwrap();
        prove(&shared.join("link"), 0).unwrap();
        std::os::unix::fs::lchown(shared.join("link"), Some(OTHER_USER), None).unwrap();
        assert!(prove(&shared.join("link"), 0).is_err());
    }
}

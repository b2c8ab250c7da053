//! Opens the files that gpumem writes, such as reports, metrics, recordings, the store and the audit log.
//!
//! Another user may own a directory on the path and replace its entries at any time. gpumem therefore opens one
//! directory after the other, and opens the file relative to the last one. It follows a symbolic link only if the link
//! belongs to root or the caller. If gpumem has more rights than a plain user, no other user may be able to replace the
//! link either. The file must be a regular file that has a single hard link and belongs to root or the caller. These
//! rules exclude another user's file, and a hard link that another user has created to the caller's file. Opening a
//! file never blocks. A file descriptor passed by the caller (`/dev/stdout`, `/dev/fd/63`) may refer to any type of
//! file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, accessat, fcntl_setfl, fstat, openat,
    readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::ownership::{MAX_LINKS, OTHERS_WRITE, STICKY, has_more_rights, name, push_front};

const LONGEST_STEM: usize = 200;

#[derive(Debug, thiserror::Error)]
enum UnsafeFile {
    #[error("{} is a link that another user can change (it belongs to {})", path.display(), name(*uid))]
    Link { path: PathBuf, uid: u32 },
    #[error("it is not a regular file")]
    Irregular,
    #[error("it belongs to {}", name(*uid))]
    Owner { uid: u32 },
    #[error("it has other hard links, which would change too")]
    HardLinks,
}

/// Output file that the caller has chosen, and that is checked before its content is known.
#[derive(Debug)]
pub enum OutputFile {
    Open(File),
    Replaced(PathBuf),
}

impl OutputFile {
    /// Opens or checks a file whose whole content [`OutputFile::write`] will write.
    pub fn document(path: &Path) -> io::Result<Self> {
        if let Some(file) = open_inherited(path) {
            return file.map(Self::Open);
        }
        let output = OutputPath::find(path)?;
        output.check()?;
        accessat(&output.folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty())?;
        Ok(Self::Replaced(path.to_owned()))
    }

    /// Writes the content. The file gets the permissions `mode`. If `mode` is `None`, a replaced file keeps its
    /// permissions, and a new file gets the default permissions. An inherited file descriptor is only written to.
    pub fn write(&self, content: &[u8], mode: Option<u32>) -> io::Result<()> {
        match self {
            Self::Open(file) => (&mut &*file).write_all(content),
            Self::Replaced(path) => OutputPath::find(path)?.replace(content, mode),
        }
    }
}

/// Opens a file for reading and writing with the additional `flags`, or creates it with `mode`. Returns an error if the
/// rules of this module forbid the file or its path.
pub fn open_output(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    match open_inherited(path) {
        Some(file) => file,
        None => OutputPath::find(path)?.open(flags, mode),
    }
}

/// Replaces the content and mode of a file by renaming a temporary file, so that readers see either the old or the
/// new file. A file that cannot be replaced by renaming, such as a bind mount, is overwritten instead.
pub fn replace_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    OutputFile::document(path)?.write(content, Some(mode))
}

/// Opens the file descriptor to which the path refers, such as `/dev/fd/63`. Returns `None` if the path does not
/// refer to a file descriptor.
fn open_inherited(path: &Path) -> Option<io::Result<File>> {
    let number: u32 = match path.to_str()? {
        "/dev/stdout" => 1,
        "/dev/stderr" => 2,
        path => {
            let descriptor = path.strip_prefix("/dev/fd/");
            descriptor.or_else(|| path.strip_prefix("/proc/self/fd/"))?.parse().ok()?
        }
    };
    let standard = match number {
        1 => Some(io::stdout().as_fd().try_clone_to_owned()),
        2 => Some(io::stderr().as_fd().try_clone_to_owned()),
        _ => None,
    };
    // Duplicate the descriptor instead of opening the path, because a duplicate shares the file offset with other
    // writers.
    if let Some(standard) = standard {
        return Some(standard.map(File::from));
    }
    let open = || {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(CWD, format!("/proc/self/fd/{number}"), flags, Mode::empty())?;
        // Clear `O_NONBLOCK`, because writing to a pipe must wait for the reader.
        fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(File::from(file))
    };
    Some(open())
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

struct OutputPath {
    folder: OwnedFd,
    name: OsString,
}

impl OutputPath {
    /// Opens the directory of the file at `path`. The file need not exist.
    fn find(path: &Path) -> io::Result<Self> {
        let mut components = VecDeque::new();
        push_front(&mut components, &std::path::absolute(path)?);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The directory reached so far and its parents remain open. Opening `..` instead could lead elsewhere, because
        // another user may move a directory.
        let mut folder = openat(CWD, "/", flags, Mode::empty())?;
        let mut above: Vec<OwnedFd> = Vec::new();
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = components.pop_front() {
            if name == ".." {
                folder = above.pop().unwrap_or(folder);
                at.pop();
                continue;
            }
            let next = match openat(&folder, &name, flags, Mode::empty()) {
                Err(Errno::NOENT) if components.is_empty() => return Ok(Self { folder, name }),
                next => next?,
            };
            let stat = fstat(&next)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    at.push(name);
                    above.push(std::mem::replace(&mut folder, next));
                }
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    if !is_link_ours(&stat, &folder, &above) {
                        let link = UnsafeFile::Link { path: at.join(name), uid: stat.st_uid };
                        return Err(io::Error::other(link));
                    }
                    let target = readlinkat(&next, "", Vec::new())?.into_bytes();
                    let target = PathBuf::from(OsString::from_vec(target));
                    if target.is_absolute() {
                        folder = above.drain(..).next().unwrap_or(folder);
                        at = PathBuf::from("/");
                    }
                    push_front(&mut components, &target);
                }
                _ if components.is_empty() => return Ok(Self { folder, name }),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Err(Errno::ISDIR.into())
    }

    fn check(&self) -> io::Result<Option<u32>> {
        let stat = match statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat?,
        };
        check(&stat).map_err(io::Error::other)?;
        Ok(Some(stat.st_mode & 0o777))
    }

    fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        self.check()?;
        let always = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = flags | always | OFlags::CLOEXEC;
        let file = openat(&self.folder, &self.name, flags, Mode::from_raw_mode(mode))?;
        check(&fstat(&file)?).map_err(io::Error::other)?;
        Ok(file.into())
    }

    fn replace(&self, content: &[u8], mode: Option<u32>) -> io::Result<()> {
        let mode = mode.or(self.check()?);
        // Two processes can replace the same file simultaneously, so the temporary name contains the pid.
        let name = self.name.as_bytes();
        let mut new = OsString::from(".");
        new.push(OsStr::from_bytes(&name[..name.len().min(LONGEST_STEM)]));
        new.push(format!(".{}.new", std::process::id()));
        let _ = unlinkat(&self.folder, &new, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let write = || {
            let created = Mode::from_raw_mode(mode.unwrap_or(0o666));
            let mut file = File::from(openat(&self.folder, &new, flags, created)?);
            if let Some(mode) = mode {
                file.set_permissions(Permissions::from_mode(mode))?;
            }
            file.write_all(content)?;
            file.sync_all()?;
            renameat(&self.folder, &new, &self.folder, &self.name)?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            File::from(openat(&self.folder, ".", flags, Mode::empty())?).sync_all()
        };
        let mut written = write();
        if written
            .as_ref()
            .is_err_and(|error| error.raw_os_error() == Some(Errno::BUSY.raw_os_error()))
        {
            // A bind mount, as used by container runtimes, cannot be replaced by renaming, so overwrite its content.
            written = self.open(OFlags::empty(), 0).and_then(|mut file| {
                file.set_len(0)?;
                file.write_all(content)
            });
        }
        if written.is_err() {
            let _ = unlinkat(&self.folder, &new, AtFlags::empty());
        }
        written
    }
}

/// Returns whether a symbolic link belongs to root or the caller. If gpumem has more rights than a plain user, the
/// directory of the link and all its parents must belong to root or the caller, too. Only a sticky parent may be
/// writable by other users, because they cannot move the entries in it.
fn is_link_ours(link: &Stat, folder: &OwnedFd, above: &[OwnedFd]) -> bool {
    let is_folder_ours = |folder: &OwnedFd, may_be_sticky: bool| {
        let is_sticky = |stat: &Stat| may_be_sticky && stat.st_mode & STICKY != 0;
        fstat(folder).is_ok_and(|stat| {
            is_ours(stat.st_uid) && (stat.st_mode & OTHERS_WRITE == 0 || is_sticky(&stat))
        })
    };
    let mut above = above.iter();
    is_ours(link.st_uid)
        && (!has_more_rights()
            || (is_folder_ours(folder, false) && above.all(|folder| is_folder_ours(folder, true))))
}

fn check(stat: &Stat) -> Result<(), UnsafeFile> {
    let uid = stat.st_uid;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Err(UnsafeFile::Irregular)
    } else if !is_ours(uid) {
        Err(UnsafeFile::Owner { uid })
    } else if stat.st_nlink > 1 {
        Err(UnsafeFile::HardLinks)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    const OTHER_USER: u32 = 4242;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_completely_or_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("elsewhere"), "untouched").unwrap();
        fs::write(at("page"), "old").unwrap();
        symlink(at("elsewhere"), at(&format!(".page.{}.new", std::process::id()))).unwrap();
        replace_file(&at("page"), b"new", 0o644).unwrap();
        assert_eq!(fs::read_to_string(at("elsewhere")).unwrap(), "untouched");
        assert_eq!(
            (fs::read_to_string(at("page")).unwrap(), mode(&at("page"))),
            ("new".into(), 0o644)
        );
        fs::set_permissions(at("page"), Permissions::from_mode(0o600)).unwrap();
        OutputFile::document(&at("page")).unwrap().write(b"new", None).unwrap();
        assert_eq!(mode(&at("page")), 0o600, "a private file stays private");
        let long = at(&"n".repeat(255));
        replace_file(&long, b"", 0o644).unwrap();
        fs::remove_file(long).unwrap();
        fs::hard_link(at("page"), at("again")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let refused =
            [Path::new("/"), Path::new("/dev/full"), &at("folder"), &at("none/page"), &at("again")];
        for path in refused {
            replace_file(path, b"newer", 0o644).unwrap_err();
            open_output(path, OFlags::APPEND, 0o644).unwrap_err();
        }
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["again", "elsewhere", "folder", "page"]);
        assert_eq!(fs::read_to_string(at("page")).unwrap(), "new");
    }

    #[test]
    fn a_link_is_followed_if_only_the_caller_can_change_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("a/b", at("down")).unwrap();
        symlink("../../c", at("a/b/up")).unwrap();
        symlink(at("down/../b/up"), at("over")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (name, content) in [("over", "new"), ("down/up", "newer")] {
            replace_file(&at(name), content.as_bytes(), 0o644).unwrap();
            assert_eq!(fs::read_to_string(at("c")).unwrap(), content);
            assert!(at("over").is_symlink() && at("a/b/up").is_symlink());
        }
        assert!(replace_file(&at("loop"), b"", 0o644).is_err());
        if !geteuid().is_root() {
            return;
        }
        let error = |name: &str| replace_file(&at(name), b"", 0o644).unwrap_err().to_string();
        lchown(at("a/b/up"), Some(OTHER_USER), None).unwrap();
        assert!(error("over").contains("belongs to uid 4242"), "{}", error("over"));
        lchown(at("a/b/up"), Some(0), None).unwrap();
        replace_file(&at("over"), b"", 0o644).unwrap();
        // Another user can replace these links, although root owns the links.
        for (owner, bits) in [(OTHER_USER, 0o755), (0, 0o775), (0, 0o1777)] {
            chown(at("a/b"), Some(owner), None).unwrap();
            fs::set_permissions(at("a/b"), Permissions::from_mode(bits)).unwrap();
            assert!(error("over").contains("is a link"), "{owner} {bits:o}");
        }
    }
}

//! A framework's version by what pip has left beside it: the name of the folder `torch-2.9.1.dist-info` in
//! the folder of packages that a mapped library lies in.
//!
//! The folder is listed as the process itself would see it, from its own root, and only names are read: no
//! more than a few thousand, and of one no more than a version's letters are kept. It may lie on a disk that
//! hangs: this is called on a thread that may hang with it.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::{LONGEST_VERSION, MAPS_BYTES, TABLE, mapped_file};
use crate::host::Roots;
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};

/// A folder of packages has fewer entries.
const ENTRIES: usize = 1 << 14;
/// What folders of packages are called.
const FOLDERS: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// Whether a framework's version may be told by its metadata, where its paths tell this much of it.
pub fn has_version_metadata(framework: &str, known: Option<&str>) -> bool {
    let has_minor = known.is_some_and(|version| version.contains('.'));
    !has_minor && TABLE.packages.contains_key(framework)
}

/// The version of a framework that the process of this pid and start has mapped. `None` where nothing tells
/// it, or the process is gone.
pub fn read_version(roots: &Roots, pid: u32, start_ticks: u64, framework: &str) -> Option<String> {
    let process = Folder::open(&roots.proc, pid).ok()?;
    let mut content = Vec::new();
    process.read(c"stat", &mut content, STAT_BYTES).ok()?;
    let stat = parse_stat(&content)?;
    // What is held up in the kernel may hold the lock of its maps.
    if stat.start_ticks != start_ticks || stat.state == 'D' || stat.is_exiting {
        return None;
    }
    let mut maps = Vec::new();
    process.read_list(c"maps", &mut maps, MAPS_BYTES).ok()?;
    let path = packages_folder(&maps, framework)?;
    let root = process.folder(c"root").ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let folder = openat2(&root, path, flags, Mode::empty(), within).ok()?;
    let mut found = FoundPackage::of(framework);
    let mut left = ENTRIES;
    let listed = Folder::from(folder).names(|name| {
        left -= 1;
        found.entry(name.to_bytes());
        left > 0
    });
    listed.ok()?;
    found.version
}

/// The folder of packages that a framework's library lies in, by the content of `maps`.
fn packages_folder(maps: &[u8], framework: &str) -> Option<String> {
    for line in maps.split(|&byte| byte == b'\n') {
        let Some((folders, name)) = mapped_file(line) else {
            continue;
        };
        let mut marks = TABLE.marks.iter().filter(|mark| mark.name == framework);
        let is_its = marks.any(|mark| mark.is_of(folders, name));
        if !is_its {
            continue;
        }
        let folders = std::str::from_utf8(folders).ok();
        let folder = folders.and_then(|folders| {
            let ends = FOLDERS.iter().filter_map(|folder| {
                let at = folders.rfind(folder)?;
                Some(at + folder.len() - 1)
            });
            folders.get(..ends.max()?)
        });
        if let Some(folder) = folder {
            return Some(folder.to_owned());
        }
    }
    None
}

/// What the names seen so far tell.
struct FoundPackage {
    packages: &'static [String],
    /// The place of the package that told it in the list.
    place: usize,
    version: Option<String>,
}

impl FoundPackage {
    fn of(framework: &str) -> Self {
        let packages = TABLE.packages.get(framework).map_or(&[][..], Vec::as_slice);
        Self { packages, place: usize::MAX, version: None }
    }

    fn entry(&mut self, name: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let Some(stem) = name.strip_suffix(".dist-info").or_else(|| name.strip_suffix(".egg-info"))
        else {
            return;
        };
        // An egg's tells the Python that it is for, too.
        let mut parts = stem.split('-');
        let (Some(package), Some(version)) = (parts.next(), parts.next()) else {
            return;
        };
        let package = package.to_ascii_lowercase().replace(['.', '-'], "_");
        let Some(place) = self.packages.iter().position(|it| *it == package) else {
            return;
        };
        if place < self.place && is_version(version) {
            self.place = place;
            self.version = Some(public(version).to_owned());
        }
    }
}

/// Whether it looks as PEP 440 has versions: `2.9.1`, `2.9.0a0`, `2.4.1+cu121`.
fn is_version(text: &str) -> bool {
    text.len() <= LONGEST_VERSION
        && text.starts_with(|first: char| first.is_ascii_digit())
        && public(text).contains('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'_'))
}

/// A version without what a builder has added: `2.4.1` of `2.4.1+cu121`.
fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_metadata_has_the_version() {
        for (framework, names, expected) in [
            ("pytorch", &["torch-2.9.1.dist-info"][..], Some("2.9.1")),
            ("pytorch", &["torch-2.4.1+cu121.dist-info"], Some("2.4.1")),
            (
                "pytorch",
                &["torchvision-0.2.1.dist-info", "torch-2.9.0a0-py3.10.egg-info"],
                Some("2.9.0a0"),
            ),
            (
                "tensorflow",
                &["tensorflow_estimator-2.1.0.dist-info", "tensorflow-2.15.1.dist-info"],
                Some("2.15.1"),
            ),
            ("jax", &["jaxlib-0.4.29.dist-info", "jax-0.4.30.dist-info"], Some("0.4.30")),
            ("onnxruntime", &["onnxruntime_gpu-1.17.0.dist-info"], Some("1.17.0")),
            ("cupy", &["cupy_cuda12x-13.6.0.dist-info"], Some("13.6.0")),
            ("paddle", &["paddlepaddle_gpu-3.0.0.dist-info"], Some("3.0.0")),
            ("pytorch", &["torch-mine.dist-info", "torch", "torch-2.dist-info"], None),
            ("pytorch", &["torch-2.\u{1b}[31m.dist-info", "torch-2./x.dist-info"], None),
            ("pytorch", &["torch-2.99999999999999999999999999999999.dist-info"], None),
        ] {
            let mut found = FoundPackage::of(framework);
            for name in names {
                found.entry(name.as_bytes());
            }
            assert_eq!(found.version.as_deref(), expected, "{names:?}");
        }
        assert!(has_version_metadata("tensorflow", Some("2")));
        assert!(!has_version_metadata("tensorflow", Some("2.13.0")));
        assert!(!has_version_metadata("cuda", None));
    }

    #[test]
    fn it_is_looked_for_where_the_library_lies() {
        let folder = |path: &str| {
            let maps = format!(
                "7f00-7f01 r--p 0 08:01 9   /lib/x.so\n7f00-7f01 r--p 0 08:01 9   {path}\n"
            );
            packages_folder(maps.as_bytes(), "pytorch")
        };
        assert_eq!(
            folder("/v/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so").as_deref(),
            Some("/v/lib/python3.11/site-packages")
        );
        assert_eq!(
            folder("/usr/lib/python3/dist-packages/torch/lib/libc10_cuda.so").as_deref(),
            Some("/usr/lib/python3/dist-packages")
        );
        assert_eq!(folder("/opt/torch/lib/libtorch_cuda.so"), None);
        assert_eq!(folder("/v/site-packages/other/lib/other.so"), None);
    }
}

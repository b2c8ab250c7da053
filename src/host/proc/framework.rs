//! Which framework a process has loaded, from the names of the files that it has mapped and from the
//! name of its program.
//!
//! The framework of a process is the one whose allocator holds its memory, because that decides what
//! gives the memory back: the engine that serves before the library that trains, that one before what
//! it is built on, and CUDA itself where nothing else is known. What only launches or communicates
//! (DeepSpeed, Ray, NCCL) allocates through one of them and is told beside it.
//!
//! `/proc/PID/maps` of such a process has thousands of lines. The files that are mapped are not looked at:
//! they may lie on a disk that hangs. The table was made from the files of the packages that the
//! projects publish. What a package's metadata tells of its version is in `metadata`, for a thread that may hang;
//! which programs are engines is in `program`.

mod metadata;
mod program;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use rustix::io;
use serde::Deserialize;

pub use self::metadata::{has_version_metadata, read_version};

use self::program::{engine, is_deepspeed, is_ray};
use crate::host::proc::folder::{Folder, if_readable};

/// How much of the maps is read; 4 MiB hold some 40 000 lines.
const MAPS_BYTES: usize = 4 << 20;

/// A version is no longer than this.
const LONGEST_VERSION: usize = 32;

/// A file that tells that something is loaded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameworkMark {
    /// What it tells of: a framework, or one of [`LIBRARIES`].
    name: String,
    #[serde(default)]
    folder: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    needs_driver: bool,
    #[serde(default)]
    is_numbered: bool,
}

impl FrameworkMark {
    fn is_of(&self, folders: &[u8], name: &[u8]) -> bool {
        name.starts_with(self.prefix.as_bytes()) && folders.ends_with(self.folder.as_bytes())
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    marks: Vec<FrameworkMark>,
    programs: HashMap<String, String>,
    modules: HashMap<String, String>,
    titles: HashMap<String, String>,
    built_on: HashMap<String, Vec<String>>,
    packages: HashMap<String, Vec<String>>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("framework/framework.toml"))
}

/// A test reads it as well, so the default is never seen.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

/// What is told beside frameworks, in this order.
const LIBRARIES: [&str; 3] = ["deepspeed", "nccl", "ray"];

/// What a process has loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// The framework that holds its memory; `None` where it is none that is known.
    pub framework: Option<&'static str>,
    /// The framework's version, as far as a path tells it.
    pub version: Option<String>,
    /// What else it has loaded: other frameworks, and of `deepspeed`, `nccl` and `ray`.
    pub libraries: Vec<&'static str>,
}

/// The folders of a mapped file and its name, by its line in maps; `None` where it is no file.
fn mapped_file(line: &[u8]) -> Option<(&[u8], &[u8])> {
    // What is before the path has no slash in it.
    let path = line[line.iter().position(|&byte| byte == b'/')?..].trim_ascii_end();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some(path.split_at(slash + 1))
}

/// What the content of maps tells of a process with this command line.
fn loaded(maps: &[u8], command: &[Arc<str>]) -> Loaded {
    let mut marks = vec![false; TABLE.marks.len()];
    let mut has_driver = false;
    let mut versions: Vec<(&str, String)> = Vec::new();
    let mut last: (&[u8], &[u8]) = (&[], &[]);
    // A line without its newline was cut, and its path with it.
    for line in maps.split_inclusive(|&byte| byte == b'\n').filter(|it| it.ends_with(b"\n")) {
        // A library is mapped in several parts, one after the other.
        let Some(file) = mapped_file(line).filter(|file| *file != last) else {
            continue;
        };
        last = file;
        let (folders, name) = file;
        if !name.windows(3).any(|part| part == b".so") {
            continue;
        }
        has_driver |= name.starts_with(b"libcuda.so");
        for (mark, is_seen) in TABLE.marks.iter().zip(&mut marks) {
            if mark.is_of(folders, name) {
                *is_seen = true;
                let version = version_of_file(name).filter(|_| mark.is_numbered);
                versions.extend(version.map(|version| (&*mark.name, version)));
            }
        }
    }
    let seen = || {
        let marks = TABLE.marks.iter().zip(&marks).filter(|(_, is_seen)| **is_seen);
        marks.map(|(mark, _)| mark).filter(|mark| has_driver || !mark.needs_driver)
    };
    let mapped = seen().map(|mark| &*mark.name).find(|name| !LIBRARIES.contains(name));
    // A program's name proves nothing where nothing of a GPU is loaded.
    let framework = mapped.map(|mapped| engine(command).unwrap_or(mapped));
    let mut libraries: Vec<&str> = Vec::new();
    for mark in seen() {
        let is_other = framework.is_some_and(|framework| is_beside(mark, framework));
        if is_other && !libraries.contains(&&*mark.name) {
            libraries.push(&mark.name);
        }
    }
    libraries.extend(LIBRARIES.into_iter().filter(|library| {
        seen().any(|mark| mark.name == *library)
            || match *library {
                "deepspeed" => framework.is_some() && is_deepspeed(command),
                "ray" => framework.is_some() && is_ray(command),
                _ => false,
            }
    }));
    // The longest tells most.
    let versions = versions.into_iter().filter(|(of, _)| Some(*of) == framework);
    let version = versions.map(|(_, version)| version).max_by_key(String::len);
    Loaded { framework, version, libraries }
}

/// The number after a library's `.so.`, as far as it goes.
fn version_of_file(name: &[u8]) -> Option<String> {
    let (_, number) = std::str::from_utf8(name).ok()?.split_once(".so.")?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (number.len() <= LONGEST_VERSION && number.split('.').all(is_number)).then(|| number.to_owned())
}

/// Whether a mark tells of another framework than the one that holds the memory. CUDA is under all of them,
/// and half of what computes on a CPU has Numba.
fn is_beside(mark: &FrameworkMark, framework: &str) -> bool {
    let built_on = TABLE.built_on.get(framework);
    let is_for_cpus = mark.name == "numba" && mark.folder == "/numba/";
    mark.name != framework
        && mark.name != "cuda"
        && !is_for_cpus
        && !LIBRARIES.contains(&&*mark.name)
        && built_on.is_none_or(|parts| !parts.contains(&mark.name))
}

/// What a process has loaded; `None` where its maps may not be read.
pub(in crate::host) fn read_framework(
    folder: &Folder,
    command: &[Arc<str>],
) -> io::Result<Option<Loaded>> {
    let mut maps = Vec::new();
    let read = if_readable(folder.read_list(c"maps", &mut maps, MAPS_BYTES))?;
    Ok(read.map(|()| loaded(&maps, command)))
}

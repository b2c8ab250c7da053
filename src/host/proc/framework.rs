//! Detects which framework a process has loaded, from the names of its mapped files and of its program.
//!
//! A process's framework is the one whose allocator holds its memory, because that decides how to free the
//! memory: a serving engine before the training library, that before what it is built on, and CUDA itself if
//! nothing else is known. Launchers and communication libraries (DeepSpeed, Ray, NCCL) allocate through one of
//! these and are listed beside it.
//!
//! `/proc/PID/maps` of such a process has thousands of lines. The mapped files themselves are not read: they
//! may be on a disk that hangs. The table was made from the files of published packages. `program`
//! knows which programs are engines.

mod program;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use self::program::{engine, is_deepspeed, is_ray};

/// The most that is read of the maps: some 40 000 lines.
pub(in crate::host) const MAPS_BYTES: usize = 4 << 20;

/// The longest version that is kept.
const LONGEST_VERSION: usize = 32;

/// A file name that shows that something is loaded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameworkMark {
    /// A framework, or one of [`LIBRARIES`].
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
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("framework/framework.toml"))
}

/// A test parses it too, so the default is never used.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

/// What is listed beside a framework, in this order.
const LIBRARIES: [&str; 3] = ["deepspeed", "nccl", "ray"];

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// The framework that holds its memory; `None` if no known one does.
    pub framework: Option<&'static str>,
    /// The framework's version, if a path contains it.
    pub version: Option<String>,
    /// What else is loaded: other frameworks, and `deepspeed`, `nccl` and `ray`.
    pub libraries: Vec<&'static str>,
}

/// The folders and name of the file in a line of maps; `None` if the line has no file.
fn mapped_file(line: &[u8]) -> Option<(&[u8], &[u8])> {
    // The fields before the path contain no slash.
    let path = line[line.iter().position(|&byte| byte == b'/')?..].trim_ascii_end();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some(path.split_at(slash + 1))
}

/// What the maps of a process with this command line show.
pub(in crate::host) fn loaded(maps: &[u8], command: &[Arc<str>]) -> Loaded {
    let mut marks = vec![false; TABLE.marks.len()];
    let mut has_driver = false;
    let mut versions: Vec<(&str, String)> = Vec::new();
    let mut last: (&[u8], &[u8]) = (&[], &[]);
    // A line without its newline is cut, and may be missing part of its path.
    for line in maps.split_inclusive(|&byte| byte == b'\n').filter(|it| it.ends_with(b"\n")) {
        // A library has several mappings in a row.
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
    // A program's name proves nothing if no GPU library is loaded.
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
    // The longest version is the most precise.
    let versions = versions.into_iter().filter(|(of, _)| Some(*of) == framework);
    let version = versions.map(|(_, version)| version).max_by_key(String::len);
    Loaded { framework, version, libraries }
}

/// The version after a library's `.so.`.
fn version_of_file(name: &[u8]) -> Option<String> {
    let (_, number) = std::str::from_utf8(name).ok()?.split_once(".so.")?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (number.len() <= LONGEST_VERSION && number.split('.').all(is_number)).then(|| number.to_owned())
}

/// Whether a mark shows another framework than the one that holds the memory. CUDA is below all of them, and
/// Numba is in half of what computes on a CPU.
fn is_beside(mark: &FrameworkMark, framework: &str) -> bool {
    let built_on = TABLE.built_on.get(framework);
    let is_for_cpus = mark.name == "numba" && mark.folder == "/numba/";
    mark.name != framework
        && mark.name != "cuda"
        && !is_for_cpus
        && !LIBRARIES.contains(&&*mark.name)
        && built_on.is_none_or(|parts| !parts.contains(&mark.name))
}

//! What a mapped file's path tells of its framework's version.
//!
//! A package that pip installs tells nothing: its folder is called `torch`. Eggs, conda's package cache,
//! Nix, Guix, Spack and the module trees of clusters have the version in a folder's name, some libraries
//! have it after their `.so`. A folder that a person named (`torch-2.1-experiments`) tells nothing, so
//! only the shapes of these tools count. Pure, and nothing is looked up.

/// A version is no longer than this.
const LONGEST: usize = 32;

/// What packages of a framework are called where that is not its own name, in lower case.
const PACKAGES: &[(&str, &[&str])] = &[
    ("pytorch", &["torch", "libtorch"]),
    ("jax", &["jaxlib", "jax-cuda12-plugin", "jax_cuda12_plugin"]),
    ("rapids", &["librmm", "rmm", "libcudf", "cudf"]),
    ("onnxruntime", &["onnxruntime-gpu", "onnxruntime_gpu", "onnx-runtime"]),
    ("llama.cpp", &["llama-cpp"]),
];

/// What a package of Python is prefixed with by Spack, Nix and Guix.
const PREFIXES: &[&str] = &["py-", "python-", "python3-"];

/// The version in the folders of a path, `/nix/store/…-python3.11-torch-2.1.0/lib/`.
pub(super) fn of_folders(folders: &[u8], framework: &str) -> Option<String> {
    // What is not text names no package; and most paths have no version at all.
    let folders = std::str::from_utf8(folders).ok()?;
    if !folders.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_spack = folders.contains("spack/");
    let mut parent = "";
    let mut parts = folders.split('/').peekable();
    while let Some(part) = parts.next() {
        let plain = part.to_ascii_lowercase();
        let plain = package(&plain, parent == "store");
        if let Some(rest) = after_name(plain, framework) {
            let found = match rest.strip_prefix('-') {
                Some(rest) => leading(rest).filter(|(_, rest)| {
                    matches!(parent, "pkgs" | "store")
                        || plain.ends_with(".egg")
                        || (is_spack && is_hash(rest))
                }),
                // A module's folder: the name, and in it the version.
                None => parts
                    .peek()
                    .and_then(|next| leading(next))
                    .filter(|(_, rest)| rest.is_empty() || rest.starts_with('-')),
            };
            if let Some((version, _)) = found {
                return Some(version.to_owned());
            }
        }
        parent = part;
    }
    None
}

/// The number after a library's `.so.`, as far as it goes.
pub(super) fn of_file(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let (_, number) = name.split_once(".so.")?;
    let is_number = !number.is_empty()
        && number.len() <= LONGEST
        && number
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    is_number.then(|| number.to_owned())
}

/// A package's name and version, without the hash before it in a store and what says that it is Python's.
fn package(part: &str, is_in_store: bool) -> &str {
    let mut part = part;
    if is_in_store
        && let Some((hash, rest)) = part.split_once('-')
        && hash.len() == 32
    {
        part = rest;
    }
    if let Some(rest) = PREFIXES.iter().find_map(|prefix| part.strip_prefix(prefix)) {
        return rest;
    }
    // `python3.11-torch-2.1.0`
    match part.split_once('-') {
        Some((python, rest))
            if python.strip_prefix("python3.").is_some_and(|minor| {
                !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
            }) =>
        {
            rest
        }
        _ => part,
    }
}

/// What follows the name of one of the framework's packages.
fn after_name<'a>(part: &'a str, framework: &str) -> Option<&'a str> {
    let others =
        PACKAGES.iter().find(|(of, _)| *of == framework).map_or(&[][..], |(_, others)| *others);
    std::iter::once(&framework).chain(others).filter_map(|name| part.strip_prefix(name)).find(
        |rest| {
            let mut rest = rest.bytes();
            match rest.next() {
                None => true,
                Some(b'-') => rest.next().is_some_and(|byte| byte.is_ascii_digit()),
                Some(_) => false,
            }
        },
    )
}

/// A version of two numbers or more at the start of a text, and what follows it. Letters may follow a
/// number, as of one that is not released yet: `2.3.0a0`.
fn leading(text: &str) -> Option<(&str, &str)> {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    let end = text.bytes().take_while(|&byte| is_inside(byte)).count();
    let (version, rest) = text.split_at(end);
    let version = version.strip_suffix(".egg").unwrap_or(version);
    let is_version = version.contains('.')
        && version.len() <= LONGEST
        && version.split('.').all(|part| part.starts_with(|first: char| first.is_ascii_digit()));
    is_version.then_some((version, rest))
}

/// Spack's `-` and hash, shortened by some sites to seven characters.
fn is_hash(rest: &str) -> bool {
    rest.strip_prefix('-').is_some_and(|hash| {
        (7..=32).contains(&hash.len()) && hash.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

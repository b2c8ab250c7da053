//! Finds the driver that cargo has built.

use std::path::PathBuf;

const NAME: &str = "libmock_cuda.so";

/// Returns the path of the driver that cargo has built for the calling test, benchmark or binary.
///
/// If a package depends on this package, cargo builds both crate types, and leaves the cdylib beside the test
/// binaries in `target/<profile>/deps/`. If this package itself is built, cargo also creates a hard link in
/// `target/<profile>/`. The link can belong to an older build, so this function searches `deps` first.
///
/// # Panics
///
/// If there is no driver.
#[allow(clippy::panic, reason = "only tests call this, and they cannot continue")]
pub fn library() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let folders = executable.ancestors().skip(1).take(3);
    let found = folders
        .flat_map(|folder| [folder.join("deps").join(NAME), folder.join(NAME)])
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("no {NAME} near {}; build mock-cuda for the same profile", executable.display())
    })
}

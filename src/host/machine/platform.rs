//! The kind of system, as far as troubleshooting advice depends on it: a container, WSL, a machine run by
//! systemd.

use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Platform {
    /// The container's runtime by its marker file: `docker`, `podman`. Other runtimes leave none.
    pub container: Option<&'static str>,
    /// Linux under Windows, with Windows' driver.
    pub is_wsl: bool,
}

/// Looks for marker files below `root`, and in the kernel's release.
pub fn read_platform(root: &Path, kernel: Option<&str>) -> Platform {
    let there = |path: &str| root.join(path).exists();
    let container = if there(".dockerenv") {
        Some("docker")
    } else if there("run/.containerenv") {
        Some("podman")
    } else {
        None
    };
    Platform {
        container,
        // WSL 1 has Microsoft in it, WSL 2 microsoft-standard-WSL2.
        is_wsl: kernel.is_some_and(|release| release.to_ascii_lowercase().contains("microsoft")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_show_what_it_is() {
        let root = tempfile::tempdir().unwrap();
        let read = |kernel| read_platform(root.path(), kernel);
        assert_eq!(read(Some("6.12.8")), Platform::default());
        assert_eq!(read(None), Platform::default());
        assert!(read(Some("5.15.167.4-microsoft-standard-WSL2")).is_wsl);
        std::fs::create_dir_all(root.path().join("run")).unwrap();
        std::fs::write(root.path().join("run/.containerenv"), "").unwrap();
        assert_eq!(read(None).container, Some("podman"));
        std::fs::write(root.path().join(".dockerenv"), "").unwrap();
        assert_eq!(read(None).container, Some("docker"));
    }
}

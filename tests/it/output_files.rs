//! gpumem writes files as root in directories that an attacker controls. The attacker creates symbolic links, FIFOs,
//! hard links and regular files under the name of the output file, and swaps them while gpumem writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::{LineProcess, Machine, one_gpu};
use crate::scenarios::random::Random;
use crate::support::{self, Output, find, finish};

const ATTACKER: u32 = 65534;
const NAME: &str = "page.xml";
const ROOTS_CONTENT: &str = "root's own";

/// A directory with a file that belongs to root, the attacker's directory, and a directory that every user can write
/// to.
struct Directories {
    folder: tempfile::TempDir,
    machine: Machine,
}

impl Directories {
    fn new() -> Self {
        let directories =
            Self { folder: tempfile::tempdir().unwrap(), machine: Machine::new(&one_gpu(&[])) };
        set_mode(directories.folder.path(), 0o755);
        for (name, bits) in [("roots", 0o755), ("theirs", 0o755), ("shared", 0o1777)] {
            fs::create_dir(directories.path(name)).unwrap();
            set_mode(&directories.path(name), bits);
        }
        chown(directories.path("theirs"), Some(ATTACKER), Some(ATTACKER)).unwrap();
        fs::write(directories.path("roots").join(NAME), ROOTS_CONTENT).unwrap();
        directories
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that the attacker runs in `folder`.
    fn attacker(&self, folder: &Path, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(folder).uid(ATTACKER).gid(ATTACKER);
        command.env("ROOTS", self.path("roots"));
        command
    }

    /// Makes root write to the path with each command that has an output file. Returns the names and the results.
    fn write<'a>(
        &'a self,
        path: &'a Path,
    ) -> impl Iterator<Item = (&'static str, Output)> + use<'a> {
        let path = path.to_str().unwrap();
        let run = ["run", "--allow-no-gpu", "-q", "--report", path, "true"];
        let commands = [
            ("metrics", vec!["metrics", "--output", path]),
            ("report", run.to_vec()),
            ("record", vec!["record", path, "--interval", "10ms", "--duration", "10ms"]),
        ];
        let write = move |(way, words): (&'static str, Vec<&str>)| {
            let command = self.machine.command(&words);
            let mut timed = Command::new("timeout");
            (way, finish(support::before(timed.arg("60"), &command)))
        };
        commands.into_iter().map(write)
    }

    #[track_caller]
    fn assert_untouched(&self, context: &str) {
        let roots = self.path("roots");
        let names: Vec<_> =
            fs::read_dir(&roots).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME], "{context}");
        assert_eq!(fs::read_to_string(roots.join(NAME)).unwrap(), ROOTS_CONTENT, "{context}");
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn root_does_not_write_through_another_users_files() {
    or_skip!(support::root("root"));
    let directories = Directories::new();
    for folder in ["theirs", "shared"] {
        let folder = directories.path(folder);
        for (script, name, word) in [
            ("ln -s $ROOTS/page.xml page.xml", "page.xml", "is a link"),
            ("ln -s $ROOTS/new.xml page.xml", "page.xml", "is a link"),
            ("ln -s $ROOTS d", "d/page.xml", "is a link"),
            ("ln -s / e; mkdir f; ln -s ../e f/g", "f/g/tmp/page.xml", "is a link"),
            ("mkfifo page.xml", "page.xml", "not a regular file"),
            ("echo theirs > page.xml", "page.xml", "belongs to"),
        ] {
            finish(&mut directories.attacker(&folder, "sh", &["-c", script])).exits(0);
            for (way, output) in directories.write(&folder.join(name)) {
                let context = format!("{way} in {}: {script}: {output:?}", folder.display());
                assert!(![0, 124].contains(&output.code), "{context}");
                assert!(
                    output.stderr.contains(word) && output.stderr.contains("page.xml"),
                    "{context}"
                );
                directories.assert_untouched(&context);
            }
            let clean = "rm -rf page.xml d e f";
            finish(&mut directories.attacker(&folder, "sh", &["-c", clean])).exits(0);
        }
        // With fs.protected_hardlinks=0, the attacker could create this hard link to root's file.
        fs::hard_link(directories.path("roots").join(NAME), folder.join(NAME)).unwrap();
        for (way, output) in directories.write(&folder.join(NAME)) {
            assert!(output.code != 0 && output.stderr.contains("hard links"), "{way}: {output:?}");
            directories.assert_untouched(way);
        }
        fs::remove_file(folder.join(NAME)).unwrap();
    }
}

#[test]
fn root_writes_new_files_own_links_and_descriptors() {
    or_skip!(support::root("root"));
    let directories = Directories::new();
    let theirs = directories.path("theirs");
    for (way, output) in directories.write(&theirs.join(NAME)) {
        assert_eq!(output.code, 0, "{way}: {output:?}");
        let written = fs::symlink_metadata(theirs.join(NAME)).unwrap();
        assert!(written.is_file() && written.uid() == 0 && written.len() > 0, "{way}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1, "{way}");
        fs::remove_file(theirs.join(NAME)).unwrap();
    }
    // Only root can change these directories, so gpumem follows root's links.
    std::os::unix::fs::symlink("roots", directories.path("link")).unwrap();
    std::os::unix::fs::symlink(
        "../theirs/../roots/linked.prom",
        directories.path("roots/new.prom"),
    )
    .unwrap();
    let page = directories.path("link/new.prom");
    let page = page.to_str().unwrap();
    directories.machine.run(&["metrics", "--output", page]).exits(0);
    assert!(directories.path("roots/new.prom").is_symlink());
    assert!(fs::metadata(directories.path("roots/linked.prom")).unwrap().len() > 0);
    // Write to file descriptors that the caller passed.
    let bash = or_skip!(find("bash", "bash"));
    let command = directories.machine.command(&[]);
    for (script, written) in [
        ("\"$@\" metrics --output /dev/stdout | tee", "gpumem_"),
        ("\"$@\" metrics --output >(sed s/^/passed:/)", "passed:"),
        ("\"$@\" record --interval 10ms --duration 10ms /dev/fd/3 3>&1 | tee", "gpumem.snapshot"),
    ] {
        let mut shell = Command::new(&bash);
        shell.args(["-c", script, "bash"]);
        let output = finish(support::before(&mut shell, &command)).exits(0);
        assert!(output.stdout.contains(written), "{script}: {output:?}");
    }
}

/// Swaps a directory with a link, and the file in the directory with a link or FIFO, at random and as fast as possible.
const EXCHANGES: &str = r#"
import os, random, sys
random.seed(int(sys.argv[1]))
roots = os.environ["ROOTS"]
os.mkdir("real")
os.symlink(roots, "link")
print("ready", flush=True)
while True:
    try:
        if not os.path.lexists("real/l"):
            os.symlink(roots + "/page.xml", "real/l")
        if not os.path.lexists("real/p"):
            os.mkfifo("real/p")
        open("real/f", "a").close()
        held = random.choice(["real", "real", "link"])
        os.rename(held, "d")
        if held == "real":
            kind = random.choice("lpf")
            os.rename("d/" + kind, "d/page.xml")
            if random.random() < 0.5:
                os.rename("d", "real")
                os.rename("link", "d")
                os.rename("d", "link")
                os.rename("real", "d")
            os.rename("d/page.xml", "d/" + kind)
        os.rename("d", held)
    except OSError:
        pass
"#;

#[test]
fn exchanging_files_during_a_write_misdirects_nothing() {
    or_skip!(support::root("root"));
    // The first python3 on PATH can be in a directory that the attacker cannot enter, such as root's home directory.
    let python = "/usr/bin/python3";
    or_skip!(find("python3", "python3").filter(|_| Path::new(python).exists()));
    let rounds = std::env::var("GPUMEM_TEST_RACES").map_or(20, |text| text.parse().unwrap());
    let directories = Directories::new();
    let theirs = directories.path("theirs");
    let mut random = Random::new("output files", 1);
    for _ in 0..rounds / 10 {
        let seed = random.whole(0, 1000).to_string();
        let words = ["-I", "-c", EXCHANGES, &seed];
        let mut attacker = LineProcess::start(&mut directories.attacker(&theirs, python, &words));
        assert_eq!(attacker.line(), "ready");
        for _ in 0..5 {
            for (way, output) in directories.write(&theirs.join("d").join(NAME)) {
                assert_ne!(output.code, 124, "{way}: {output:?}");
                directories.assert_untouched(way);
            }
        }
        drop(attacker);
        fs::remove_dir_all(&theirs).unwrap();
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(ATTACKER), Some(ATTACKER)).unwrap();
    }
}

#[test]
fn output_to_dev_stdout_keeps_other_output() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all");
    let script =
        r#"{ echo before; "$1" metrics --replay "$3" --output /dev/stdout; echo after; } > "$2""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", support::gpumem()]).arg(&file);
    finish(shell.arg(support::short_demo())).exits(0);
    let text = fs::read_to_string(file).unwrap();
    assert!(text.starts_with("before\n# HELP ") && text.ends_with("_bytes 0.0\nafter\n"), "{text}");
}

/// `docker run --volume FILE:FILE` mounts a file like this.
#[test]
fn a_mounted_file_is_written_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, mounted) = (folder.path().join("outside"), folder.path().join("mounted"));
    fs::write(&outside, "x".repeat(1 << 20)).unwrap();
    fs::write(&mounted, "").unwrap();
    let script =
        r#"mount --bind "$0" "$1" || exit 77; exec "$2" metrics --replay "$3" --output "$1""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).args([&outside, &mounted]).arg(support::gpumem());
    let output = finish(command.arg(support::short_demo()));
    if [1, 77].contains(&output.code) && !output.stderr.contains("gpumem:") {
        support::skip("a mount namespace", "not permitted here; run as root");
        return;
    }
    output.exits(0);
    let text = fs::read_to_string(outside).unwrap();
    assert!(text.starts_with("# HELP ") && !text.contains("xxx"), "{}", text.len());
}

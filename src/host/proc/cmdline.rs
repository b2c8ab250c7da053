//! Parses `/proc/PID/cmdline` and reads the working directory. The command line is in the memory of the process,
//! which can overwrite it with any text.

use std::sync::Arc;

use rustix::io;

use crate::host::proc::folder::Folder;
use crate::host::secrets;
use crate::model::program::file_name;

/// Maximum length of the command line in snapshots, recordings and reports. Linux allows 6 MiB.
pub(in crate::host) const CMDLINE_BYTES: usize = 4 << 10;

/// Maximum number of arguments. Each argument requires an allocation, even if it has a single byte.
const ARGUMENTS: usize = 1024;

/// Parses `/proc/PID/cmdline`. If the command line exceeds 4 KiB or 1024 arguments, only its start is returned, and the
/// last argument ends with `…`. Invalid UTF-8 is replaced, and secrets are replaced by `***`. Returns `None` if `bytes`
/// is empty, as it is for kernel threads and zombies.
pub fn parse_cmdline(bytes: &[u8]) -> Option<Arc<[Arc<str>]>> {
    let mut is_cut = bytes.len() > CMDLINE_BYTES;
    let mut bytes = &bytes[..bytes.len().min(CMDLINE_BYTES)];
    if !is_cut {
        bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
        // A process that sets a title overwrites the arguments with a single string, followed by zero bytes.
        let end = bytes.iter().position(|&byte| byte == 0);
        if let Some(end) = end.filter(|&end| bytes[end..].iter().all(|&byte| byte == 0)) {
            bytes = &bytes[..end];
        }
    }
    if bytes.is_empty() {
        return None;
    }
    let mut arguments = Vec::new();
    for argument in bytes.split(|&byte| byte == 0) {
        if arguments.len() == ARGUMENTS {
            is_cut = true;
            break;
        }
        arguments.push(String::from_utf8_lossy(argument));
    }
    if is_cut && let Some(last) = arguments.last_mut() {
        // Remove the U+FFFD that replaces a truncated character.
        *last = format!("{}…", last.trim_end_matches('\u{fffd}')).into();
    }
    secrets::hide(&mut arguments);
    Some(arguments.iter().map(|argument| Arc::from(&**argument)).collect())
}

pub(in crate::host) fn read_cmdline(
    folder: &Folder,
    content: &mut Vec<u8>,
) -> Option<Arc<[Arc<str>]>> {
    // One additional byte shows whether the command line exceeds the limit.
    folder.read(c"cmdline", content, CMDLINE_BYTES + 1).ok()?;
    parse_cmdline(content)
}

const PYTHON_OPTIONS_WITH_VALUE: [&str; 3] = ["-W", "-X", "--check-hash-based-pycs"];

/// Program that a command line starts. For Python, it is the script or the module.
pub(in crate::host) struct Program<'a, S> {
    pub name: &'a str,
    pub is_module: bool,
    pub arguments: &'a [S],
}

/// Returns `None` for an empty command line, and for Python without a script or module.
pub(in crate::host) fn parse_program<S: AsRef<str>>(command: &[S]) -> Option<Program<'_, S>> {
    let (program, mut arguments) = command.split_first()?;
    let name = file_name(program.as_ref());
    if !name.starts_with("python") {
        return Some(Program { name, is_module: false, arguments });
    }
    while let Some((argument, rest)) = arguments.split_first() {
        arguments = rest;
        match argument.as_ref() {
            "-m" => {
                let (module, arguments) = rest.split_first()?;
                return Some(Program { name: module.as_ref(), is_module: true, arguments });
            }
            "-c" => return None,
            option if PYTHON_OPTIONS_WITH_VALUE.contains(&option) => arguments = rest.get(1..)?,
            option if option.starts_with('-') => {}
            script => {
                return Some(Program { name: file_name(script), is_module: false, arguments });
            }
        }
    }
    None
}

/// Returns the last component of a process's working directory, with secrets replaced by `***`. Omits the rest of the
/// path, which only the owner of the process may see.
pub(super) fn read_working_directory(folder: &Folder) -> io::Result<String> {
    folder.link(c"cwd", |path| {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let mut name = String::from_utf8_lossy(name);
        secrets::hide_in_value(&mut name);
        name.into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(bytes: &[u8]) -> Option<Vec<String>> {
        parse_cmdline(bytes).map(|arguments| arguments.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn secrets_in_argv_are_masked() {
        let arguments_kept = arguments(b"server\0--token=s3cret\0--api-key\0s3cret\0").unwrap();
        assert_eq!(arguments_kept, ["server", "--token=***", "--api-key", "***"]);
        // Secrets must also be replaced if they are truncated.
        let mut long = b"server\0--token=".to_vec();
        long.resize(CMDLINE_BYTES + 1, b's');
        assert_eq!(arguments(&long).unwrap(), ["server", "--token=***"]);
    }

    #[test]
    fn arguments_end_at_nul() {
        for (bytes, expected) in [
            (&b"python\0train.py\0--lr\x000.1\0"[..], &["python", "train.py", "--lr", "0.1"][..]),
            (b"sh\0-c\0\0x\0", &["sh", "-c", "", "x"]),
            (b"prog\0-a\0\0", &["prog", "-a", ""]),
            (b"a b\nc\0\xffd\0", &["a b\nc", "\u{fffd}d"]),
            (b"unterminated", &["unterminated"]),
        ] {
            assert_eq!(arguments(bytes).unwrap(), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn the_padding_after_a_title_is_dropped() {
        assert_eq!(arguments(b"ray::train()\0\0\0\0\0\0").unwrap(), ["ray::train()"]);
        assert_eq!(arguments(b"nginx: worker process").unwrap(), ["nginx: worker process"]);
    }

    #[test]
    fn an_empty_argv_is_none() {
        assert_eq!(arguments(b""), None);
        assert_eq!(arguments(b"\0\0\0"), None);
    }

    #[test]
    fn long_argv_is_cut_and_marked() {
        let whole = [b'x'; CMDLINE_BYTES];
        assert_eq!(arguments(&whole).unwrap()[0].len(), CMDLINE_BYTES);

        let mut long = b"prog\0".to_vec();
        long.resize(CMDLINE_BYTES - 1, b'x');
        long.extend("é".as_bytes());
        let cut = arguments(&long).unwrap();
        assert_eq!((cut.len(), &*cut[0]), (2, "prog"));
        assert!(cut[1].ends_with("x…"), "{:?}", &cut[1][cut[1].len() - 8..]);

        let arguments_kept = arguments(&[0; CMDLINE_BYTES + 1]).unwrap();
        assert_eq!((arguments_kept.len(), &*arguments_kept[ARGUMENTS - 1]), (ARGUMENTS, "…"));
        let arguments_kept = arguments(&b"a\0".repeat(ARGUMENTS + 1)).unwrap();
        assert_eq!((arguments_kept.len(), &*arguments_kept[ARGUMENTS - 1]), (ARGUMENTS, "a…"));
    }
}

//! Whether a process is a Jupyter kernel, from its argv.
//!
//! A server starts a kernel with the path of a connection file, `…/kernel-ID.json`; where ID is a
//! UUID, it is the kernel's id at the server's API. Asking the server is not done here.

use std::sync::Arc;

use crate::model::snapshot::Jupyter;

/// Programs and Python modules that are kernels.
const LAUNCHERS: [&str; 6] = [
    "ipykernel",
    "ipykernel_launcher",
    "colab_kernel_launcher",
    "xpython",
    "xeus-python",
    "evcxr_jupyter",
];

/// Flags that carry a connection file.
const FLAGS: [&str; 6] = [
    "-f",
    "--f",
    "--file",
    "--connection-file",
    "--control_file",
    "--IPKernelApp.connection_file",
];

/// The kernel that a process is, by its argv; `None` where it is none. Clients of a kernel
/// (`--existing`) are none.
pub fn parse_kernel<S: AsRef<str>>(arguments: &[S]) -> Option<Jupyter> {
    let mut is_kernel = false;
    let mut connection_file = None;
    let mut flag = "";
    for argument in arguments {
        let argument = argument.as_ref();
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with('-') => (name, value),
            _ => (flag, argument),
        };
        if connection_file.is_none() && FLAGS.contains(&name) && kernel_name(value).is_some() {
            connection_file = Some(value);
        }
        is_kernel |= LAUNCHERS.contains(&program(argument));
        flag = argument;
    }
    if !is_kernel && connection_file.is_none() {
        return None;
    }
    Some(Jupyter {
        kernel_id: connection_file
            .and_then(kernel_name)
            .filter(|name| is_uuid(name))
            .map(Arc::from),
        connection_file: connection_file.map(Arc::from),
        ..Jupyter::default()
    })
}

/// The last part of a path, without `.py`.
fn program(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".py").unwrap_or(name)
}

/// ID of `…/kernel-ID.json`.
fn kernel_name(path: &str) -> Option<&str> {
    path.rsplit('/')
        .next()?
        .strip_prefix("kernel-")?
        .strip_suffix(".json")
}

fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-');
    let is_hexadecimal = |group: &str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    [8, 4, 4, 4, 12].iter().all(|&digits| {
        groups
            .next()
            .is_some_and(|group| group.len() == digits && is_hexadecimal(group))
    }) && groups.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";

    fn kernel(line: &str) -> Option<(Option<String>, Option<String>)> {
        let arguments: Vec<&str> = line.split(' ').collect();
        let owned = |text: Option<Arc<str>>| text.map(|text| text.to_string());
        parse_kernel(&arguments)
            .map(|kernel| (owned(kernel.kernel_id), owned(kernel.connection_file)))
    }

    #[test]
    fn kernels_are_known_by_their_connection_files() {
        let file = format!("/home/ann/.local/share/jupyter/runtime/kernel-{ID}.json");
        let expected = Some((Some(ID.to_owned()), Some(file.clone())));
        for line in [
            format!("/opt/conda/bin/python -m ipykernel_launcher -f {file}"),
            format!("python3 -Xfrozen_modules=off -m ipykernel_launcher --f={file}"),
            format!("python /x/site-packages/ipykernel_launcher.py -f {file} --debug"),
            format!("python3 -m colab_kernel_launcher -f {file}"),
            format!("xpython -f {file}"),
            format!("python -m ipykernel --IPKernelApp.connection_file={file}"),
        ] {
            assert_eq!(kernel(&line), expected, "{line}");
        }
    }

    #[test]
    fn a_kernel_without_a_uuid_has_no_id() {
        // As VS Code starts them.
        let file = "/tmp/kernel-v2-4711AbCd.json";
        assert_eq!(
            kernel(&format!("python -m ipykernel_launcher -f {file}")),
            Some((None, Some(file.to_owned())))
        );
        assert_eq!(kernel("python -m ipykernel"), Some((None, None)));
    }

    #[test]
    fn what_only_talks_to_a_kernel_is_none() {
        for line in [
            format!("jupyter-console --existing kernel-{ID}.json"),
            format!("vim /run/kernel-{ID}.json"),
            "python train.py -f config.json".to_owned(),
            "python -f kernel-.txt".to_owned(),
            "".to_owned(),
        ] {
            assert_eq!(kernel(&line), None, "{line}");
        }
        assert_eq!(parse_kernel::<&str>(&[]), None);
    }
}

//! Inserts a server's address and option values into advice texts.

use std::net::{IpAddr, SocketAddr};

use super::unload::{UnloadServer, server_of, unload_servers, values};
use super::{AdviceText, framework_of};
use crate::model::Process;

impl AdviceText {
    /// Returns the text with the process's option values and, if known, the address of its server.
    pub fn text_for(&self, process: &Process) -> String {
        let mut text = with_options(&self.text, process);
        let Some((is_secure, default_port, host_and_port)) = server_address(process) else {
            return text;
        };
        for unknown in ["HOST:PORT".to_owned(), format!("HOST:{default_port}")] {
            text = text.replace(&unknown, &host_and_port);
        }
        if is_secure { text.replace("http://", "https://") } else { text }
    }
}

/// Replaces `{--option=0.9}` with the option's number on the command line, or with 0.9.
fn with_options(text: &str, process: &Process) -> String {
    let Some((before, rest)) = text.split_once("{--") else { return text.to_owned() };
    let Some(((option, default), after)) =
        rest.split_once('}').and_then(|(inner, after)| Some((inner.split_once('=')?, after)))
    else {
        return text.to_owned();
    };
    let words = process.command.as_deref().unwrap_or_default();
    let flag = format!("--{option}");
    let value = values(words, &flag).next();
    let value = value.filter(|value| value.len() <= 12 && value.parse::<f64>().is_ok());
    format!("{before}{}{}", value.unwrap_or(default), with_options(after, process))
}

/// Returns whether the server uses TLS, its default port, and its `host:port`.
fn server_address(process: &Process) -> Option<(bool, u16, String)> {
    if process.listening_on.is_none() {
        return typed_port(process);
    }
    let (row, listener) = server_of(process)?;
    let listener = listener
        .filter(|_| framework_of(process).is_some_and(|framework| framework.name == row.name))?;
    let address = row.address(listener.command, listener.listening_on)?;
    let address: SocketAddr = address.strip_prefix("tcp:")?.parse().ok()?;
    // Only the owner of a container knows how the container's port is published.
    let host = match address.ip().to_canonical() {
        _ if process.container.is_some() => "HOST".to_owned(),
        ip if ip.is_loopback() || ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    Some((row.is_secure(listener.command), row.port, format!("{host}:{}", address.port())))
}

/// Determines the server's address from the command line, for use when sockets are not readable.
fn typed_port(process: &Process) -> Option<(bool, u16, String)> {
    let command = process.command.as_deref()?;
    let name = process.framework.as_deref()?;
    let working_directory = process.working_directory.as_deref();
    let runs = |row: &&UnloadServer| row.runs(command, working_directory, &[]);
    let row = unload_servers().iter().find(|row| row.name == name && runs(row))?;
    let port = row.typed_port(command)?;
    let host = if process.container.is_some() { "HOST" } else { "localhost" };
    Some((row.is_secure(command), row.port, format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::advice::find;
    use crate::model::process::{Container, Relation, Relative};

    fn server(framework: &str, command: &str, addresses: &[&str]) -> Process {
        Process {
            start_ticks: Some(70),
            framework: Some(framework.into()),
            command: Some(command.split(' ').map(Arc::from).collect()),
            listening_on: Some(addresses.iter().copied().map(Arc::from).collect()),
            ..Process::default()
        }
    }

    fn fill_in(process: &Process) -> String {
        let name = process.framework.as_deref().unwrap();
        let lines = find(name).unwrap().inside.iter();
        let all: Vec<String> = lines.map(|line| line.text_for(process)).collect();
        all.join("\n")
    }

    fn with_parent(process: Process, command: &str, address: &str) -> Process {
        let relative = Relative {
            start_ticks: Some(60),
            pid: 7,
            relation: Relation::Ancestor,
            command: Some(command.split(' ').map(Arc::from).collect()),
            working_directory: None,
            listening_on: [Arc::from(address)].into(),
            client_addresses: None,
        };
        Process { listening_relatives: Some([relative].into()), ..process }
    }

    #[test]
    fn numbers_come_from_the_command_line() {
        let at_start = |command: &str| {
            let process = server("vllm", command, &[]);
            find("vllm").unwrap().at_start[0].text_for(&process)
        };
        for (command, value) in [
            ("vllm serve m", "0.9"),
            ("vllm serve m --gpu-memory-utilization 0.55", "0.55"),
            ("vllm serve m --gpu-memory-utilization=0.4 --port 1", "0.4"),
            ("vllm serve m --gpu-memory-utilization $(reboot)", "0.9"),
            ("vllm serve m --gpu-memory-utilization", "0.9"),
            ("vllm serve m --gpu-memory-utilizations 0.1", "0.9"),
        ] {
            let text = at_start(command);
            assert!(text.ends_with(&format!("than {value}")), "{command}: {text}");
        }
    }

    #[test]
    fn the_address_of_a_listening_server_is_fill_in() {
        let worker = || server("vllm", "VLLM::EngineCore", &[]);
        let runner =
            server("ollama", "/usr/bin/ollama runner --port 40123", &["tcp:127.0.0.1:40123"]);
        let contained = Process {
            container: Some(Arc::new(Container {
                id: Some("3f2a".into()),
                ..Container::default()
            })),
            ..server("vllm", "vllm serve m", &["tcp:127.0.0.1:8000"])
        };
        for (process, words) in [
            (
                server("vllm", "vllm serve m", &["tcp:0.0.0.0:8011"]),
                "http://localhost:8011/wake_up",
            ),
            (
                server("vllm", "vllm serve m --ssl-certfile /a.pem", &["tcp:10.0.0.7:8000"]),
                "https://10.0.0.7:8000/wake_up",
            ),
            (
                server("sglang", "python -m sglang.launch_server", &["tcp:[::1]:30001"]),
                "http://localhost:30001/release_memory_occupation",
            ),
            (
                server("triton-server", "tritonserver --http-port=9000", &["tcp:0.0.0.0:9000"]),
                "http://localhost:9000/v2/repository/models/MODEL/unload",
            ),
            (with_parent(worker(), "vllm serve m", "tcp:0.0.0.0:8012"), "localhost:8012/"),
            (with_parent(runner, "ollama serve", "tcp:127.0.0.1:11434"), "localhost:11434/"),
            (contained, "HOST:8000/wake_up"),
            (
                Process { listening_on: None, ..server("vllm", "vllm serve m --port 8011", &[]) },
                "http://localhost:8011/wake_up",
            ),
            // A worker whose server is unknown has no known address, so the placeholder remains.
            (worker(), "HOST:PORT"),
            (server("vllm", "vllm serve m --port 8011", &["tcp:0.0.0.0:8000"]), "HOST:PORT"),
            (server("vllm", "vllm serve m", &["unix:/run/x"]), "HOST:PORT"),
            (with_parent(worker(), "llama-swap", "tcp:0.0.0.0:8080"), "HOST:PORT"),
        ] {
            let text = fill_in(&process);
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

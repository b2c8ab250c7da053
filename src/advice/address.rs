//! Where a server is spoken to: what its command line has_port of port, host and model, put into the words
//! of the table in place of `HOST:PORT` and `MODEL`.
//!
//! A command line is its process's own claim: only what is a number, a plain host or a plain name is
//! taken over, and the rest stays to be filled in by whoever types it.

use serde::Deserialize;

use super::{Remark, of};
use crate::model::Process;
use crate::model::process::Relation;
use crate::model::program::file_name;

/// A host name or a model's name is no longer than this; a longer one is not offered to be typed.
const LONGEST_NAME: usize = 253;
/// The place in a line, by the port that a server has unless it was told otherwise.
const PLACES: [&str; 3] = ["HOST:PORT", "HOST:8000", "HOST:8080"];

/// How a server is told where to listen, and what to serve. Ollama has none: what holds the memory is a runner, and the
/// port on its command line is for the server that started it.
#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressFlags {
    host: String,
    port: String,
    model: Option<String>,
    /// One that makes it serve by TLS.
    certificate: Option<String>,
}

impl Remark {
    /// The words for this process, with what its command line has_port filled in.
    pub fn text_for(&self, process: &Process) -> String {
        let mut text = self.text.to_owned();
        let Some((framework, flags)) =
            of(process).and_then(|row| Some((&row.name, row.address.as_ref()?)))
        else {
            return text;
        };
        let words = server(process, framework, flags).filter(|words| !is_routers_child(words));
        let Some(words) = words else {
            return text;
        };
        let port = values(words, &flags.port).last().and_then(|port| {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse::<u16>().ok().filter(|port| is_number && *port > 0)
        });
        if let Some(port) = port {
            // A container's own loopback is not the machine's; where its port leads, only its owner knows.
            let host = match (&process.container, values(words, &flags.host).last()) {
                (Some(_), _) => "HOST",
                (None, Some(host)) if is_one_host(host) => host,
                (None, _) => "localhost",
            };
            for place in PLACES {
                text = text.replace(place, &format!("{host}:{port}"));
            }
        }
        let is_secure = |flag: &String| values(words, flag).next().is_some();
        if flags.certificate.as_ref().is_some_and(is_secure) {
            text = text.replace("http://", "https://");
        }
        if let Some(flag) = &flags.model
            && let (Some(model), None) = {
                let mut models = values(words, flag);
                (models.next(), models.next())
            }
            && is_plain(model)
        {
            text = text.replace("/MODEL/", &format!("/{model}/"));
        }
        text
    }
}

/// The command line that has_port where a server listens: the process's own, or that of the server which started
/// it to hold the memory.
fn server<'p>(
    process: &'p Process,
    framework: &str,
    flags: &AddressFlags,
) -> Option<&'p [std::sync::Arc<str>]> {
    let own = process.command.as_deref();
    let has_port = |words: &[std::sync::Arc<str>]| values(words, &flags.port).next().is_some();
    if own.is_some_and(has_port) {
        return own;
    }
    let serves = |words: &[std::sync::Arc<str>]| {
        let mut parts = words.iter().flat_map(|word| word.split(['/', '.', ':']));
        parts.any(|part| part == framework)
    };
    let relatives = process.listening_relatives.as_deref().unwrap_or_default();
    let ancestors = relatives
        .iter()
        .filter(|relative| relative.relation == Relation::Ancestor)
        .filter_map(|relative| relative.command.as_deref());
    let parent = process.parent.as_deref();
    let parent = parent.and_then(|parent| parent.command.as_deref());
    let mut started_by = ancestors.chain(parent);
    started_by.find(|words| serves(words) && has_port(words)).or(own)
}

/// What follows a flag, in the next word or behind `=`.
pub(super) fn values<'a>(
    words: &'a [std::sync::Arc<str>],
    flag: &'a str,
) -> impl Iterator<Item = &'a str> {
    words.iter().enumerate().filter_map(move |(at, word)| match word.strip_prefix(flag)? {
        "" => words.get(at + 1).map(|word| &**word),
        rest => rest.strip_prefix('='),
    })
}

/// Whether it is a `llama-server` that was told its model: it cannot unload that, and where a router
/// started it, the port is not the router's, to which one speaks.
fn is_routers_child(words: &[std::sync::Arc<str>]) -> bool {
    let is_server = words.first().is_some_and(|program| file_name(program) == "llama-server");
    let has_flag = |flag: &&str| words.iter().any(|word| &**word == *flag);
    is_server && ["-m", "--model", "-hf", "--hf-repo", "-mu"].iter().any(has_flag)
}

/// Whether it names one address, not all of the machine's.
fn is_one_host(host: &str) -> bool {
    is_plain(host) && !["0.0.0.0", "localhost"].contains(&host)
}

/// Whether it is a name that no shell and no URL takes apart.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=LONGEST_NAME).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::advice::find;
    use crate::model::process::{Container, Parent, Relative};

    fn filled_in(framework: &str, command: &str) -> String {
        let process = server(framework, command);
        let lines = find(framework).unwrap().inside.iter();
        let all: Vec<String> = lines.map(|line| line.text_for(&process)).collect();
        all.join("\n")
    }

    fn server(framework: &str, command: &str) -> Process {
        Process {
            framework: Some(framework.into()),
            command: Some(command.split(' ').map(Arc::from).collect()),
            ..Process::default()
        }
    }

    #[test]
    fn what_the_command_line_has_is_filled_in() {
        for (framework, command, words) in [
            ("vllm", "vllm serve m --port 8011", "'http://localhost:8011/sleep?level=1&mode=wait'"),
            (
                "vllm",
                "python -m vllm.entrypoints.openai.api_server --port=1 --host=0.0.0.0 --port=8011",
                "http://localhost:8011/wake_up",
            ),
            (
                "vllm",
                "vllm serve m --port 8011 --host 10.0.0.7 --ssl-certfile /a.pem",
                "https://10.0.0.7:8011/wake_up",
            ),
            (
                "sglang",
                "python -m sglang.launch_server --host gpu-1.lan --port 30001",
                "http://gpu-1.lan:30001/release_memory_occupation",
            ),
            (
                "triton-server",
                "tritonserver --http-port=9000 --load-model=bert",
                "http://localhost:9000/v2/repository/models/bert/unload",
            ),
            ("llama.cpp", "llama-server --port 9090", "http://localhost:9090/models/unload"),
        ] {
            let text = filled_in(framework, command);
            assert!(text.contains(words), "{words}: {text}");
            assert!(!text.contains("HOST"), "{text}");
        }
    }

    #[test]
    fn an_engine_is_spoken_to_where_its_server_listens() {
        let line = &find("vllm").unwrap().inside[0];
        let engine = |parent: &str| Process {
            parent: Some(Arc::new(Parent {
                command: server("vllm", parent).command,
                ..Parent::default()
            })),
            ..server("vllm", "VLLM::EngineCore")
        };
        for (parent, place) in [
            ("/v/bin/python /v/bin/vllm serve m --port 8000", "localhost:8000/"),
            ("python -m vllm.entrypoints.openai.api_server --port=8011", "localhost:8011/"),
            ("vllm serve m", "HOST:PORT"),
            ("supervisor --port 9001", "HOST:PORT"),
        ] {
            let text = line.text_for(&engine(parent));
            assert!(text.contains(place), "{parent}: {text}");
        }
        let relative = Relative {
            start_ticks: None,
            pid: 7,
            relation: Relation::Ancestor,
            command: server("vllm", "vllm serve m --port 8012").command,
            listening_on: Arc::from(Vec::new()),
        };
        let worker = Process {
            listening_relatives: Some(Arc::from(vec![relative])),
            ..engine("VLLM::EngineCore")
        };
        assert!(line.text_for(&worker).contains("localhost:8012/"));
    }

    #[test]
    fn what_is_not_there_or_no_address_stays_to_be_filled_in() {
        for (framework, command, words) in [
            ("vllm", "VLLM::EngineCore", "HOST:PORT"),
            ("vllm", "vllm serve m --port", "HOST:PORT"),
            ("vllm", "vllm serve m --port 0", "HOST:PORT"),
            ("vllm", "vllm serve m --port 99999", "HOST:PORT"),
            ("vllm", "vllm serve m --port +80", "HOST:PORT"),
            ("vllm", "vllm serve m --port $(reboot)", "HOST:PORT"),
            ("vllm", "vllm serve m --port 80 --host `reboot`", "localhost:80/"),
            ("vllm", "vllm serve m --port 80 --host ::", "localhost:80/"),
            ("triton-server", "tritonserver", "HOST:8000"),
            ("triton-server", "tritonserver --load-model=a --load-model=b", "models/MODEL/unload"),
            ("triton-server", "tritonserver --load-model=a/../;b", "models/MODEL/unload"),
            // Its port is for the router that started it.
            ("llama.cpp", "llama-server --port 40123 -m /models/a.gguf", "HOST:8080"),
            ("ollama", "/usr/bin/ollama runner --port 40123", "HOST:11434"),
        ] {
            let text = filled_in(framework, command);
            assert!(text.contains(words), "{words}: {text}");
            assert!(!text.contains("reboot"), "{text}");
        }
        let contained = Process {
            container: Some(Arc::new(Container {
                id: Some("3f2a".into()),
                ..Container::default()
            })),
            ..server("vllm", "vllm serve m --port 8011 --host 127.0.0.1")
        };
        let line = &find("vllm").unwrap().inside[0];
        assert!(line.text_for(&contained).contains("HOST:8011/wake_up"));
    }
}

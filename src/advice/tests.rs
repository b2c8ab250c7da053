//! Tests that the advice is printable and suits the process, and does not recommend calls that free no memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::model::process::{Jupyter, Relation, Relative};
use crate::model::testing::environment;

fn process(framework: Option<&str>) -> Process {
    Process { pid: 4242, framework: framework.map(Arc::from), ..Process::default() }
}

fn notebook(application: Option<&str>) -> Process {
    let kernel = Jupyter { application: application.map(Arc::from), ..Jupyter::default() };
    Process { jupyter: Some(Arc::new(kernel)), ..process(None) }
}

fn with(framework: &str, variables: &[(&str, &str)]) -> Process {
    Process { environment: environment(variables), ..process(Some(framework)) }
}

fn texts(process: &Process) -> Vec<&'static str> {
    lines(process).iter().map(|line| &*line.text).collect()
}

fn all(row: &Framework) -> impl Iterator<Item = &AdviceText> {
    let parts = [&row.inside, &row.at_start, &row.unchanged, &row.at_end];
    [&row.takes].into_iter().chain(parts.into_iter().flatten())
}

#[test]
fn every_line_is_printable_and_has_a_source() {
    let table = parse().unwrap();
    let mut names = BTreeSet::new();
    for row in &table.framework {
        assert!(names.insert(&row.name), "{} has two rows", row.name);
        assert_eq!(row.name, row.name.to_lowercase());
        assert!(!row.at_start.is_empty() && !row.unchanged.is_empty(), "{}", row.name);
        for spelling in &row.spellings {
            assert_eq!(plain(spelling), *spelling);
            assert_eq!(find(spelling), Some(row), "{spelling} is another row's");
        }
        for spelling in [&row.name, &row.title] {
            assert_eq!(find(spelling), Some(row));
        }
    }
    for line in table.framework.iter().flat_map(all).chain([&table.kernel, &table.end]) {
        let text = &line.text;
        assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text}");
        assert_eq!(text.matches('`').count() % 2, 0, "{text}");
        assert!(!line.source.is_empty(), "{text}: no source");
    }
}

#[test]
fn advice_frees_memory_before_it_ends_the_process() {
    let kernel = Process { framework: Some("pytorch".into()), ..notebook(None) };
    let lines = texts(&kernel);
    assert!(lines[0].contains("torch.cuda.empty_cache()"));
    assert_eq!(lines[1..], [&TABLE.kernel.text]);
    assert_eq!(texts(&process(Some("tensorflow"))), [&TABLE.end.text]);
    assert_eq!(texts(&process(None)), [&TABLE.end.text]);
    assert_eq!(texts(&notebook(None)), [&TABLE.kernel.text]);
    assert_eq!(texts(&notebook(Some("papermill"))), [&TABLE.end.text]);
    assert_eq!(steps(&notebook(None)), [&*TABLE.kernel.text]);
}

#[test]
fn tensorflow_1_has_its_own_row() {
    for (version, name) in [
        (Some("1"), "tensorflow1"),
        (Some("1.15.5"), "tensorflow1"),
        (Some("2.13.0"), "tensorflow"),
        (Some("12"), "tensorflow"),
        (None, "tensorflow"),
    ] {
        let process =
            Process { framework_version: version.map(Arc::from), ..process(Some("tensorflow")) };
        assert_eq!(framework_of(&process).unwrap().name, name, "{version:?}");
    }
}

#[test]
fn a_setting_that_is_already_set_is_not_advised() {
    const GROWTH: &str = "TF_FORCE_GPU_ALLOW_GROWTH";
    for (framework, variables, expected) in [
        ("tensorflow", &[][..], "TF_FORCE_GPU_ALLOW_GROWTH=true"),
        ("tensorflow", &[(GROWTH, "false")], "TF_FORCE_GPU_ALLOW_GROWTH=true"),
        ("tensorflow", &[(GROWTH, "true")], "memory_limit"),
        ("jax", &[], "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        ("jax", &[("XLA_PYTHON_CLIENT_PREALLOCATE", "False")], "XLA_CLIENT_MEM_FRACTION"),
        ("jax", &[("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")], "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    ] {
        let line = at_start(&with(framework, variables)).unwrap();
        assert!(line.text.contains(expected), "{framework} {variables:?}: {}", line.text);
    }
    let expandable = with("pytorch", &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
    let has_advice = |process: &Process| {
        let row = framework_of(process).unwrap();
        let mut lines = row.at_start.iter();
        lines.any(|line| line.text.contains("expandable") && line.applies(process))
    };
    assert!(!has_advice(&expandable) && has_advice(&process(Some("pytorch"))));
    assert_eq!(at_start(&process(None)), None);
}

#[test]
fn a_server_that_gpumem_cannot_ask_is_described_instead_of_its_framework() {
    let below = |command: &str, address: &str| {
        let listener = Relative {
            start_ticks: Some(1),
            pid: 9,
            relation: Relation::Ancestor,
            command: Some(command.split(' ').map(Arc::from).collect()),
            working_directory: None,
            listening_on: [address.into()].into(),
            client_addresses: None,
        };
        Process { listening_relatives: Some([listener].into()), ..process(Some("pytorch")) }
    };
    for (command, address, words) in [
        ("local-ai run", "tcp:0.0.0.0:8080", "http://localhost:8080/backend/shutdown"),
        ("lm-studio", "tcp:127.0.0.1:1234", "`lms unload --all`"),
        ("xinference-local --port 9997", "tcp:0.0.0.0:9997", "http://HOST:9997/v1/models/UID"),
    ] {
        let lines = steps(&below(command, address));
        assert!(lines[0].contains(words), "{command}: {lines:?}");
        assert!(!lines.iter().any(|line| line.contains("torch.cuda")), "{lines:?}");
    }
    let worker = steps(&below("python -m vllm.entrypoints.openai.api_server", "tcp:0.0.0.0:8000"));
    assert_eq!(worker.last().unwrap(), "end its server, vLLM (pid 9), rather than this worker");
    let other = steps(&below("python front.py", "tcp:0.0.0.0:8080"));
    assert_eq!(other.last(), Some(&TABLE.end.text));
    assert!(other[0].contains("torch.cuda.empty_cache()"));
}

#[test]
fn advice_uses_the_programs_language() {
    let of_language = |command: &str, framework| Process {
        command: Some(command.split(' ').map(Arc::from).collect()),
        jupyter: notebook(Some("jupyter")).jupyter,
        ..process(framework)
    };
    for (command, framework, words) in [
        ("/opt/julia/bin/julia -i kernel.jl /r/kernel-1.json", Some("cuda"), "CUDA.reclaim()"),
        ("julia train.jl", None, "CUDA.reclaim()"),
        ("/opt/MATLAB/R2025a/bin/glnxa64/MATLAB -nodisplay", Some("cuda"), "reset(gpuDevice)"),
        ("/usr/lib/R/bin/exec/R --args /r/kernel-1.json", Some("pytorch"), "cuda_empty_cache()"),
        ("python -m ipykernel_launcher", Some("pytorch"), "torch.cuda.empty_cache()"),
        ("python julia.py", Some("pytorch"), "torch.cuda.empty_cache()"),
    ] {
        let lines = steps(&of_language(command, framework));
        assert!(lines[0].contains(words), "{command}: {lines:?}");
        assert_eq!(lines[0].contains("torch.cuda"), command.starts_with("python"), "{lines:?}");
        assert_eq!(lines[1..], [&*TABLE.kernel.text]);
    }
}

//! Every line of the table can be printed, and what is advised returns memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::model::process::Jupyter;
use crate::model::testing::environment;

fn process(framework: Option<&str>) -> Process {
    Process { pid: 4242, framework: framework.map(Arc::from), ..Process::default() }
}

fn notebook(application: Option<&str>) -> Process {
    let kernel = Jupyter { application: application.map(Arc::from), ..Jupyter::default() };
    Process { jupyter: Some(Arc::new(kernel)), ..process(None) }
}

/// A process of this framework with these variables.
fn with(framework: &str, variables: &[(&str, &str)]) -> Process {
    Process { environment: environment(variables), ..process(Some(framework)) }
}

/// The same with these libraries loaded.
fn loaded(framework: &str, libraries: &[&str]) -> Process {
    let libraries = libraries.iter().map(|name| Arc::from(*name));
    Process { libraries: Some(libraries.collect()), ..process(Some(framework)) }
}

fn texts(process: &Process) -> Vec<&'static str> {
    lines(process).iter().map(|line| &*line.text).collect()
}

/// All lines of a row.
fn all(row: &Framework) -> impl Iterator<Item = &Remark> {
    let parts = [&row.inside, &row.at_start, &row.unchanged, &row.at_end];
    [&row.takes].into_iter().chain(parts.into_iter().flatten())
}

#[test]
fn every_line_can_be_printed_as_it_is() {
    let table = parse().unwrap();
    let mut seen = BTreeSet::new();
    for row in &table.framework {
        assert!(seen.insert(&row.name), "{} has two rows", row.name);
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
        let what = &line.text;
        assert!(!what.is_empty() && !what.chars().any(char::is_control), "{what}");
        assert_eq!(what.matches('`').count() % 2, 0, "{what}");
        assert!(!line.source.is_empty(), "{what}: no source");
    }
}

/// What leaves NVML's number where it is when it stands alone.
const USELESS: &[&str] = &[
    "clear_session",
    "reset_default_graph",
    "sess.close",
    "batch",
    "set_memory_growth",
    "accumulation",
    "no_grad",
    "BytesInUse",
];

#[test]
fn nothing_that_leaves_the_memory_where_it_is_is_advised() {
    for row in frameworks() {
        for line in &row.inside {
            for useless in USELESS {
                assert!(!line.text.contains(useless), "{}: {}", row.name, line.text);
            }
        }
        let unchanged: Vec<_> = row.unchanged.iter().map(|line| &*line.text).collect();
        for jupyter in [None, Some(Arc::default())] {
            for step in steps(&Process { jupyter, ..process(Some(&row.name)) }) {
                assert!(!unchanged.contains(&&*step), "{step}");
                assert!(USELESS.iter().all(|useless| !step.contains(useless)));
            }
        }
    }
}

#[test]
fn a_framework_is_found_however_it_is_spelt() {
    for (spelling, name) in [
        ("pytorch", "pytorch"),
        ("PyTorch", "pytorch"),
        ("torch", "pytorch"),
        ("tf", "tensorflow"),
        ("TensorFlow", "tensorflow"),
        ("tensorflow2", "tensorflow"),
        ("tensorflow1", "tensorflow1"),
        ("TF 1.15", "tensorflow1"),
        ("tf.keras", "keras"),
        ("cupy-cuda12x", "cupy"),
        ("llama-cpp", "llama.cpp"),
        ("llama.cpp", "llama.cpp"),
        ("triton", "triton-server"),
        ("tritonserver", "triton-server"),
        ("text-generation-inference", "tgi"),
        ("onnx-runtime", "onnxruntime"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("JAX", "jax"),
        ("huggingface", "pytorch"),
        ("Hugging Face", "pytorch"),
        ("PyTorch-Lightning", "pytorch"),
        ("Triton Inference Server", "triton-server"),
    ] {
        assert_eq!(find(spelling).map(|row| &*row.name), Some(name), "{spelling}");
    }
    for unknown in ["", "-", "fortran", "torchx", "\u{1b}[31m"] {
        assert_eq!(find(unknown), None, "{unknown:?}");
    }
}

#[test]
fn the_gentlest_way_comes_first_and_the_end_last() {
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
fn the_first_tensorflow_has_a_row_of_its_own() {
    for (version, name) in [
        (Some("1"), "tensorflow1"),
        (Some("1.15.5"), "tensorflow1"),
        (Some("2.13.0"), "tensorflow"),
        (Some("12"), "tensorflow"),
        (None, "tensorflow"),
    ] {
        let process =
            Process { framework_version: version.map(Arc::from), ..process(Some("tensorflow")) };
        assert_eq!(of(&process).unwrap().name, name, "{version:?}");
    }
}

#[test]
fn what_is_set_is_not_advised() {
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
        let row = of(process).unwrap();
        let mut lines = row.at_start.iter();
        lines.any(|line| line.text.contains("expandable") && line.applies(process))
    };
    assert!(!has_advice(&expandable) && has_advice(&process(Some("pytorch"))));
    assert_eq!(at_start(&process(None)), None);
}

#[test]
fn jax_returns_memory_only_with_the_allocator_that_does() {
    assert_eq!(texts(&process(Some("jax"))), [&TABLE.end.text]);
    let platform = with("jax", &[("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")]);
    assert!(texts(&platform)[0].contains("jax.clear_caches()"));
    let other = with("jax", &[("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc")]);
    assert_eq!(texts(&other), [&TABLE.end.text]);
}

#[test]
fn a_model_of_ollama_is_unloaded_by_ollama() {
    let runner = Process {
        command: Some(["/usr/bin/ollama".into(), "runner".into()].into()),
        ..process(Some("llama.cpp"))
    };
    assert!(texts(&runner)[0].contains("ollama stop"));
    assert!(texts(&process(Some("ollama")))[0].contains("ollama stop"));
}

#[test]
fn no_server_is_asked_to_free_memory_in_a_way_that_breaks_running_requests() {
    for row in frameworks() {
        for line in all(row) {
            let text = &line.text;
            assert_eq!(
                text.matches("/sleep?").count(),
                text.matches("/sleep?level=1&mode=wait").count(),
                "{text}"
            );
            // Whoever puts it to sleep has to know what it takes, and how it wakes.
            for (call, gates) in [
                ("/sleep?", &["--enable-sleep-mode", "VLLM_SERVER_DEV_MODE=1", "/wake_up"][..]),
                (
                    "/release_memory_occupation",
                    &[
                        "--enable-memory-saver",
                        "no request runs",
                        "crash",
                        "/resume_memory_occupation",
                    ],
                ),
                ("/models/unload", &["router", "next request loads"]),
                ("repository/models/", &["--model-control-mode=explicit"]),
            ] {
                for gate in gates.iter().filter(|_| text.contains(call)) {
                    assert!(text.contains(gate), "no {gate}: {text}");
                }
            }
        }
    }
}

#[test]
fn what_runs_beside_a_framework_has_rows_too() {
    let process = loaded("pytorch", &["deepspeed", "nccl", "unheard-of"]);
    let names: Vec<_> = beside(&process).iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["deepspeed", "nccl"]);
    assert!(beside(&Process::default()).is_empty());
}

#[test]
fn what_cannot_give_back_is_not_hidden_by_what_can() {
    let advised = steps(&loaded("pytorch", &["tensorflow", "nccl"]));
    assert!(advised[0].contains("torch.cuda.empty_cache()"), "{advised:?}");
    assert!(advised[1].contains("TensorFlow 2 is loaded too"), "{advised:?}");
    for libraries in [&["cupy"][..], &["nccl", "ray"], &[]] {
        let advised = steps(&loaded("pytorch", libraries));
        assert!(!advised.iter().any(|line| line.contains("loaded too")), "{advised:?}");
    }
}

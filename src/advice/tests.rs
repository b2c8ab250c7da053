//! Every line of the table can be printed, and what is advised returns memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::model::process::Jupyter;

fn process(framework: Option<&str>) -> Process {
    Process { pid: 4242, framework: framework.map(Arc::from), ..Process::default() }
}

fn notebook(application: Option<&str>, path: Option<&str>) -> Process {
    let kernel = Jupyter {
        application: application.map(Arc::from),
        notebook_path: path.map(Arc::from),
        ..Jupyter::default()
    };
    Process { jupyter: Some(Arc::new(kernel)), ..process(None) }
}

fn with(process: Process, environment: &[(&str, &str)]) -> Process {
    let environment: BTreeMap<Arc<str>, Arc<str>> =
        environment.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect();
    Process { environment: Some(Arc::new(environment)), ..process }
}

fn texts(process: &Process) -> Vec<&'static str> {
    lines(process).iter().map(|line| &*line.text).collect()
}

fn start(process: &Process) -> &'static str {
    at_start(process).map_or("", |line| &line.text)
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
        assert!(line.text.len() >= 20 && line.text.len() <= 300, "{what}");
        assert!(!line.text.ends_with('.') && !line.text.contains("  "), "{what}");
        assert!(!line.text.chars().any(char::is_control), "{what}");
        assert_eq!(line.text.matches('`').count() % 2, 0, "{what}");
        assert_eq!(line.text.trim(), line.text);
        assert!(line.source.len() >= 8, "{what}: no source");
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

/// What makes NVML's number fall.
const RETURNS: &[&str] = &[
    "empty_cache()",
    "free_all_blocks()",
    "reinitialize(",
    "enable_memory_arena_shrinkage",
    "returns each array",
    "unload",
    "stop MODEL",
    "keep_alive",
    "sleep",
    "release_memory_occupation",
    "close()",
    "cudaFree",
    "del context, engine",
    "drop its device arrays",
    "destroy_process_group",
];

#[test]
fn nothing_that_leaves_the_memory_where_it_is_is_advised() {
    for row in frameworks() {
        for line in &row.inside {
            for useless in USELESS {
                assert!(!line.text.contains(useless), "{}: {}", row.name, line.text);
            }
        }
        if let Some(brief) = row.inside.first() {
            assert!(
                RETURNS.iter().any(|call| brief.text.contains(call)),
                "{}: what of it returns memory? {}",
                row.name,
                brief.text
            );
        }
        for line in &row.unchanged {
            assert!(
                row.inside.iter().all(|way| way.text != line.text),
                "{}: {}",
                row.name,
                line.text
            );
        }
        for notebook in [false, true] {
            let process = Process {
                jupyter: notebook.then(Arc::<Jupyter>::default),
                ..process(Some(&row.name))
            };
            let unchanged: Vec<_> = row.unchanged.iter().map(|line| &*line.text).collect();
            for step in steps(&process) {
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
    let kernel = Process { framework: Some("pytorch".into()), ..notebook(None, None) };
    let lines = texts(&kernel);
    assert!(lines[0].contains("torch.cuda.empty_cache()"));
    assert_eq!(lines[1..], [&TABLE.kernel.text]);
    assert_eq!(texts(&process(Some("tensorflow"))), [&TABLE.end.text]);
    assert_eq!(texts(&process(None)), [&TABLE.end.text]);
    assert_eq!(texts(&notebook(None, None)), [&TABLE.kernel.text]);
    assert_eq!(texts(&notebook(Some("papermill"), None)), [&TABLE.end.text]);
    assert_eq!(steps(&notebook(None, None)), [&*TABLE.kernel.text]);
}

#[test]
fn the_first_tensorflow_has_a_row_of_its_own() {
    let of_version = |version: Option<&str>| {
        let process =
            Process { framework_version: version.map(Arc::from), ..process(Some("tensorflow")) };
        of(&process).map(|row| &*row.name)
    };
    assert_eq!(of_version(Some("1")), Some("tensorflow1"));
    assert_eq!(of_version(Some("1.15.5")), Some("tensorflow1"));
    assert_eq!(of_version(Some("2.13.0")), Some("tensorflow"));
    assert_eq!(of_version(Some("12")), Some("tensorflow"));
    assert_eq!(of_version(None), Some("tensorflow"));
}

#[test]
fn what_is_set_is_not_advised() {
    let tensorflow = || process(Some("tensorflow"));
    assert!(start(&tensorflow()).contains("TF_FORCE_GPU_ALLOW_GROWTH=true"));
    let unlike = with(tensorflow(), &[("TF_FORCE_GPU_ALLOW_GROWTH", "false")]);
    assert!(start(&unlike).contains("TF_FORCE_GPU_ALLOW_GROWTH=true"));
    let grows = with(tensorflow(), &[("TF_FORCE_GPU_ALLOW_GROWTH", "true")]);
    assert!(start(&grows).contains("memory_limit"));

    let jax = || process(Some("jax"));
    assert!(start(&jax()).contains("XLA_PYTHON_CLIENT_PREALLOCATE=false"));
    let grows = with(jax(), &[("XLA_PYTHON_CLIENT_PREALLOCATE", "False")]);
    assert!(start(&grows).contains("XLA_CLIENT_MEM_FRACTION"));
    let limited = with(jax(), &[("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")]);
    assert!(start(&limited).contains("XLA_PYTHON_CLIENT_PREALLOCATE=false"));

    let expandable =
        with(process(Some("pytorch")), &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
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
    let platform = with(process(Some("jax")), &[("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")]);
    assert!(texts(&platform)[0].contains("jax.clear_caches()"));
    let other = with(process(Some("jax")), &[("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc")]);
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
    let process = Process {
        libraries: Some(["deepspeed".into(), "nccl".into(), "unheard-of".into()].into()),
        ..process(Some("pytorch"))
    };
    let names: Vec<_> = beside(&process).iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["deepspeed", "nccl"]);
    assert!(beside(&Process::default()).is_empty());
}

#[test]
fn what_cannot_give_back_is_not_hidden_by_what_can() {
    let loaded = |framework: &str, libraries: &[&str]| Process {
        libraries: Some(libraries.iter().map(|name| Arc::from(*name)).collect()),
        ..process(Some(framework))
    };
    let advised = steps(&loaded("pytorch", &["tensorflow", "nccl"]));
    assert!(advised[0].contains("torch.cuda.empty_cache()"), "{advised:?}");
    assert!(advised[1].contains("TensorFlow 2 is loaded too"), "{advised:?}");
    for libraries in [&["cupy"][..], &["nccl", "ray"], &[]] {
        let advised = steps(&loaded("pytorch", libraries));
        assert!(!advised.iter().any(|line| line.contains("loaded too")), "{advised:?}");
    }
}

#[test]
fn sessions_under_tensorflow_2_have_the_words_of_1() {
    let row = find("tf2").unwrap();
    let has = |lines: &[Remark], words: &str| lines.iter().any(|line| line.text.contains(words));
    assert!(has(&row.at_start, "tf.compat.v1.Session(config=config)"));
    assert!(has(&row.at_start, "allow_growth"));
    assert!(has(&row.unchanged, "`sess.close()`"));
}

//! Several frameworks in one process, and the names that people give one.

use super::*;

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
    assert!(has(row.at_start, "tf.compat.v1.Session(config=config)"));
    assert!(has(row.at_start, "allow_growth"));
    assert!(has(row.unchanged, "`sess.close()`"));
}

#[test]
fn a_framework_is_understood_however_a_person_names_it() {
    for (name, expected) in [
        ("tensorflow-gpu", "tensorflow"),
        ("TensorFlow 2", "tensorflow"),
        ("tf2", "tensorflow"),
        ("tf.compat.v1", "tensorflow1"),
        ("tf1", "tensorflow1"),
        ("keras", "keras"),
        ("tf.keras", "keras"),
        ("huggingface", "pytorch"),
        ("Hugging Face", "pytorch"),
        ("transformers", "pytorch"),
        ("torch", "pytorch"),
        ("PyTorch-Lightning", "pytorch"),
        ("onnxruntime-gpu", "onnxruntime"),
        ("cupy-cuda12x", "cupy"),
        ("paddlepaddle-gpu", "paddle"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("Triton Inference Server", "triton-server"),
    ] {
        assert_eq!(meant(name), expected, "{name}");
    }
    assert_eq!(meant("megatron"), "megatron");
}

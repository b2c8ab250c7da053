//! Runs the recipe in a real Python with fake libraries from `tests/it/release`.

use std::process::Command;

use serde_json::Value;

use super::*;

const FAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/release");
const MIB: u64 = 1 << 20;

fn options() -> RecipeOptions {
    RecipeOptions {
        collects: true,
        references: false,
        deadline: Time::from_unix_milliseconds(253_370_764_800_000),
        pci_bus_ids: vec!["00000000:17:00.0".into()],
    }
}

/// Runs `before` and then the recipe, as a kernel does. Returns the report, and the value of the expression `after`.
fn run_with(
    options: &RecipeOptions,
    variables: &[(&str, &str)],
    before: &str,
    after: &str,
) -> (Result<ReleaseReport, String>, Value) {
    // The code runs in a function, so that `__main__` stays empty.
    let script = format!(
        "import sys\nsys.path.insert(0, {})\ndef main():\n    import fake_gpu, json\n    \
         user_ns = {{'MIB': 1 << 20}}\n    exec({}, user_ns)\n    names = set(user_ns)\n    \
         value = eval({}, user_ns)\n    assert set(user_ns) == names\n    print(repr(value))\n    \
         print(json.dumps(eval({}, {{**user_ns, 'fake_gpu': fake_gpu, 'sys': sys}})))\nmain()\n",
        literal(FAKES),
        literal(before),
        literal(&expression(&source(options))),
        literal(after),
    );
    let mut command = Command::new("python3");
    command
        .args(["-c", &script])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("GPUMEM_FAKE_SCENE");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (value, state) = text.trim_end().split_once('\n').unwrap();
    (parse_value(value), serde_json::from_str(state).unwrap())
}

fn run(before: &str, after: &str) -> (ReleaseReport, Value) {
    let (report, state) = run_with(&options(), &[], before, after);
    (report.unwrap(), state)
}

#[test]
fn garbage_collection_runs_only_on_request() {
    // At this threshold, almost every new object would start a collection.
    let before = "import gc, sys\nruns = []\ndef note(phase, info):\n    frame = sys._getframe()\n    \
                  while frame is not None:\n        if phase == 'start' and frame.f_code.co_name == \
                  '_recipe':\n            runs.append(1)\n        frame = frame.f_back\n\
                  gc.callbacks.append(note)\ngc.set_threshold(1, 1, 1)\n";
    for (collects, expected) in [(false, 0), (true, 2)] {
        let options = RecipeOptions { collects, ..options() };
        let (report, state) = run_with(&options, &[], before, "[len(runs), gc.isenabled()]");
        assert!(report.is_ok(), "{report:?}");
        assert_eq!(state, serde_json::json!([expected, true]));
    }
}

#[test]
fn the_recipe_imports_and_creates_nothing() {
    let (report, state) = run(
        "",
        "[sorted(m for m in sys.modules if m in ('torch', 'ctypes', 'cupy')), fake_gpu.made_contexts]",
    );
    assert_eq!(report, ReleaseReport::default());
    assert_eq!(state, serde_json::json!([[], []]));
    let loads = "import torch, cupy, tensorflow, jax, numba, onnxruntime, ctypes";
    let after = "[fake_gpu.made_contexts, sys.modules['tensorflow.python.eager.context'].made,\
                 len(sys.modules['jax._src.xla_bridge']._backends), torch.cuda.collected]";
    let mut nowhere = options();
    nowhere.pci_bus_ids.clear();
    let (report, state) = run_with(&nowhere, &[], loads, after);
    let report = report.unwrap();
    assert_eq!(state, serde_json::json!([[], [], 0, 0]), "{report:?}");
    assert_eq!(report.live_bytes, None);
}

#[test]
fn pytorch_frees_its_cache_and_keeps_live_tensors() {
    let (report, state) = run(
        "import torch\na = torch.empty(25 * MIB, device='cuda')\nb = torch.empty(50 * MIB, device='cuda')\ndel b",
        "[fake_gpu.used(0), torch.cuda.collected]",
    );
    assert_eq!(report.live_bytes, Some(100 * MIB));
    assert_eq!(report.cached_bytes_left, Some(0));
    assert_eq!(report.why, None);
    assert_eq!(state, serde_json::json!([400 * MIB, 1]));
}

#[test]
fn segments_shared_by_live_tensors_are_reported() {
    let (report, _) = run(
        "import torch\nkept = [torch.empty(2 * MIB, device='cuda') for _ in range(8)]\ndel kept[1::2]",
        "None",
    );
    assert_eq!(report.live_bytes, Some(32 * MIB));
    let left = report.cached_bytes_left.unwrap();
    assert!(left >= 16 * MIB, "{left}");
    assert!(report.why.unwrap().contains("in blocks that live tensors share"));
}

#[test]
fn forks_and_graph_captures_are_skipped() {
    for (state, word) in [("bad_fork", "forked"), ("capturing", "CUDA graph")] {
        let before = format!(
            "import torch\na = torch.empty(25 * MIB, device='cuda')\ndel a\ntorch.cuda.{state} = True"
        );
        let (report, held) = run(&before, "fake_gpu.used(0)");
        assert!(report.why.unwrap().contains(word));
        assert_eq!(held, 400 * MIB);
    }
}

#[test]
fn cycles_are_collected_unless_disabled() {
    let before = "import torch, gc\nclass Loop: pass\ngc.disable()\nloop = Loop()\nloop.self = loop\n\
                  loop.tensor = torch.empty(25 * MIB, device='cuda')\ndel loop\n";
    let held = |options: &RecipeOptions, before: &str| {
        let (report, held) = run_with(options, &[], before, "fake_gpu.used(0)");
        (report.unwrap(), held)
    };
    let (report, used) = held(&options(), before);
    assert_eq!(used, 400 * MIB);
    assert!(report.why.unwrap().contains("garbage collector is off"));
    let enabled = format!("{before}gc.enable()\n");
    assert_eq!(held(&options(), &enabled).1, 300 * MIB);
    let mut without = options();
    without.collects = false;
    assert_eq!(held(&without, &enabled).1, 400 * MIB);
}

#[test]
fn cupy_frees_its_pool_only_on_listed_gpus() {
    let before = "import cupy\na, b = cupy.empty(30 * MIB), cupy.empty(60 * MIB)\ndel b\n\
                  with cupy.cuda.Device(2):\n    c = cupy.empty(10 * MIB)\n    del c\n";
    let mut options = options();
    options.pci_bus_ids.push("00000000:19:00.0".into());
    let after = "[fake_gpu.used(i) for i in range(4)]";
    let (report, state) = run_with(&options, &[("GPUMEM_FAKE_GPUS", "4")], before, after);
    let report = report.unwrap();
    assert_eq!(state, serde_json::json!([330 * MIB, 0, 300 * MIB, 0]));
    assert_eq!(report.live_bytes, Some(30 * MIB));
    assert_eq!(report.cached_bytes_left, Some(0));
}

#[test]
fn numba_flushes_pending_frees_in_its_context() {
    let before = "import numba\nd, e = numba.cuda.device_array(30 * MIB), numba.cuda.device_array(5 * MIB)\ndel d";
    let (_, state) = run(before, "[fake_gpu.used(0), fake_gpu.made_contexts]");
    assert_eq!(state, serde_json::json!([305 * MIB, [0]]));
}

#[test]
fn pools_that_never_shrink_are_reported() {
    let keeps = |before: &str, variables: &[(&str, &str)]| {
        let after =
            "[fake_gpu.used(0), sys.modules['keras'].cleared if 'keras' in sys.modules else None]";
        let (report, state) = run_with(&options(), variables, before, after);
        (report.unwrap(), state)
    };
    let (report, state) = keeps("import keras\nm = keras.Model(5 * MIB)\nm.fit(20 * MIB)", &[]);
    assert_eq!(report.live_bytes, Some(20 * MIB));
    let why = report.why.unwrap();
    assert!(why.contains("keeps its memory") && why.contains("cuda_malloc_async"), "{why}");
    assert!(state[0].as_u64().unwrap() >= 400 * MIB, "{state}");
    assert_eq!(state[1], serde_json::json!([]));
    let session = "import tensorflow\ns = tensorflow.Session()\ns.run(20 * MIB)\ns.close()";
    let (report, _) = keeps(session, &[("FAKE_TENSORFLOW_1", "1")]);
    assert_eq!(report.live_bytes, None, "nothing tells");
    assert!(report.why.unwrap().contains("even if all sessions"));
    let (report, _) =
        keeps("import jax\nj = jax.Array(50 * MIB)\ndel j\njax.programs['f'] = 1", &[]);
    assert_eq!(report.cached_bytes_left, Some(50 * MIB));
    assert!(report.why.unwrap().contains("JAX"));
    let (report, _) = keeps("import onnxruntime", &[]);
    assert!(report.why.unwrap().contains("enable_memory_arena_shrinkage"));
}

#[test]
fn references_list_each_storage_once_without_values() {
    let mut options = options();
    options.references = true;
    let before = "import torch, cupy\nbig = torch.empty(50 * MIB, device='cuda')\nview = big.view()\n\
                  host = torch.empty(90 * MIB)\nmodel = torch.nn.Linear(1024, 1024).cuda()\n\
                  nested = {'a': [torch.empty(10 * MIB, device='cuda'), (big, [cupy.empty(7 * MIB)])]}\n\
                  _hidden = 1\nOut = {7: torch.empty(5 * MIB, device='cuda')}\n\
                  def fail(batch):\n    raise ValueError\n\
                  import sys\ntry:\n    fail(torch.empty(3 * MIB, device='cuda'))\n\
                  except ValueError as error:\n    sys.last_value = error\n";
    // Outside IPython, the recipe searches `__main__`.
    let as_main = format!("{before}sys.modules['__main__'].__dict__.update(globals())\n");
    let (report, _) = run_with(&options, &[], &as_main, "None");
    let references = report.unwrap().references;
    let found: Vec<(&str, u64)> =
        references.iter().map(|reference| (&*reference.name, reference.bytes)).collect();
    assert_eq!(
        found,
        [
            ("big", 200 * MIB),
            ("nested", 47 * MIB),
            ("Out[7]", 20 * MIB),
            ("last traceback", 12 * MIB),
            ("model", 4 * MIB + 4096),
        ]
    );
}

#[test]
fn references_are_limited() {
    let mut options = options();
    options.references = true;
    let before = "import sys, torch\nmany = [[i] for i in range(10 ** 5)]\nlast = torch.empty(MIB, device='cuda')\n\
                  class Hostile:\n    def __getattribute__(self, name): raise SystemExit\n    def __repr__(self): raise SystemExit\n\
                  hostile = Hostile()\nmodule = sys.modules['__main__'].__dict__\nmodule['hostile'] = hostile\n\
                  first = torch.empty(2 * MIB, device='cuda')\nmodule['first'] = first\nmodule['many'] = many\nmodule['last'] = last\n";
    let (report, _) = run_with(&options, &[], before, "None");
    let references = report.unwrap().references;
    let names: Vec<&str> = references.iter().map(|reference| &*reference.name).collect();
    assert_eq!(names, ["first"]);
}

#[test]
fn the_recipe_does_nothing_after_its_deadline() {
    let mut late = options();
    late.deadline = Time::from_unix_milliseconds(1);
    let before = "import torch\na = torch.empty(25 * MIB, device='cuda')\ndel a";
    let (report, held) = run_with(&late, &[], before, "fake_gpu.used(0)");
    assert!(report.unwrap_err().contains("too late"));
    assert_eq!(held, 400 * MIB);
}

#[test]
fn an_exception_does_not_stop_other_steps() {
    let before = "import torch, cupy\na, b = torch.empty(25 * MIB, device='cuda'), cupy.empty(MIB)\ndel a, b\n\
                  def fail(*_): raise SystemExit('s3cret')\ntorch.cuda.empty_cache = fail\n";
    let (report, held) = run(before, "fake_gpu.used(0)");
    let why = report.why.unwrap();
    assert!(why.contains("torch: SystemExit") && !why.contains("s3cret"), "{why}");
    assert_eq!(held, 400 * MIB, "CuPy's is back");
}

#[test]
fn a_user_function_called_exec_is_not_called() {
    let before = "import torch\na = torch.empty(25 * MIB, device='cuda')\ndel a\n\
                  called = []\nexec = __import__ = json = n = b = dumps = lambda *_: called.append(1)\n";
    let (_, state) = run(before, "[called, fake_gpu.used(0)]");
    assert_eq!(state, serde_json::json!([[], 300 * MIB]));
}

#[test]
fn string_literals_round_trip_through_python() {
    for text in ["", "a\"b\\n\n\r\t\0", "Grüße 🦀 \u{2028}", "'''\"\"\""] {
        let output = Command::new("python3")
            .args([
                "-c",
                &format!("import sys; sys.stdout.buffer.write({}.encode())", literal(text)),
            ])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    }
    let mut hostile = options();
    hostile.pci_bus_ids = vec!["\"]; import os #\n".into(), "x".into()];
    let (report, _) = run_with(&hostile, &[], "", "None");
    assert!(report.unwrap().why.unwrap().contains("bus id"));
}

#[test]
fn only_hexadecimal_json_is_accepted() {
    let quoted = |json: &str| {
        let digits: String = json.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("'{digits}'")
    };
    let good = r#"{"late": false, "live_bytes": 7, "cached_bytes_left": null, "why": "a'b\u00e9", "references": [["x", 1]], "did": []}"#;
    let report = parse_value(&quoted(good)).unwrap();
    assert_eq!(report.why.as_deref(), Some("a'bé"));
    assert_eq!(&*report.references[0].name, "x");
    for bad in [
        "",
        "'",
        "''",
        "x",
        "'{}'",
        "'é'",
        good,
        &quoted("{}"),
        &quoted("{\"late\": 1}"),
        &quoted("[false, 1, 2, null, []]"),
        quoted(good).trim_matches('\''),
    ] {
        let parsed = parse_value(bad);
        assert!(parsed.is_err(), "{bad}: {parsed:?}");
    }
    let long = format!(
        "{{\"late\": false, \"why\": \"{0}\", \"references\": [{1}[\"{0}\", 1]]}}",
        "w".repeat(9999),
        "[\"a\", 2],".repeat(99),
    );
    let report = parse(long.as_bytes()).unwrap();
    assert_eq!(report.why.unwrap().len(), 500);
    assert_eq!(report.references.len(), 20);
}

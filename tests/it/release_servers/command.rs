//! `gpumem release` of an inference server.

use serde_json::json;

use super::*;
use crate::reap::outcome;

impl StandIn {
    fn release(&self, target: &str) -> support::Output {
        let arguments = ["release", target, "--yes", "--json", "--wait", "60s"];
        self.machine.act(&arguments)
    }
}

#[test]
fn a_server_is_named_by_its_pid_and_unloads_only_when_idle() {
    let python = or_skip!(support::find("python3", "python3"));
    let assert_outcome = |manner: &str, expected: &str, unloads: usize| {
        let server = StandIn::start(&python, program_of("comfyui"), manner);
        let output = server.release(&server.pid().to_string());
        if server.machine.snapshot(0).0["host"]["pid_namespace"] != "host" {
            assert_eq!(output.json()["targets"], json!([]), "{output:?}");
            return;
        }
        let outcome = outcome(&output);
        assert_eq!(outcome["outcome"], expected, "{manner}: {output:?}");
        assert_eq!(server.unload_count(), unloads, "{manner}");
        assert_eq!(output.code, i32::from(manner != "idle"), "{manner}");
        let left = match manner {
            "idle" => CONTEXT_BYTES,
            _ => 2 * GIB,
        };
        assert_eq!(server.held_bytes(), left, "{manner}");
        if manner == "idle" {
            assert_eq!(outcome["bytes"], json!(2 * GIB - CONTEXT_BYTES));
        }
        if unloads == 0 {
            server.assert_untouched();
        }
    };
    thread::scope(|scope| {
        for (manner, expected, unloads) in [
            ("idle", "released", 1),
            ("busy", "busy", 0),
            ("lies", "nothing_to_release", 1),
            ("key", "refused", 1),
            ("garbage", "no_way_in", 0),
        ] {
            let assert_outcome = &assert_outcome;
            scope.spawn(move || assert_outcome(manner, expected, unloads));
        }
    });
}

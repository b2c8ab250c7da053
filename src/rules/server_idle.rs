//! `server-idle`: an inference server holds memory on a GPU and received no request.
//!
//! Evaluated like [`idle`], for the processes that `idle` skips because waiting is their work: processes that look
//! like an inference server and are not known not to listen, and processes that work for one. The memory may be
//! wanted, so no action ends the server.

use super::idle::{self, DEFAULTS, DURATION, IdleEvidence, MAX_CPU_PERCENT, MIN_MEMORY};
use super::rule::{RuleKind, SEVERITY, Settings};
use crate::model::finding::{Kind, Severity};

/// Like `idle`, without notebooks, which serve no clients.
pub static KIND: RuleKind = RuleKind {
    process: idle::judge,
    ..RuleKind::new::<IdleEvidence>(
        Kind::ServerIdle,
        "an inference server holds memory on a GPU and has not used it for the duration",
        &[MIN_MEMORY, DURATION, MAX_CPU_PERCENT, SEVERITY],
        Settings { severity: Severity::Info, ..DEFAULTS },
    )
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::rules::testing::{Case, Nothing, PID, each, judge, only, reasons};
    use crate::units::GIB;

    fn server() -> Scene {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], 60 * GIB);
        scene.process(PID).command = Some(["vllm".into(), "serve".into(), "x".into()].into());
        scene.process(PID).framework = Some("vllm".into());
        scene.process(PID).listening = Some(true);
        scene
    }

    #[test]
    fn a_server_that_waits_is_found_and_never_killed() {
        let mut scene = server();
        let mut engine = judge(&mut scene, 590.0);
        assert_eq!(engine.findings(), []);
        engine.observe(scene.step());
        let finding = only(&engine, Kind::ServerIdle);
        assert_eq!(finding.severity, Severity::Info);
        assert_eq!(&*finding.id, "server-idle:GPU-0:4242:424200");
        assert_eq!(finding.actions, [Action::Notify]);
        assert_eq!(engine.findings().len(), 1);
        assert_eq!(reasons(&engine, Kind::ServerIdle), [""; 0]);
    }

    #[test]
    fn a_server_that_is_asked_or_busy_is_not_idle() {
        let cases: &[Case] = &[
            ("asked", Nothing, |it| it.row(0, PID).sm_percent = Some(1)),
            ("works on the CPU", Nothing, |it| it.process(PID).cpu_percent = Some(80.0)),
            ("stopped", Nothing, |it| it.process(PID).state = Some('T')),
            ("little memory", Nothing, |it| it.row(0, PID).used_bytes = Some(GIB - 1)),
            // This process is for `idle` to judge.
            ("listens on nothing", Nothing, |it| it.process(PID).listening = Some(false)),
        ];
        each(Kind::ServerIdle, server, 700.0, cases);
    }
}

//! `server-idle`: an inference server holds memory on a GPU and receives no requests.
//!
//! The conditions are those of [`idle`], which skips servers and their workers (see `server`). Somebody may need the
//! server, so gpumem ends it only if the user requests this kind.

use super::idle::{self, DEFAULTS, DURATION, IdleEvidence, MAX_CPU_PERCENT, MIN_MEMORY};
use super::rule::{RuleKind, SEVERITY, Settings};
use crate::model::finding::{Kind, Severity};

/// The setting `max_busy` is missing, because it applies only to notebooks.
pub static KIND: RuleKind = RuleKind {
    process: idle::judge,
    ..RuleKind::new::<IdleEvidence>(
        Kind::ServerIdle,
        "an inference server holds memory on a GPU and has not used it for the rule's duration",
        &[MIN_MEMORY, DURATION, MAX_CPU_PERCENT, SEVERITY],
        Settings { severity: Severity::Info, ..DEFAULTS },
    )
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::rules::testing::{Case, Nothing, PID, check_cases, judge, only, reasons};
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
    fn a_waiting_server_is_reported_without_terminate() {
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
    fn a_server_with_activity_is_not_idle() {
        let cases: &[Case] = &[
            ("used", Nothing, |scene| scene.row(0, PID).sm_percent = Some(1)),
            ("works on the CPU", Nothing, |scene| scene.process(PID).cpu_percent = Some(80.0)),
            ("stopped", Nothing, |scene| scene.process(PID).state = Some('T')),
            ("little memory", Nothing, |scene| scene.row(0, PID).used_bytes = Some(GIB - 1)),
            // A process that does not listen is not a server, so `idle` judges it.
            ("listens on nothing", Nothing, |scene| scene.process(PID).listening = Some(false)),
        ];
        check_cases(Kind::ServerIdle, server, 700.0, cases);
    }
}

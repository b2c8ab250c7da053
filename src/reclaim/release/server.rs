//! A way: an inference server unloads its models. None is known here so far.

use super::{ReleaseAnswer, ReleaseOptions, ServerUnload};
use crate::host::Roots;
use crate::model::{Process, Snapshot};

/// The way, where the snapshot shows that it is there; `None` where there is nothing to do with it.
pub fn find(_: &Process, _: &Snapshot) -> Option<Result<ServerUnload, String>> {
    None
}

/// Whether it could be done now.
pub fn probe(_: &Roots, _: &ServerUnload, _: &ReleaseOptions) -> ReleaseAnswer {
    no_way()
}

/// Does it.
pub fn perform(_: &Roots, _: &ServerUnload, _: &ReleaseOptions) -> ReleaseAnswer {
    no_way()
}

fn no_way() -> ReleaseAnswer {
    ReleaseAnswer::NoWayIn("this version of gpumem does not know this way".to_owned())
}

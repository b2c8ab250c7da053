//! A way: a Jupyter kernel runs a recipe. None is known here so far.

use super::{KernelRecipe, ReleaseAnswer, ReleaseOptions};
use crate::host::Roots;
use crate::model::{Process, Snapshot};

/// The way, where the snapshot shows that it is there; `None` where there is nothing to do with it.
pub fn find(_: &Process, _: &Snapshot) -> Option<Result<KernelRecipe, String>> {
    None
}

/// Whether it could be done now.
pub fn probe(_: &Roots, _: &KernelRecipe, _: &ReleaseOptions) -> ReleaseAnswer {
    no_way()
}

/// Does it.
pub fn perform(_: &Roots, _: &KernelRecipe, _: &ReleaseOptions) -> ReleaseAnswer {
    no_way()
}

fn no_way() -> ReleaseAnswer {
    ReleaseAnswer::NoWayIn("this version of gpumem does not know this way".to_owned())
}

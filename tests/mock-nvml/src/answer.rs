//! The result of a call.

use std::ffi::c_uint;

/// A return code other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_uint);

/// Success, or a return code. Values are returned through pointers.
pub(crate) type Answer = Result<(), Code>;

impl Code {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(crate) const GPU_IS_LOST: Self = Self(15);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);
}

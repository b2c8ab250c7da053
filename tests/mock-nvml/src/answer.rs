//! What a call answers: nothing, or one of NVML's return codes.

use std::ffi::{CStr, c_uint};

/// A return code other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_uint);

/// What a call answers; values go out through its pointers.
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

/// The text of `nvmlErrorString`.
pub(crate) fn text(code: c_uint) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires restart",
        17 => c"The operating system has blocked the request.",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device, because ECC is enabled",
        23 => c"Insufficient Resources",
        24 => c"Frequency Not Supported",
        25 => c"The provided version is invalid/unsupported",
        26 => c"Deprecated",
        27 => c"System Not Ready",
        28 => c"No GPUs were found",
        29 => c"Invalid state",
        30 => c"Reset Type Not Supported",
        _ => c"Unknown Error",
    }
}

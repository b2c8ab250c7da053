//! Errors of NVML, with advice for users.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;

use crate::units::{Span, system_message};

/// An `nvmlReturn_t` other than success (`nvml.h`, enum nvmlReturn_enum).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Code(u32);

impl Code {
    pub(super) const UNINITIALIZED: Self = Self(1);
    pub(super) const NOT_SUPPORTED: Self = Self(3);
    pub(super) const NO_PERMISSION: Self = Self(4);
    pub(super) const NOT_FOUND: Self = Self(6);
    pub(super) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(super) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(super) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(super) const GPU_IS_LOST: Self = Self(15);
    pub(super) const RESET_REQUIRED: Self = Self(16);
    pub(super) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(super) const UNKNOWN: Self = Self(999);
    /// Code that NVML does not use: the driver returned records of unknown size.
    pub(super) const UNKNOWN_LAYOUT: Self = Self(u32::MAX);
    /// Code that NVML does not use: a string was not valid UTF-8.
    pub(super) const NOT_UTF8: Self = Self(u32::MAX - 1);

    pub(super) fn check(code: u32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }

    /// Returns whether the GPU or driver does not provide the value, which is not treated as a failure.
    pub(super) fn is_unsupported(self) -> bool {
        // Codes 25 and 26 mean that the driver no longer supports this version of the call.
        self == Self::NOT_SUPPORTED || self == Self::FUNCTION_NOT_FOUND || matches!(self.0, 25 | 26)
    }

    pub(super) fn is_loss(self) -> bool {
        self == Self::GPU_IS_LOST || self == Self::RESET_REQUIRED
    }

    /// Returns whether the driver is gone, so that NVML must be restarted.
    pub(super) fn is_driver_gone(self) -> bool {
        self == Self::UNINITIALIZED
            || self == Self::DRIVER_NOT_LOADED
            || self == Self::LIB_RM_VERSION_MISMATCH
    }

    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "NVML_ERROR_UNINITIALIZED",
            2 => "NVML_ERROR_INVALID_ARGUMENT",
            3 => "NVML_ERROR_NOT_SUPPORTED",
            4 => "NVML_ERROR_NO_PERMISSION",
            5 => "NVML_ERROR_ALREADY_INITIALIZED",
            6 => "NVML_ERROR_NOT_FOUND",
            7 => "NVML_ERROR_INSUFFICIENT_SIZE",
            8 => "NVML_ERROR_INSUFFICIENT_POWER",
            9 => "NVML_ERROR_DRIVER_NOT_LOADED",
            10 => "NVML_ERROR_TIMEOUT",
            11 => "NVML_ERROR_IRQ_ISSUE",
            12 => "NVML_ERROR_LIBRARY_NOT_FOUND",
            13 => "NVML_ERROR_FUNCTION_NOT_FOUND",
            14 => "NVML_ERROR_CORRUPTED_INFOROM",
            15 => "NVML_ERROR_GPU_IS_LOST",
            16 => "NVML_ERROR_RESET_REQUIRED",
            17 => "NVML_ERROR_OPERATING_SYSTEM",
            18 => "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
            19 => "NVML_ERROR_IN_USE",
            20 => "NVML_ERROR_MEMORY",
            21 => "NVML_ERROR_NO_DATA",
            22 => "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
            23 => "NVML_ERROR_INSUFFICIENT_RESOURCES",
            24 => "NVML_ERROR_FREQ_NOT_SUPPORTED",
            25 => "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
            26 => "NVML_ERROR_DEPRECATED",
            27 => "NVML_ERROR_NOT_READY",
            28 => "NVML_ERROR_GPU_NOT_FOUND",
            29 => "NVML_ERROR_INVALID_STATE",
            30 => "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
            999 => "NVML_ERROR_UNKNOWN",
            _ => return None,
        })
    }

    fn meaning(self) -> Option<&'static str> {
        Some(match self {
            Self::GPU_IS_LOST => {
                "the GPU has fallen off the bus; look for Xid 79 in the kernel log, and reboot"
            }
            Self::RESET_REQUIRED => "the GPU needs a reset: nvidia-smi --gpu-reset",
            Self::NO_PERMISSION => "no permission; root may be needed",
            Self::LIB_RM_VERSION_MISMATCH => MISMATCH,
            Self::DRIVER_NOT_LOADED => "the NVIDIA kernel driver is not loaded",
            Self::UNINITIALIZED => "the driver is gone",
            Self::UNKNOWN => "the driver reported an unknown error",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNKNOWN_LAYOUT {
            return f.write_str("the driver wrote process records of unknown size");
        }
        if *self == Self::NOT_UTF8 {
            return f.write_str("the driver's answer is not UTF-8");
        }
        if let Some(meaning) = self.meaning() {
            write!(f, "{meaning} ")?;
            return match self.name() {
                Some(name) => write!(f, "({name})"),
                None => write!(f, "(NVML error {})", self.0),
            };
        }
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "NVML error {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<NvmlError> for Code {
    fn from(error: NvmlError) -> Self {
        match error {
            // The driver's library does not contain the symbol.
            NvmlError::FailedToLoadSymbol(_) => Self::FUNCTION_NOT_FOUND,
            NvmlError::Utf8Error(_) => Self::NOT_UTF8,
            // nvml-wrapper does not know the value, for example a newer P-state.
            NvmlError::IncorrectBits(_) => Self::NOT_SUPPORTED,
            NvmlError::UnexpectedVariant(code) if Self(code).name().is_none() => {
                Self::NOT_SUPPORTED
            }
            code => Self(code.into()),
        }
    }
}

const MISMATCH: &str = "the driver was upgraded while in use: NVML's library and the loaded \
                        kernel module have different versions (driver/library version mismatch)";

#[derive(Debug, thiserror::Error)]
pub enum NvmlFailure {
    #[error(
        "no NVIDIA driver found: {library} is not on this machine; install the driver (in a \
         container: start it with the GPUs passed in), or name the library with --nvml-library PATH; \
         `gpumem doctor` says what is missing, and `gpumem watch --demo` works without a driver"
    )]
    LibraryNotFound { library: String },
    #[error("cannot use {library} as NVML: {reason}; name another with --nvml-library PATH")]
    LibraryUnusable { library: String, reason: String },
    #[error(
        "the NVIDIA kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED); load it with \
         `modprobe nvidia` as root, or reboot after installing it; `gpumem doctor` says what is \
         missing, and `gpumem watch --demo` works without a driver"
    )]
    DriverNotLoaded,
    #[error(
        "{MISMATCH} (NVML_ERROR_LIB_RM_VERSION_MISMATCH); reboot, or stop all GPU processes and \
        reload the nvidia modules"
    )]
    VersionMismatch,
    #[error(
        "no permission to use the NVIDIA driver (NVML_ERROR_NO_PERMISSION); check who may open \
         /dev/nvidiactl and /dev/nvidia0 (`ls -l /dev/nvidia*`), in a container its device rules"
    )]
    NoPermission,
    #[error(
        "the NVIDIA driver has not answered {call} for {}; it may be hung (look for NVRM and Xid \
         lines in the kernel log), or still starting: try --nvml-timeout 30s, and \
         `nvidia-smi -pm 1` keeps it loaded",
        Span(*waited)
    )]
    NoAnswer { call: &'static str, waited: Duration },
    #[error("{call} failed: {code}; `nvidia-smi` may show more")]
    Call { call: &'static str, code: String },
    #[error("cannot start a thread for NVML: {}; raise the limit on processes (ulimit -u)", system_message(.0))]
    Thread(#[from] std::io::Error),
}

impl NvmlFailure {
    pub(super) fn opening(library: PathBuf, error: NvmlError) -> Self {
        let library = library.display().to_string();
        match error {
            NvmlError::LibloadingError(error) => {
                let reason = error.to_string();
                let reason = std::error::Error::source(&error).map_or(reason, ToString::to_string);
                // If a dependency of the library is missing, the loader prints the same message, but it begins with
                // the name of the dependency.
                let missing =
                    reason.contains("No such file or directory") && reason.starts_with(&library);
                if missing {
                    Self::LibraryNotFound { library }
                } else {
                    Self::LibraryUnusable { library, reason }
                }
            }
            NvmlError::FailedToLoadSymbol(_) => Self::LibraryUnusable {
                library,
                reason: "it does not have the function nvmlInit_v2".to_owned(),
            },
            error => Self::answer("nvmlInit_v2", error.into()),
        }
    }

    pub(super) fn answer(call: &'static str, code: Code) -> Self {
        match code {
            Code::DRIVER_NOT_LOADED => Self::DriverNotLoaded,
            Code::LIB_RM_VERSION_MISMATCH => Self::VersionMismatch,
            Code::NO_PERMISSION => Self::NoPermission,
            code => Self::Call { call, code: code.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_values_differ_from_refused_calls() {
        assert_eq!(Code::from(NvmlError::UnexpectedVariant(27)), Code(27));
        assert!(Code::from(NvmlError::UnexpectedVariant(77)).is_unsupported());
        assert!(Code::from(NvmlError::FailedToLoadSymbol(String::new())).is_unsupported());
        assert!(Code::from(NvmlError::GpuLost).is_loss());
        assert!(Code::from(NvmlError::LibRmVersionMismatch).is_driver_gone());
    }
}

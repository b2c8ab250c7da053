//! Makes the NVML calls for one GPU and handles their failures.
//!
//! Each call goes through [`Calls`], which publishes the name of the call for the thread that enforces the deadline.
//! If a value is not supported, it is not requested again for a while. All other errors are added to the snapshot.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::Code;
use crate::model::snapshot::ReadError;

/// Time after which an unsupported value is requested again, because a setting may have changed.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The NVML call that a GPU's thread is making, for the thread that enforces the deadline.
#[derive(Debug, Default)]
pub(super) struct CallProgress(Mutex<Option<&'static str>>);

impl CallProgress {
    fn enter(&self, call: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
    }

    pub(super) fn call(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Calls {
    index: u32,
    progress: Arc<CallProgress>,
    unsupported: Vec<(&'static str, Instant)>,
    pub(super) errors: Vec<ReadError>,
    /// Set if the GPU no longer answers. No more values are requested in this sample.
    pub(super) lost: Option<Code>,
    pub(super) driver_gone: Option<Code>,
}

impl Calls {
    pub(super) fn new(index: u32, progress: Arc<CallProgress>) -> Self {
        Self {
            index,
            progress,
            unsupported: Vec::new(),
            errors: Vec::new(),
            lost: None,
            driver_gone: None,
        }
    }

    /// Makes a call and returns its result. Does not record errors.
    pub(super) fn raw<T, E: Into<Code>>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Code> {
        if let Some(code) = self.driver_gone.or(self.lost) {
            return Err(code);
        }
        if self.is_unsupported(name) {
            return Err(Code::NOT_SUPPORTED);
        }
        self.progress.enter(name);
        call().map_err(Into::into)
    }

    /// Makes a call for a value. Returns `None` if the value is not available.
    pub(super) fn value<T, E: Into<Code>>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Option<T> {
        let answer = self.raw(name, call);
        self.judge(name, answer)
    }

    /// Makes a call for a number. Returns `None` if the number is not available, or if it exceeds `max` and is
    /// therefore impossible.
    pub(super) fn at_most<E: Into<Code>>(
        &mut self,
        name: &'static str,
        max: u32,
        call: impl FnOnce() -> Result<u32, E>,
    ) -> Option<u32> {
        let value = self.value(name, call)?;
        if value > max {
            self.report(name, format!("the driver's answer cannot be true: {value}"));
        }
        Some(value).filter(|&value| value <= max)
    }

    /// Makes a call for a string that all GPUs have. Any failure is reported, even "not supported".
    pub(super) fn text<E: Into<Code>>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<String, E>,
    ) -> Option<String> {
        let text = self.record(name, call)?;
        if text.trim().is_empty() {
            self.report(name, "the driver's answer is empty".to_owned());
            return None;
        }
        Some(text)
    }

    /// Makes a call for a value that all GPUs have. Any failure is reported, even "not supported".
    pub(super) fn record<T, E: Into<Code>>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Option<T> {
        let answer = self.raw(name, call);
        if let Err(code) = answer
            && code.is_unsupported()
            && !self.is_silent()
        {
            self.report(name, code.to_string());
        }
        self.judge(name, answer)
    }

    pub(super) fn judge<T>(&mut self, name: &'static str, answer: Result<T, Code>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(code) => {
                self.failed(name, code);
                None
            }
        }
    }

    pub(super) fn failed(&mut self, name: &'static str, code: Code) {
        if self.is_silent() {
            return; // The error was already reported, and this value was not requested.
        }
        if code.is_unsupported() {
            if !self.is_unsupported(name) {
                self.unsupported.retain(|(listed, _)| *listed != name);
                self.unsupported.push((name, Instant::now()));
            }
            return;
        }
        if code.is_driver_gone() {
            self.driver_gone = Some(code);
        } else if code.is_loss() {
            self.lost = Some(code);
        }
        self.report(name, code.to_string());
    }

    pub(super) fn report(&mut self, name: &'static str, error: String) {
        self.errors.push(ReadError {
            gpu: Some(self.index),
            call: name.into(),
            error: error.into(),
        });
    }

    pub(super) fn ask_all_again(&mut self) {
        self.unsupported.clear();
    }

    /// Returns whether no more values are requested in this sample.
    pub(super) fn is_silent(&self) -> bool {
        self.lost.is_some() || self.driver_gone.is_some()
    }

    /// Moves the errors of the GPU's MIG devices to the GPU.
    pub(super) fn take_errors_of(&mut self, parts: &mut Self) {
        self.errors.append(&mut parts.errors);
        self.lost = self.lost.or(parts.lost.take());
        self.driver_gone = self.driver_gone.or(parts.driver_gone.take());
    }

    fn is_unsupported(&self, name: &'static str) -> bool {
        self.unsupported
            .iter()
            .any(|(listed, since)| *listed == name && since.elapsed() < ASK_AGAIN_AFTER)
    }
}

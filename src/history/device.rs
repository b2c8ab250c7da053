//! A GPU over time.

use std::sync::Arc;

use super::Moment;
use crate::model::{Gpu, Time};

/// A GPU that has been seen.
#[derive(Clone, Debug)]
pub struct Device {
    uuid: Option<Arc<str>>,
    index: u32,
    /// When its process list was last read.
    listed_at: Option<Time>,
}

impl Device {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            listed_at: None,
        }
    }

    /// By uuid; the index, which a reboot may deal out anew, only where there is none.
    pub(super) fn is(&self, gpu: &Gpu) -> bool {
        match (&self.uuid, &gpu.uuid) {
            (Some(mine), Some(other)) => mine == other,
            (None, None) => self.index == gpu.index,
            _ => false,
        }
    }

    /// Takes in what a snapshot says of the GPU; `is_listed` where it answered and its processes are
    /// known.
    pub(super) fn observe(&mut self, gpu: &Gpu, moment: Moment, is_listed: bool) {
        self.index = gpu.index;
        if is_listed {
            self.listed_at = Some(moment.time);
        }
    }

    /// `"GPU-…"`.
    pub fn uuid(&self) -> Option<&Arc<str>> {
        self.uuid.as_ref()
    }

    /// NVML's index, as it was last.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// When its process list was last read.
    pub fn listed_at(&self) -> Option<Time> {
        self.listed_at
    }
}

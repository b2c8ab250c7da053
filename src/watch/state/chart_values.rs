//! The values of the charts, made once for each sample that is shown, and not for each frame.
//!
//! They stay what they are while that sample is shown: what came later is no part of it, also where it is
//! in the same stretch of a course.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::watch::view_model::RowKey;

/// A value for each column of a chart, `None` where no one saw any.
pub type ColumnValues = Rc<[Option<f64>]>;

/// What a chart is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChartSubject {
    /// The memory of the GPU of this index, in bytes.
    GpuMemory(u32),
    /// Its utilization, in percent.
    GpuUse(u32),
    /// The memory of a process on a GPU, in bytes.
    ProcessMemory(RowKey),
    /// How much of the GPU it used, in percent.
    ProcessUse(RowKey),
}

/// A chart: of what, of how many columns, and how many milliseconds it shows, with those that are to come.
type ChartKey = (ChartSubject, u16, i64);

/// The values of the charts that were drawn.
#[derive(Debug, Default)]
pub struct ChartValues(RefCell<HashMap<ChartKey, ColumnValues>>);

impl ChartValues {
    /// Those of a chart; they are made where they are not known.
    pub fn of(
        &self,
        subject: ChartSubject,
        columns: u16,
        milliseconds: i64,
        make: impl FnOnce() -> Vec<Option<f64>>,
    ) -> ColumnValues {
        let key = (subject, columns, milliseconds);
        if let Some(known) = self.0.borrow().get(&key) {
            return Rc::clone(known);
        }
        let made: ColumnValues = make().into();
        self.0.borrow_mut().insert(key, Rc::clone(&made));
        made
    }

    /// Another sample is shown.
    pub(super) fn forget(&mut self) {
        self.0.get_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_made_once_until_another_sample_is_shown() {
        let mut values = ChartValues::default();
        let subject = ChartSubject::GpuUse(0);
        let of = |values: &ChartValues, columns, value| {
            values.of(subject, columns, 60_000, || vec![Some(value); usize::from(columns)])
        };
        assert_eq!(*of(&values, 2, 1.0), [Some(1.0); 2]);
        assert_eq!(*of(&values, 2, 2.0), [Some(1.0); 2], "what came later is no part of it");
        assert_eq!(*of(&values, 3, 2.0), [Some(2.0); 3], "a chart of another width");
        values.forget();
        assert_eq!(*of(&values, 2, 3.0), [Some(3.0); 2]);
    }
}

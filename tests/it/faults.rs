//! Wrong and missing answers from the driver. gpumem reports unknown values, and neither accuses nor kills a process
//! because of a fault.

mod family;
mod late;
mod lies;
mod matrix;

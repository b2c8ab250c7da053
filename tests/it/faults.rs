//! Wrong and missing answers from the driver. gpumem reports the affected values as unknown, and does not accuse or
//! kill a process because of a fault.

mod family;
mod late;
mod lies;
mod matrix;

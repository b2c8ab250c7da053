//! What the driver withholds, and what it says that cannot be true: nobody is accused for it and
//! nobody ended, and what is not known is said.

mod family;
mod late;
mod lies;
mod matrix;

//! Wrong or missing answers from the driver: no process is accused or ended because of them, and what is
//! unknown is reported.

mod family;
mod late;
mod lies;
mod matrix;

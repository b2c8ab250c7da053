//! What growth is measured by: the unit of bytes, widths and numbers of buckets, lengths of windows.

/// Bytes are kept in units of 64 KiB: 256 TiB fit into 32 bits.
pub(super) const UNIT: u64 = 1 << 16;
/// A floor that has risen by less than 64 MiB is not looked at.
pub(super) const LEAST_RISE: u32 = (64 << 20) / UNIT as u32;
/// Buckets kept of one row: 1.4 KiB.
pub(super) const MOST_BUCKETS: usize = 72;
/// A bucket's width before it is merged with another.
pub(super) const BUCKET_SECONDS: u32 = 30;
/// A plateau is judged for as long.
pub(super) const YOUNG_SECONDS: u32 = 180;
/// No window is shorter.
pub(super) const SHORTEST_SECONDS: u32 = 900;
/// No window is longer.
pub(super) const LONGEST_SECONDS: u32 = 12 * 3600;

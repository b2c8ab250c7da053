//! Units and sizes of growth detection: bytes, buckets, windows.

/// Bytes in a unit, 64 KiB: 256 TiB fit into 32 bits.
pub(super) const UNIT: u64 = 1 << 16;
/// The least rise of a floor that is examined: 64 MiB.
pub(super) const LEAST_RISE: u32 = (64 << 20) / UNIT as u32;
/// The most buckets of a row: 1.4 KiB.
pub(super) const MOST_BUCKETS: usize = 72;
/// The width of a bucket before it is merged, in seconds.
pub(super) const BUCKET_SECONDS: u32 = 30;
/// The shortest window, in seconds.
pub(super) const SHORTEST_SECONDS: u32 = 900;
/// The longest window, in seconds.
pub(super) const LONGEST_SECONDS: u32 = 12 * 3600;

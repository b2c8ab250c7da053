//! Pseudo-random numbers that depend only on the seed.

/// The splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(family: &str, seed: u64) -> Self {
        // Use FNV-1a, because the standard library's default hash can change between Rust releases.
        let name = family.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(name ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `low..high`.
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an integer in `low..=high`.
    pub fn whole(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// Returns `true` with this probability.
    pub fn chance(&mut self, share: f64) -> bool {
        self.range(0.0, 1.0) < share
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.bits() % choices.len() as u64) as usize]
    }

    /// Returns a number around 0. Its absolute value rarely exceeds three times `spread`.
    pub fn noise(&mut self, spread: f64) -> f64 {
        (0..4).map(|_| self.range(-1.0, 1.0)).sum::<f64>() * spread * 0.87
    }

    pub fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| char::from(b"0123456789abcdef"[(self.bits() % 16) as usize])).collect()
    }

    pub fn uuid(&mut self) -> String {
        [8, 4, 4, 4, 12].map(|digits| self.hex(digits)).join("-")
    }
}

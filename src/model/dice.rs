//! Seeded random numbers for tests, so that a failure can be reproduced.

/// A small random number generator (xorshift, G. Marsaglia 2003). Its state must not be 0.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn roll(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    pub fn place(&mut self, count: usize) -> usize {
        self.roll(count as u64) as usize
    }

    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

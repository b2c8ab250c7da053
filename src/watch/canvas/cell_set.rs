//! A set of cells, a bit for each: what is asked of thousands of them a frame has to lie in few bytes.

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// Some of so many cells, by their places.
#[derive(Clone, Debug)]
pub(super) struct CellSet {
    words: Vec<u64>,
    count: usize,
}

impl CellSet {
    /// None of so many cells.
    pub(super) fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(BITS)], count }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    pub(super) fn insert(&mut self, cells: Range<usize>) {
        for (word, mask) in parts(cells) {
            self.words[word] |= mask;
        }
    }

    pub(super) fn remove(&mut self, cells: Range<usize>) {
        for (word, mask) in parts(cells) {
            self.words[word] &= !mask;
        }
    }

    pub(super) fn contains(&self, cell: usize) -> bool {
        self.words[cell / BITS] >> (cell % BITS) & 1 == 1
    }

    /// Whether any of these cells is in it.
    pub(super) fn meets(&self, cells: Range<usize>) -> bool {
        parts(cells).any(|(word, mask)| self.words[word] & mask > 0)
    }

    /// The cells in it, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(at, word)| bits(*word).map(move |bit| at * BITS + bit))
    }

    /// The cells that are neither in it nor in another set of as many, in order.
    pub(super) fn neither(&self, other: &Self) -> Vec<usize> {
        let words = self.words.iter().zip(&other.words).enumerate();
        words
            .flat_map(|(at, (a, b))| bits(!(a | b)).map(move |bit| at * BITS + bit))
            .take_while(|cell| *cell < self.count)
            .collect()
    }
}

/// The words that hold these cells, each with a mask of theirs.
fn parts(cells: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = cells.start / BITS..cells.end.div_ceil(BITS);
    words.filter_map(move |word| {
        let from = cells.start.saturating_sub(word * BITS);
        let to = (cells.end - word * BITS).min(BITS);
        // An empty range may begin within a word.
        let length = to.checked_sub(from).filter(|length| *length > 0)?;
        Some((word, u64::MAX >> (BITS - length) << from))
    })
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use crate::model::dice::Dice;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_is_a_set_for_any_ranges() {
        let mut dice = Dice::new(5);
        for count in [0, 1, 63, 64, 65, 200, 300] {
            let mut sets = [CellSet::new(count), CellSet::new(count)];
            let mut known = [BTreeSet::new(), BTreeSet::new()];
            for _ in 0..300 {
                let (from, to) = (dice.place(count + 1), dice.place(count + 1));
                let cells = from.min(to)..from.max(to);
                let at = dice.place(2);
                let is_met = cells.clone().any(|cell| known[at].contains(&cell));
                assert_eq!(sets[at].meets(cells.clone()), is_met, "{cells:?}");
                if dice.place(2) == 0 {
                    sets[at].insert(cells.clone());
                    known[at].extend(cells);
                } else {
                    sets[at].remove(cells.clone());
                    known[at].retain(|cell| !cells.contains(cell));
                }
                assert!(sets[at].iter().eq(known[at].iter().copied()));
                let [a, b] = &known;
                let neither = (0..count).filter(|it| !a.contains(it) && !b.contains(it));
                let found = sets[0].neither(&sets[1]);
                assert_eq!(found, neither.collect::<Vec<_>>());
                assert!(
                    (0..count).all(|cell| sets[at].contains(cell) == known[at].contains(&cell))
                );
            }
        }
    }
}

//! A set of numbers as ranges: which windows are in a batch. Ranges that touch are one.

use std::collections::BTreeMap;

/// Numbers `from..=to`.
pub(super) type Range = (u64, u64);

/// A set of numbers. Ranges inside neither meet nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `from..=to`.
    pub(super) fn add(&mut self, (from, to): Range) {
        if to < from {
            return;
        }
        let (mut from, mut to) = (from, to);
        // All that begin at most one past our end and end at least one before our start.
        while let Some((first, last)) = self.0.range(..=to.saturating_add(1)).next_back() {
            let (first, last) = (*first, *last);
            if last.saturating_add(1) < from {
                break;
            }
            self.0.remove(&first);
            (from, to) = (from.min(first), to.max(last));
        }
        self.0.insert(from, to);
    }

    /// Whether all of `from..=to` is in the set.
    pub(super) fn holds(&self, (from, to): Range) -> bool {
        self.0.range(..=from).next_back().is_some_and(|(_, last)| to <= *last)
    }

    /// What of `from..=to` is not in the set, in order.
    pub(super) fn missing(&self, (from, to): Range) -> Vec<Range> {
        let mut missing = Vec::new();
        let mut at = from;
        for (first, last) in &self.0 {
            if *last < at {
                continue;
            }
            if at > to || *first > to {
                break;
            }
            if at < *first {
                missing.push((at, first.saturating_sub(1)));
            }
            let Some(next) = last.checked_add(1) else { return missing };
            at = next;
        }
        if at <= to {
            missing.push((at, to));
        }
        missing
    }

    /// The highest number.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last_key_value().map(|(_, last)| *last)
    }

    /// All ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range> {
        self.0.iter().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_what_was_added(
            added in prop::collection::vec((0_u64..60, 0_u64..8), 0..20),
            ask in (0_u64..60, 0_u64..20),
        ) {
            let (mut ranges, mut plain) = (Ranges::default(), BTreeSet::new());
            for (from, length) in added {
                ranges.add((from, from + length));
                plain.extend(from..=from + length);
            }
            let listed: Vec<u64> = ranges.iter().flat_map(|(from, to)| from..=to).collect();
            prop_assert_eq!(listed, plain.iter().copied().collect::<Vec<_>>());
            let all: Vec<Range> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|two| two[0].1 + 1 < two[1].0));
            let asked = (ask.0, ask.0 + ask.1);
            prop_assert_eq!(ranges.holds(asked), (asked.0..=asked.1).all(|each| plain.contains(&each)));
            let missing = ranges.missing(asked).into_iter().flat_map(|(from, to)| from..=to);
            let not_there = (asked.0..=asked.1).filter(|each| !plain.contains(each));
            prop_assert_eq!(missing.collect::<Vec<_>>(), not_there.collect::<Vec<_>>());
            prop_assert_eq!(ranges.last(), plain.last().copied());
        }
    }

    #[test]
    fn the_highest_numbers_do_not_wrap() {
        let mut ranges = Ranges::default();
        ranges.add((u64::MAX - 3, u64::MAX - 2));
        ranges.add((u64::MAX - 1, u64::MAX));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(u64::MAX - 3, u64::MAX)]);
        assert_eq!(ranges.missing((u64::MAX - 4, u64::MAX)), [(u64::MAX - 4, u64::MAX - 4)]);
    }
}

//! The energy counter: millijoules since the driver was loaded.

/// What a board's counter showed.
#[derive(Debug, Default)]
pub(super) struct Energy {
    last: Option<u64>,
}

impl Energy {
    /// What was taken since the look before; none: it was not read then, or it began anew, and how much was
    /// taken before that nobody knows.
    pub(super) fn taken(&mut self, now: Option<u64>) -> Option<i64> {
        let last = std::mem::replace(&mut self.last, now)?;
        i64::try_from(now?.checked_sub(last)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_falls_or_fails_measures_nothing_for_one_look() {
        let mut energy = Energy::default();
        let looks = [Some(100), Some(350), Some(20), Some(50), None, Some(90), Some(95)];
        let taken = looks.map(|look| energy.taken(look));
        assert_eq!(taken, [None, Some(250), None, Some(30), None, None, Some(5)]);
    }
}

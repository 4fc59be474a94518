//! Windows of which a message cannot carry all rows: parted by device, over the same span.

use std::collections::BTreeSet;

use super::Window;
use super::open::Tables;
use crate::domain::ids::Name;
use crate::domain::usage::{Batch, LayoutRow, Row, UseRow};

impl Window {
    /// This window as windows of which no table has more than `rows_max` rows, over the same span and with the same
    /// state: one, in nearly every case. No device is in two of them; one that has more rows by itself is alone.
    #[must_use]
    pub fn parts(self, rows_max: usize) -> Vec<Self> {
        if tables(&self.batch).into_iter().all(|rows| rows <= rows_max) {
            return vec![self];
        }
        let mut parts: Vec<(BTreeSet<&Name>, [usize; 5])> = Vec::new();
        for device in self.batch.devices() {
            let more = tables(&of_devices(&self.batch, &BTreeSet::from([device])));
            match parts.last_mut().filter(|(_, sums)| sums.iter().zip(more).all(|(a, b)| a + b <= rows_max)) {
                Some((devices, sums)) => {
                    devices.insert(device);
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
                None => parts.push((BTreeSet::from([device]), more)),
            }
        }
        let window = |(devices, _)| Self {
            span: self.span,
            batch: of_devices(&self.batch, &devices),
            source_state: self.source_state.clone(),
        };
        parts.into_iter().map(window).collect()
    }
}

/// How many rows each table has.
const fn tables(batch: &Batch) -> [usize; 5] {
    [batch.rows.len(), batch.layout.len(), batch.usage.len(), batch.energy.len(), batch.coverage.len()]
}

/// What a batch says of some devices, with tables of its own. What is of no device, such as clocks, is in each.
fn of_devices(batch: &Batch, devices: &BTreeSet<&Name>) -> Batch {
    let mut named = Tables::default();
    let mut part = Batch { clocks: batch.clocks.clone(), gaps: batch.gaps.clone(), ..Batch::default() };
    let slice = |at: usize| batch.slices.get(at).filter(|slice| devices.contains(&slice.device));
    for row in &batch.rows {
        if let (Some(slice), Some(seen)) = (slice(row.slice), batch.evidence.get(row.evidence)) {
            let (slice, evidence) = (named.slices.number(slice), named.evidence.number(seen));
            part.rows.push(Row { slice, evidence, ..row.clone() });
        }
    }
    for row in &batch.layout {
        if let Some(slice) = slice(row.slice) {
            let slice = named.slices.number(slice);
            part.layout.push(LayoutRow { slice, ..row.clone() });
        }
    }
    for row in &batch.usage {
        if let Some(slice) = slice(row.slice) {
            let slice = named.slices.number(slice);
            let seen = row.evidence.and_then(|at| batch.evidence.get(at));
            let evidence = seen.map(|seen| named.evidence.number(seen));
            part.usage.push(UseRow { slice, evidence, ..row.clone() });
        }
    }
    part.energy.extend(batch.energy.iter().filter(|row| devices.contains(&row.device)).cloned());
    part.coverage.extend(batch.coverage.iter().filter(|each| devices.contains(&each.device)).cloned());
    part.slices = named.slices.entries;
    part.evidence = named.evidence.entries;
    part
}

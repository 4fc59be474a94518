//! From parts to the rows that are summed: one row a day for each set of dimensions and price item.
//!
//! Always true here: the rows of a day sum to its parts; the item of a row is the one in force in the hours
//! that it sums, so a price change inside a day makes two rows.

use std::collections::BTreeMap;

use super::allocation::{DeviceHour, PartState};
use super::device::SharingMode;
use super::ids::Name;
use super::period::Span;
use super::price::{Book, Item, PriceBook};
use super::segment::HourSegments;
use super::units::{OutOfRange, Quantity};
use super::usage::Evidence;

/// What a `node_day` row is keyed by, beside its scope and day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DayKey {
    /// The tenant's name; none is the platform.
    pub tenant: Option<Name>,
    /// The project; none where nobody held.
    pub project: Option<Name>,
    /// The workload; none where nobody held, or nothing named it.
    pub workload: Option<Name>,
    /// The sharing mode; none where no slice exists.
    pub mode: Option<SharingMode>,
    /// The device's model.
    pub model: Name,
    /// What is sold.
    pub sku: Name,
    /// What the time was.
    pub state: PartState,
    /// The cost book's item; none: unpriced.
    pub cost_item: Option<Item>,
    /// The charge book's item; none: unpriced.
    pub charge_item: Option<Item>,
}

/// The sums of one scope and day.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaySums(BTreeMap<DayKey, Quantity>);

impl DaySums {
    /// Adds a billing hour's parts at the prices in force when it began.
    ///
    /// # Errors
    /// [`OutOfRange`] when a sum does not fit.
    pub fn add(
        &mut self,
        hour: Span,
        devices: &[DeviceHour],
        evidence: &[Evidence],
        book: &PriceBook,
    ) -> Result<(), OutOfRange> {
        for device in devices {
            let cost_item = book.item(Book::Cost, &device.model, hour.start());
            let charge_item = book.item(Book::Charge, &device.model, hour.start());
            for part in &device.parts {
                let seen = part.evidence.and_then(|at| evidence.get(at));
                let key = DayKey {
                    tenant: part.owner.as_ref().and_then(|owner| owner.tenant.clone()),
                    project: part.owner.as_ref().map(|owner| owner.project.clone()),
                    workload: seen.and_then(Evidence::workload).cloned(),
                    mode: part.mode,
                    model: device.model.clone(),
                    sku: part.sku.clone(),
                    state: part.state,
                    cost_item: cost_item.clone(),
                    charge_item: charge_item.clone(),
                };
                let sum = self.0.entry(key).or_insert(Quantity::ZERO);
                *sum = sum.plus(part.quantity)?;
            }
        }
        Ok(())
    }

    /// The rows, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&DayKey, Quantity)> {
        self.0.iter().map(|(key, quantity)| (key, *quantity))
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A billing hour of one scope: what was said, and what it was divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHour {
    /// What the sources said.
    pub segments: HourSegments,
    /// The devices in service, divided, by UUID.
    pub devices: Vec<DeviceHour>,
}

//! From parts to the rows that are summed: one row a day for each set of dimensions and price item.
//!
//! Always true here: the rows of a day sum to its parts; the item of a row is the one in force in the hours
//! that it sums, so a price change inside a day makes two rows.

use std::collections::HashMap;

use super::allocation::{DeviceHour, Part, PartState};
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

/// What is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sum {
    /// GPU-hours.
    pub quantity: Quantity,
    /// Of these, GPU-hours whose energy was counted.
    pub metered: Quantity,
    /// Energy of the metered hours, in millijoules.
    pub millijoules: i64,
}

impl Sum {
    /// The sum of two.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn plus(self, other: Self) -> Result<Self, OutOfRange> {
        Ok(Self {
            quantity: self.quantity.plus(other.quantity)?,
            metered: self.metered.plus(other.metered)?,
            millijoules: self
                .millijoules
                .checked_add(other.millijoules)
                .ok_or(OutOfRange::of("a sum of energy"))?,
        })
    }
}

/// The sums of one scope and day.
#[derive(Debug, Clone, Default)]
pub struct DaySums {
    rows: HashMap<DayKey, usize>,
    /// By the row's number.
    keys: Vec<DayKey>,
    sums: Vec<Sum>,
    /// The row in which a part with names at these addresses was counted last. A hint: the row is compared in full.
    recent: HashMap<Hint, usize>,
}

/// Addresses of evidence and sku, with state and mode.
type Hint = (usize, usize, PartState, Option<SharingMode>);

/// What a part is counted under, before it is a key.
struct Counted<'a> {
    part: &'a Part,
    seen: Option<&'a Evidence>,
    model: &'a Name,
    cost_item: &'a Option<Item>,
    charge_item: &'a Option<Item>,
}

impl Counted<'_> {
    fn hint(&self) -> Hint {
        let (part, seen) = (self.part, self.seen.map(Evidence::address).unwrap_or_default());
        (seen, part.sku.address(), part.state, part.mode)
    }

    fn is(&self, key: &DayKey) -> bool {
        let owner = self.part.owner.as_ref();
        key.state == self.part.state
            && key.mode == self.part.mode
            && key.sku == self.part.sku
            && key.workload.as_ref() == self.seen.and_then(Evidence::workload)
            && key.tenant.as_ref() == owner.and_then(|owner| owner.tenant.as_ref())
            && key.project.as_ref() == owner.map(|owner| &owner.project)
            && key.model == *self.model
            && key.cost_item == *self.cost_item
            && key.charge_item == *self.charge_item
    }

    fn key(&self) -> DayKey {
        let owner = self.part.owner.as_ref();
        DayKey {
            tenant: owner.and_then(|owner| owner.tenant.clone()),
            project: owner.map(|owner| owner.project.clone()),
            workload: self.seen.and_then(Evidence::workload).cloned(),
            mode: self.part.mode,
            model: self.model.clone(),
            sku: self.part.sku.clone(),
            state: self.part.state,
            cost_item: self.cost_item.clone(),
            charge_item: self.charge_item.clone(),
        }
    }
}

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
                let (cost_item, charge_item) = (&cost_item, &charge_item);
                let row = self.row(&Counted { part, seen, model: &device.model, cost_item, charge_item });
                let (quantity, metered, millijoules) = (part.quantity, part.metered, part.millijoules);
                if let Some(sum) = self.sums.get_mut(row) {
                    *sum = sum.plus(Sum { quantity, metered, millijoules })?;
                }
            }
        }
        Ok(())
    }

    /// The number of a part's row, made where it is new.
    fn row(&mut self, counted: &Counted<'_>) -> usize {
        let hint = counted.hint();
        let known = self.recent.get(&hint).copied();
        if let Some(row) = known.filter(|row| self.keys.get(*row).is_some_and(|key| counted.is(key))) {
            return row;
        }
        let (key, next) = (counted.key(), self.keys.len());
        let row = *self.rows.entry(key.clone()).or_insert(next);
        if row == next {
            self.keys.push(key);
            self.sums.push(Sum::default());
        }
        self.recent.insert(hint, row);
        row
    }

    /// The rows, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&DayKey, Sum)> {
        let mut rows: Vec<(&DayKey, Sum)> = self.keys.iter().zip(self.sums.iter().copied()).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows.into_iter()
    }

    /// How many rows there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl PartialEq for DaySums {
    /// By rows and sums, in whatever order they came.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for DaySums {}

/// A billing hour of one scope: what was said, and what it was divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHour {
    /// What the sources said.
    pub segments: HourSegments,
    /// The devices in service, divided, by UUID.
    pub devices: Vec<DeviceHour>,
}

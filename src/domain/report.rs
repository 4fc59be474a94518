//! The cost report of a month or of some days: groups, totals by state, and the reconciliation against the in-service intervals.
//!
//! Always true here: filters and grouping never change a number; the right side of the reconciliation is
//! computed from in-service intervals and never from parts; money is a sum of exact products.

use std::collections::BTreeMap;

use super::allocation::PartState;
use super::cost::Sum;
use super::device::UnknownWord;
use super::ids::ScopeId;
use super::money::{Amount, Currency, UnitPrice};
use super::period::{BillingZone, Day, Month, Span};
use super::units::{Instant, OutOfRange, Quantity};

/// Most days that one report spans: 26 months, as long as device-hours are kept.
pub const REPORT_DAYS_MAX: i64 = 26 * 31;

/// The billing days that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportPeriod {
    first: Day,
    end: Day,
    month: Option<Month>,
}

/// A span is not made of whole billing days, or of too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeriodError {
    /// An edge lies inside a day.
    #[error("{edge} is not the edge of a day in {zone}; the day begins at {begins}")]
    InsideADay {
        /// The edge as given.
        edge: Instant,
        /// The billing zone.
        zone: BillingZone,
        /// Where the day begins in which it lies.
        begins: Instant,
    },
    /// No day lies between the edges.
    #[error("there is no day between {from} and {to}")]
    Empty {
        /// The first edge.
        from: Instant,
        /// The second.
        to: Instant,
    },
    /// More than [`REPORT_DAYS_MAX`].
    #[error("spans {days} days; a report spans at most {REPORT_DAYS_MAX}")]
    TooLong {
        /// How many.
        days: i64,
    },
}

impl ReportPeriod {
    /// A month.
    #[must_use]
    pub fn of_month(month: Month) -> Self {
        Self { first: month.first_day(), end: month.end_day(), month: Some(month) }
    }

    /// The days between two instants at which days begin.
    ///
    /// # Errors
    /// [`PeriodError`].
    pub fn of_edges(zone: BillingZone, from: Instant, to: Instant) -> Result<Self, PeriodError> {
        if to <= from {
            return Err(PeriodError::Empty { from, to });
        }
        for edge in [from, to] {
            let begins = zone.day_start(zone.day_of(edge));
            if begins != edge {
                return Err(PeriodError::InsideADay { edge, zone, begins });
            }
        }
        let (first, end) = (zone.day_of(from), zone.day_of(to));
        let days = end.stored().saturating_sub(first.stored());
        if days > REPORT_DAYS_MAX {
            return Err(PeriodError::TooLong { days });
        }
        Ok(Self { first, end, month: None })
    }

    /// The days.
    #[must_use]
    pub const fn days(self) -> std::ops::Range<Day> {
        self.first..self.end
    }

    /// The time from the first day's beginning to the last one's end.
    #[must_use]
    pub fn span(self, zone: BillingZone) -> Span {
        Span::clamped(zone.day_start(self.first), zone.day_start(self.end))
    }
}

impl std::fmt::Display for ReportPeriod {
    /// The month, or the first day and the day after the last.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.month {
            Some(month) => write!(f, "{month}"),
            None => write!(f, "{}/{}", self.first, self.end),
        }
    }
}

/// A field by which a report can be grouped. `state` is always among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Who pays.
    Tenant,
    /// For which project.
    Project,
    /// How the device is shared.
    Mode,
    /// The device's model.
    Model,
    /// The node, or pool.
    Node,
    /// The pod, VM, job or process that held.
    Workload,
    /// The billing day.
    Day,
    /// What the time was.
    State,
}

impl Dimension {
    /// All dimensions.
    pub const ALL: [Self; 8] = [
        Self::Tenant,
        Self::Project,
        Self::Mode,
        Self::Model,
        Self::Node,
        Self::Workload,
        Self::Day,
        Self::State,
    ];

    /// The dimension's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Project => "project",
            Self::Mode => "mode",
            Self::Model => "model",
            Self::Node => "node",
            Self::Workload => "workload",
            Self::Day => "day",
            Self::State => "state",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the dimensions.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|each| each.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }

    /// Whether only the sums per node and day know it; else the smaller sums per tenant and day do.
    #[must_use]
    pub const fn needs_node_level(self) -> bool {
        match self {
            Self::Node | Self::Workload => true,
            Self::Tenant | Self::Project | Self::Mode | Self::Model | Self::Day | Self::State => false,
        }
    }
}

/// A sum as read from the store: one value for each asked dimension, in the order asked, with its item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumRow {
    /// One value for each dimension that was asked.
    pub values: Vec<String>,
    /// What the time was.
    pub state: PartState,
    /// The cost item, as sums keep it; none: unpriced.
    pub cost_item: Option<String>,
    /// How much.
    pub sum: Sum,
}

/// Hours, money and energy of a group or a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// GPU-hours, priced and unpriced.
    pub gpu_hours: Quantity,
    /// Of these, GPU-hours without a price.
    pub unpriced_gpu_hours: Quantity,
    /// What the priced hours cost.
    pub priced_cost: Amount,
    /// GPU-hours whose energy was counted.
    pub metered_gpu_hours: Quantity,
    /// Energy of the metered hours, in millijoules.
    pub millijoules: i64,
}

impl Figures {
    /// The cost; none where hours are there and all of them are unpriced.
    #[must_use]
    pub fn cost(&self) -> Option<Amount> {
        let wholly_unpriced = self.gpu_hours != Quantity::ZERO && self.gpu_hours == self.unpriced_gpu_hours;
        (!wholly_unpriced).then_some(self.priced_cost)
    }

    /// The energy in millijoules; none where no hour was metered.
    #[must_use]
    pub fn energy(&self) -> Option<i64> {
        (self.metered_gpu_hours != Quantity::ZERO || self.millijoules != 0).then_some(self.millijoules)
    }

    fn add(&mut self, sum: Sum, price: Option<UnitPrice>) -> Result<(), OutOfRange> {
        let quantity = sum.quantity;
        self.gpu_hours = self.gpu_hours.plus(quantity)?;
        self.metered_gpu_hours = self.metered_gpu_hours.plus(sum.metered)?;
        self.millijoules = joined(self.millijoules, sum.millijoules)?;
        match price {
            Some(price) => self.priced_cost = self.priced_cost.plus(Amount::of(quantity, price))?,
            None => self.unpriced_gpu_hours = self.unpriced_gpu_hours.plus(quantity)?,
        }
        Ok(())
    }

    /// The sum of two.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn plus(&self, other: &Self) -> Result<Self, OutOfRange> {
        Ok(Self {
            gpu_hours: self.gpu_hours.plus(other.gpu_hours)?,
            unpriced_gpu_hours: self.unpriced_gpu_hours.plus(other.unpriced_gpu_hours)?,
            priced_cost: self.priced_cost.plus(other.priced_cost)?,
            metered_gpu_hours: self.metered_gpu_hours.plus(other.metered_gpu_hours)?,
            millijoules: joined(self.millijoules, other.millijoules)?,
        })
    }
}

fn joined(a: i64, b: i64) -> Result<i64, OutOfRange> {
    a.checked_add(b).ok_or(OutOfRange::of("a sum of energy"))
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// One value for each dimension of the report, in its order.
    pub values: Vec<String>,
    /// What the time was.
    pub state: PartState,
    /// Hours and money.
    pub figures: Figures,
}

/// Both sides of the identity, and what lies between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciliation {
    /// From the in-service intervals.
    pub in_service_gpu_hours: Quantity,
    /// From the parts.
    pub parts_gpu_hours: Quantity,
    /// Parts minus in-service; zero, or the report is an error.
    pub difference: Quantity,
}

/// A device's in-service span, as far as its time has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedService {
    /// Its home.
    pub scope: ScopeId,
    /// The device's number: what is in service for the same one in the same hour is one device-hour.
    pub device: i64,
    /// How many devices this speaks for, itself among them: the others have no other span, and the same edges.
    pub alike: i64,
    /// From when to when it is in service; open ends reach [`Instant::MAX`].
    pub span: Span,
    /// Until when the sums have counted it.
    pub counted_to: Instant,
}

/// Groups and totals, as far as somebody may see them: of all, or of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What the groups are keyed by, in the order asked, without `state` where it was not asked.
    pub dimensions: Vec<Dimension>,
    /// The groups, by the bytes of their values.
    pub groups: Vec<Group>,
    /// Totals by state: every state, in the order of their words.
    pub totals: Vec<(PartState, Figures)>,
    /// The total over all states.
    pub total: Figures,
}

/// A cost report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostReport {
    /// Its days.
    pub period: ReportPeriod,
    /// The billing zone.
    pub zone: BillingZone,
    /// The book currency.
    pub currency: Currency,
    /// What the groups are keyed by, in the order asked, without `state` where it was not asked.
    pub dimensions: Vec<Dimension>,
    /// The groups, by the bytes of their values.
    pub groups: Vec<Group>,
    /// Totals by state: every state, in the order of their words.
    pub totals: Vec<(PartState, Figures)>,
    /// The total over all states.
    pub total: Figures,
    /// Both sides of the identity.
    pub reconciliation: Reconciliation,
    /// Until when everything is counted; at most the period's end.
    pub as_of: Instant,
}

/// A report cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A sum does not fit.
    #[error("the report's sums do not fit")]
    OutOfRange(#[from] OutOfRange),
    /// A sum names an item that no price version has.
    #[error("a sum names the price item `{item}`, which does not exist")]
    UnknownItem {
        /// The item as the sum names it.
        item: String,
    },
}

/// Groups sums and prices them.
///
/// # Errors
/// [`ReportError`] when sums do not fit or name a price that is not there.
pub fn summary(
    dimensions: Vec<Dimension>,
    sums: Vec<SumRow>,
    prices: &BTreeMap<String, UnitPrice>,
) -> Result<Summary, ReportError> {
    let mut groups: BTreeMap<(Vec<String>, &'static str), Group> = BTreeMap::new();
    let mut totals: BTreeMap<&'static str, (PartState, Figures)> =
        PartState::ALL.into_iter().map(|state| (state.word(), (state, Figures::default()))).collect();
    for row in sums {
        let price = match &row.cost_item {
            Some(item) => {
                Some(*prices.get(item).ok_or_else(|| ReportError::UnknownItem { item: item.clone() })?)
            }
            None => None,
        };
        let (_, total) = totals.entry(row.state.word()).or_insert((row.state, Figures::default()));
        total.add(row.sum, price)?;
        let key = (row.values.clone(), row.state.word());
        let fresh = || Group { values: row.values, state: row.state, figures: Figures::default() };
        groups.entry(key).or_insert_with(fresh).figures.add(row.sum, price)?;
    }
    let totals: Vec<(PartState, Figures)> = totals.into_values().collect();
    let total = totals.iter().try_fold(Figures::default(), |sum, (_, figures)| sum.plus(figures))?;
    Ok(Summary { dimensions, groups: groups.into_values().collect(), totals, total })
}

/// Makes a report from sums, prices and in-service spans.
///
/// # Errors
/// [`ReportError`] when sums do not fit or name a price that is not there.
pub fn cost_report(
    period: ReportPeriod,
    zone: BillingZone,
    currency: Currency,
    dimensions: Vec<Dimension>,
    sums: Vec<SumRow>,
    prices: &BTreeMap<String, UnitPrice>,
    services: &[CountedService],
) -> Result<CostReport, ReportError> {
    let Summary { dimensions, groups, totals, total } = summary(dimensions, sums, prices)?;
    let span = period.span(zone);
    let in_service_gpu_hours = in_service(zone, span, services)?;
    Ok(CostReport {
        period,
        zone,
        currency,
        dimensions,
        groups,
        totals,
        total,
        reconciliation: Reconciliation {
            in_service_gpu_hours,
            parts_gpu_hours: total.gpu_hours,
            difference: total.gpu_hours.minus(in_service_gpu_hours)?,
        },
        as_of: as_of(span, services),
    })
}

/// The in-service time of a span: Σ over device-hours of ⌊in-service ns ÷ 3.6·10⁶⌋.
///
/// # Errors
/// [`OutOfRange`] when the sum does not fit.
pub fn in_service(
    zone: BillingZone,
    within: Span,
    services: &[CountedService],
) -> Result<Quantity, OutOfRange> {
    let mut by_device: BTreeMap<(ScopeId, i64), (Vec<Span>, i64)> = BTreeMap::new();
    for service in services {
        let counted =
            Span::clamped(service.span.start(), service.span.end().min(service.counted_to)).clip(within);
        if !counted.is_empty() {
            let (spans, alike) = by_device.entry((service.scope, service.device)).or_default();
            spans.push(counted);
            *alike = service.alike;
        }
    }
    // Devices mostly share their edges, so each distinct set of spans is computed once.
    let mut distinct: BTreeMap<Vec<Span>, i64> = BTreeMap::new();
    for (mut spans, alike) in by_device.into_values() {
        spans.sort_unstable();
        let count = distinct.entry(spans).or_insert(0);
        *count = count.saturating_add(alike);
    }
    let mut sum = Quantity::ZERO;
    for (spans, count) in distinct {
        let all = device_hours(zone, &spans)?
            .micro()
            .checked_mul(count)
            .ok_or(OutOfRange::of("in-service time"))?;
        sum = sum.plus(Quantity::from_micro(all))?;
    }
    Ok(sum)
}

/// The in-service time of one device, floored once a device-hour, however many spans meet in it.
fn device_hours(zone: BillingZone, spans: &[Span]) -> Result<Quantity, OutOfRange> {
    let mut nanos: BTreeMap<Instant, i64> = BTreeMap::new();
    for span in spans {
        for hour in zone.hours_meeting(*span) {
            let of_hour = nanos.entry(hour.start()).or_insert(0);
            *of_hour = of_hour.saturating_add(hour.clip(*span).nanos());
        }
    }
    Quantity::sum(nanos.into_values().map(Quantity::of_device_nanos))
}

/// The smallest edge among the devices still in service at theirs, kept inside the period.
#[must_use]
pub fn as_of(period: Span, services: &[CountedService]) -> Instant {
    services
        .iter()
        .filter(|service| service.counted_to < service.span.end() && service.span.meets(period))
        .map(|service| service.counted_to.max(service.span.start()))
        .fold(period.end(), Instant::min)
        .max(period.start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Name;
    use crate::domain::price::{Book, Item};

    fn span(from: &str, to: &str) -> Span {
        Span::new(Instant::parse(from).unwrap(), Instant::parse(to).unwrap()).unwrap()
    }

    fn report(sums: Vec<SumRow>, services: &[CountedService]) -> Result<CostReport, ReportError> {
        let prices = [("a#1/A10".to_owned(), UnitPrice::parse("2").unwrap())].into_iter().collect();
        let june = ReportPeriod::of_month(Month::parse("2026-06").unwrap());
        cost_report(
            june,
            BillingZone::UTC,
            Currency::parse("USD").unwrap(),
            vec![Dimension::Tenant],
            sums,
            &prices,
            services,
        )
    }

    fn sum(tenant: &str, state: PartState, item: Option<&str>, micro: i64) -> SumRow {
        let cost_item = item.map(str::to_owned);
        let sum = Sum { quantity: Quantity::from_micro(micro), ..Sum::default() };
        SumRow { values: vec![tenant.to_owned()], state, cost_item, sum }
    }

    #[test]
    fn a_group_without_any_price_has_no_cost_and_one_with_some_has() {
        let rows = vec![
            sum("b", PartState::Used, None, 1_000_000),
            sum("a", PartState::Used, Some("a#1/A10"), 1_500_000),
            sum("a", PartState::Used, None, 500_000),
        ];
        let report = report(rows, &[]).unwrap();
        let shown: Vec<(String, String, Option<String>)> = report
            .groups
            .iter()
            .map(|g| {
                (
                    g.values[0].clone(),
                    g.figures.unpriced_gpu_hours.to_string(),
                    g.figures.cost().map(|c| c.to_string()),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [("a".into(), "0.500000".into(), Some("3".into())), ("b".into(), "1.000000".into(), None)]
        );
        assert_eq!(report.totals.len(), PartState::ALL.len());
        assert_eq!(report.total.gpu_hours.micro(), 3_000_000);
    }

    #[test]
    fn the_difference_is_parts_minus_in_service() {
        let service = CountedService {
            scope: ScopeId::from_stored(1),
            device: 1,
            alike: 1,
            span: span("2026-06-01T00:00:00Z", "2026-06-01T01:30:00Z"),
            counted_to: Instant::MAX,
        };
        let full = report(vec![sum("a", PartState::Used, None, 1_500_000)], &[service]).unwrap();
        assert_eq!(full.reconciliation.difference, Quantity::ZERO);
        let short = report(vec![sum("a", PartState::Used, None, 1_400_000)], &[service]).unwrap();
        assert_eq!(short.reconciliation.difference.to_string(), "-0.100000");
    }

    #[test]
    fn as_of_is_the_smallest_edge_of_a_device_still_in_service() {
        let of = |services: &[CountedService]| report(vec![], services).unwrap().as_of.to_string();
        let open = |counted_to: &str| CountedService {
            scope: ScopeId::from_stored(1),
            device: 1,
            alike: 1,
            span: Span::clamped(Instant::parse("2026-05-01T00:00:00Z").unwrap(), Instant::MAX),
            counted_to: Instant::parse(counted_to).unwrap(),
        };
        let ended = CountedService {
            scope: ScopeId::from_stored(1),
            device: 1,
            alike: 1,
            span: span("2026-05-01T00:00:00Z", "2026-06-10T00:00:00Z"),
            counted_to: Instant::parse("2026-06-10T00:00:00Z").unwrap(),
        };
        assert_eq!(of(&[ended]), "2026-07-01T00:00:00Z");
        assert_eq!(
            of(&[ended, open("2026-06-12T10:00:00Z"), open("2026-06-12T09:00:00Z")]),
            "2026-06-12T09:00:00Z"
        );
        assert_eq!(of(&[open("2026-07-12T10:00:00Z")]), "2026-07-01T00:00:00Z");
    }

    #[test]
    fn a_period_is_made_of_whole_days_of_the_zone() {
        let zone = BillingZone::parse("America/Sao_Paulo").unwrap();
        let at = |text: &str| Instant::parse(text).unwrap();
        let of = |from: &str, to: &str| ReportPeriod::of_edges(zone, at(from), at(to));
        let week = of("2026-06-01T03:00:00Z", "2026-06-08T03:00:00Z").unwrap();
        assert_eq!(week.to_string(), "2026-06-01/2026-06-08");
        assert_eq!(week.span(zone).start(), at("2026-06-01T03:00:00Z"));
        let inside = of("2026-06-01T00:00:00Z", "2026-06-08T03:00:00Z").unwrap_err();
        assert!(inside.to_string().contains("the day begins at 2026-05-31T03:00:00Z"), "{inside}");
        assert!(matches!(of("2026-06-08T03:00:00Z", "2026-06-08T03:00:00Z"), Err(PeriodError::Empty { .. })));
        assert!(matches!(
            of("2020-06-08T03:00:00Z", "2026-06-08T03:00:00Z"),
            Err(PeriodError::TooLong { .. })
        ));
        let june = ReportPeriod::of_month(Month::parse("2026-06").unwrap());
        assert_eq!(june.to_string(), "2026-06");
        assert_eq!(june.span(zone), zone.month_span(Month::parse("2026-06").unwrap()));
    }

    #[test]
    fn a_sum_that_names_no_price_is_an_error() {
        let item = Item { version: Name::fixed("x"), revision: 1, key: Name::fixed(Book::Cost.word()) };
        let rows = vec![sum("a", PartState::Used, Some(&item.to_string()), 1)];
        assert!(matches!(report(rows, &[]), Err(ReportError::UnknownItem { .. })));
    }
}

//! The account of a fleet as the service makes it: claims, fold, division, sums of a day, report.

use std::collections::BTreeMap;

use fatia::domain::allocation::{DeviceFacts, Divider};
use fatia::domain::catalogue::Catalogue;
use fatia::domain::cost::{DayKey, DaySums, NodeHour};
use fatia::domain::ids::{Name, ScopeId};
use fatia::domain::mapping::MappingRules;
use fatia::domain::money::UnitPrice;
use fatia::domain::period::{Day, Span};
use fatia::domain::price::{Book, Item, PriceBook};
use fatia::domain::report::{CostReport, CountedService, Dimension, ReportPeriod, SumRow, cost_report};
use fatia::domain::segment::{Claims, HourSegments};
use fatia::domain::usage::Batch;

use super::world::{FleetDevice, NODES, Window, World, usd};

impl FleetDevice {
    /// What is known of it in an hour.
    pub(super) fn facts<'a>(&'a self, in_service: &'a [Span]) -> DeviceFacts<'a> {
        DeviceFacts { device: &self.device, memory_mib: self.memory_mib, in_service, states: &self.states }
    }
}

/// A node-hour with where and when it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Accounted {
    pub node: usize,
    pub day: Day,
    pub hour: NodeHour,
}

/// Sums by node and day.
pub(super) type Sums = BTreeMap<(usize, Day), DaySums>;

impl World {
    /// All node-hours from the first to the last in which some device is in service.
    pub(super) fn account(&self) -> Vec<Accounted> {
        self.account_of(&self.windows())
    }

    /// The same from batches in any other form.
    pub(super) fn account_of(&self, windows: &[Window]) -> Vec<Accounted> {
        let run = self.run();
        let hours: Vec<Span> = run.iter().map(|(_, hour)| *hour).collect();
        let rules = MappingRules::new(self.rules.clone());
        // One for all, as the service has it: what it remembers of one device must not show at another.
        let mut divider = Divider::new(Catalogue::embedded(), &rules);
        let mut accounted = Vec::new();
        for node in 0..NODES {
            let folded = self.claims(node, windows).fold(&hours);
            for ((day, _), segments) in run.iter().zip(folded) {
                let hour = self.divide(node, segments, &mut divider);
                accounted.push(Accounted { node, day: *day, hour });
            }
        }
        accounted
    }

    /// What is claimed of one node.
    pub(super) fn claims(&self, node: usize, windows: &[Window]) -> Claims {
        let mut claims = Claims::new();
        for window in windows {
            claims.add(&window.source, window.number, &self.for_node(node, &window.batch));
        }
        claims
    }

    /// A batch speaks for one node: without the rows and coverage of other nodes' devices.
    fn for_node(&self, node: usize, batch: &Batch) -> Batch {
        let here =
            |device: &Name| self.devices.iter().any(|each| each.node == node && each.device.uuid == *device);
        Batch {
            rows: batch.rows.iter().filter(|row| here(&batch.slices[row.slice].device)).cloned().collect(),
            coverage: batch.coverage.iter().filter(|cover| here(&cover.device)).cloned().collect(),
            layout: batch
                .layout
                .iter()
                .filter(|row| here(&batch.slices[row.slice].device))
                .cloned()
                .collect(),
            usage: batch.usage.iter().filter(|row| here(&batch.slices[row.slice].device)).cloned().collect(),
            energy: batch.energy.iter().filter(|row| here(&row.device)).cloned().collect(),
            ..batch.clone()
        }
    }

    /// Billing days and hours, without holes.
    pub(super) fn run(&self) -> Vec<(Day, Span)> {
        let zone = self.place.zone;
        let services: Vec<Span> = self.devices.iter().flat_map(|device| device.in_service()).collect();
        let (Some(first), Some(last)) =
            (services.iter().map(|s| s.start()).min(), services.iter().map(|s| s.end()).max())
        else {
            return Vec::new();
        };
        let run = Span::new(first, last).unwrap();
        let days = zone.days_meeting(run);
        let hours = days.flat_map(|day| zone.hours_of(day).map(move |hour| (day, hour)));
        hours.filter(|(_, hour)| hour.meets(run)).collect()
    }

    fn divide(&self, node: usize, segments: HourSegments, divider: &mut Divider<'_>) -> NodeHour {
        let devices = self
            .in_service_during(node, segments.hour)
            .iter()
            .map(|(each, in_service)| {
                let facts = each.facts(in_service);
                let said = segments.devices.iter().find(|said| said.device == each.device.uuid);
                divider.divide(&facts, &segments, said, &self.policy).unwrap()
            })
            .collect();
        NodeHour { segments, devices }
    }

    /// A node's devices that are in service in an hour, with when.
    pub(super) fn in_service_during(&self, node: usize, hour: Span) -> Vec<(&FleetDevice, Vec<Span>)> {
        let here = self.devices.iter().filter(|each| each.node == node);
        let clipped = here.map(|each| {
            let spans = each.in_service().into_iter().map(|span| span.clip(hour));
            (each, spans.filter(|span| !span.is_empty()).collect::<Vec<Span>>())
        });
        clipped.filter(|(_, spans)| !spans.is_empty()).collect()
    }

    /// The sums of the month's days.
    pub(super) fn sums(&self, accounted: &[Accounted]) -> Sums {
        let book = PriceBook::new(self.versions.clone());
        let month = self.place.month;
        let mut sums = Sums::new();
        for each in accounted.iter().filter(|each| (month.first_day()..month.end_day()).contains(&each.day)) {
            let NodeHour { segments, devices } = &each.hour;
            let day = sums.entry((each.node, each.day)).or_default();
            day.add(segments.hour, devices, &segments.evidence, &book).unwrap();
        }
        sums
    }

    /// The right side of the identity.
    pub(super) fn counted_services(&self) -> Vec<CountedService> {
        let of = |(number, device): (i64, &FleetDevice)| {
            let (counted_to, scope) =
                (device.counted_to, ScopeId::from_stored(i64::try_from(device.node).unwrap()));
            let spans = device.services.clone().into_iter();
            spans.map(move |span| CountedService { scope, device: number, alike: 1, span, counted_to })
        };
        (0..).zip(&self.devices).flat_map(of).collect()
    }

    /// The month's report.
    pub(super) fn report(
        &self,
        sums: &Sums,
        dimensions: &[Dimension],
        services: &[CountedService],
    ) -> CostReport {
        let rows = sums.iter().flat_map(|((node, day), sums)| {
            sums.iter().map(|(key, sum)| SumRow {
                values: dimensions.iter().map(|each| value(*each, *node, *day, key)).collect(),
                state: key.state,
                cost_item: key.cost_item.as_ref().map(Item::to_string),
                sum,
            })
        });
        let place = self.place;
        let (rows, prices) = (rows.collect(), self.prices());
        cost_report(
            ReportPeriod::of_month(place.month),
            place.zone,
            usd(),
            dimensions.to_vec(),
            rows,
            &prices,
            services,
        )
        .unwrap()
    }

    /// Cost prices by the text of their items.
    fn prices(&self) -> BTreeMap<String, UnitPrice> {
        let items = self.versions.iter().flat_map(|version| {
            let cost = version.prices.iter().filter(|((book, _), _)| *book == Book::Cost);
            cost.map(|((_, model), price)| {
                let item =
                    Item { version: version.name.clone(), revision: version.revision, key: model.clone() };
                (item.to_string(), *price)
            })
        });
        items.collect()
    }
}

/// A dimension's value as a report shows it.
fn value(dimension: Dimension, node: usize, day: Day, key: &DayKey) -> String {
    let text = |name: &Option<_>| name.as_ref().map_or(String::new(), ToString::to_string);
    match dimension {
        Dimension::Tenant => text(&key.tenant),
        Dimension::Project => text(&key.project),
        Dimension::Mode => key.mode.map_or("none", |mode| mode.word()).to_owned(),
        Dimension::Model => key.model.to_string(),
        Dimension::Node => node.to_string(),
        Dimension::Workload => text(&key.workload),
        Dimension::Day => day.to_string(),
        Dimension::State => key.state.word().to_owned(),
    }
}

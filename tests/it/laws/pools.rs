//! Pools: whatever is held of which members, each device-hour is divided exactly, and a tenant has what an account of
//! the instants one by one gives it.

use std::collections::BTreeMap;

use fatia::domain::allocation::{DeviceFacts, DeviceHour, Divider, PartState};
use fatia::domain::catalogue::Catalogue;
use fatia::domain::device::{DeclaredKind, DeclaredState, Device, SharingMode};
use fatia::domain::mapping::MappingRules;
use fatia::domain::period::Span;
use fatia::domain::segment::Claims;
use fatia::domain::units::Instant;
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank, merged,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::divisions::as_parts;
use super::holds;
use super::world::{MINUTE, name};

/// In minutes of the hour.
type Minutes = (i64, i64);

fn minutes() -> impl Strategy<Value = Minutes> {
    (0..60_i64, 0..60_i64).prop_map(|(a, b)| (a.min(b), a.max(b) + 1))
}

fn span((from, to): Minutes) -> Span {
    Span::new(Instant::from_micros(from * MINUTE), Instant::from_micros(to * MINUTE)).unwrap()
}

/// A pool in one hour: by member when it was in service and in maintenance; by holder how many it held, when; and what
/// was vouched for.
#[derive(Debug, Clone)]
struct Pool {
    members: Vec<(Vec<Minutes>, Option<Minutes>)>,
    held: Vec<(u32, Minutes)>,
    covered: Vec<Minutes>,
}

fn pools() -> impl Strategy<Value = Pool> {
    let member = (vec(minutes(), 1..3), proptest::option::weighted(0.3, minutes()));
    let held = vec((1..5_u32, minutes()), 0..6);
    (vec(member, 0..6), held, vec(minutes(), 0..3)).prop_map(|(members, held, covered)| Pool {
        members,
        held,
        covered,
    })
}

impl Pool {
    fn in_service(&self, member: usize) -> Vec<Span> {
        merged(self.members[member].0.iter().copied().map(span))
    }

    /// The members divided; `backwards`: with the claims the other way round, each in its own batch.
    fn divided(&self, backwards: bool) -> Vec<DeviceHour> {
        let pool = name("p");
        let mut batches: Vec<Batch> = self
            .held
            .iter()
            .enumerate()
            .map(|(number, (count, held))| {
                let slice = Slice::plain(pool.clone(), SharingMode::Dedicated, SliceSize::Devices(*count));
                let seen: Evidence = [EvidenceField::Workload, EvidenceField::Tenant]
                    .map(|field| (field, name(&format!("t{number}"))))
                    .into_iter()
                    .collect();
                let row = Row { slice: 0, evidence: 0, span: span(*held), uncut: span(*held) };
                Batch { slices: vec![slice], evidence: vec![seen], rows: vec![row], ..Batch::default() }
            })
            .collect();
        batches.extend(self.covered.iter().map(|covered| Batch {
            coverage: vec![Coverage { device: pool.clone(), span: span(*covered), of: CoverageOf::Holding }],
            ..Batch::default()
        }));
        if backwards {
            batches.reverse();
        }
        let source = Source { rank: SourceRank::Import, sender: name("s") };
        let mut claims = Claims::new();
        batches.iter().for_each(|batch| claims.add(&source, 1, batch));
        let hour = claims.fold(&[span((0, 60))]).remove(0);
        let devices: Vec<(Device, Vec<Span>, Vec<DeclaredState>)> = (0..self.members.len())
            .map(|member| {
                let device = Device { uuid: name(&format!("g{member}")), model: name("A10") };
                let states = self.members[member].1.iter().map(|declared| DeclaredState {
                    kind: DeclaredKind::Maintenance,
                    slice: None,
                    span: span(*declared),
                });
                (device, self.in_service(member), states.collect())
            })
            .collect();
        let facts: Vec<DeviceFacts<'_>> = devices
            .iter()
            .map(|(device, in_service, states)| DeviceFacts { device, memory_mib: None, in_service, states })
            .collect();
        let rules = MappingRules::default();
        let mut divider = Divider::new(Catalogue::embedded(), &rules);
        let divided = divider.divide_pool(&facts, &hour, hour.devices.first()).unwrap();
        let shown = divider.pool_divisions(&facts, &hour, hour.devices.first(), |_| true);
        for (member, divisions) in divided.iter().zip(shown) {
            let billed = member.parts.iter().filter(|part| part.state != PartState::Rounding).cloned();
            assert_eq!(as_parts(&divisions), billed.collect::<Vec<_>>(), "what is shown is what is billed");
        }
        divided
    }

    /// What each holder has, in millionths of a device-minute times 60: minute by minute, from DESIGN §3 alone.
    fn owed(&self) -> BTreeMap<String, i64> {
        let mut owed: BTreeMap<String, i64> = BTreeMap::new();
        for minute in 0..60 {
            let is_in = |(from, to): &Minutes| (*from..*to).contains(&minute);
            let there = self.members.iter().filter(|(service, _)| service.iter().any(is_in)).count();
            let holders = || self.held.iter().enumerate().filter(|(_, (_, held))| is_in(held));
            let wanted: u32 = holders().map(|(_, (count, _))| *count).sum();
            let (wanted, there) = (i64::from(wanted), i64::try_from(there).unwrap());
            for (number, (count, _)) in holders() {
                let count = i64::from(*count) * 1_000_000;
                let has = if wanted > there { count * there / wanted } else { count };
                *owed.entry(format!("t{number}")).or_default() += has;
            }
        }
        owed.into_iter().map(|(tenant, all)| (tenant, all / 60)).collect()
    }
}

#[test]
fn a_pools_device_hours_are_divided_exactly_and_holders_have_what_they_are_owed() {
    holds(400, pools(), |pool| {
        let divided = pool.divided(false);
        let mut had: BTreeMap<String, i64> = BTreeMap::new();
        for (member, hour) in divided.iter().enumerate() {
            let nanos: i64 = pool.in_service(member).iter().map(|span| span.nanos()).sum();
            let sum: i64 = hour.parts.iter().map(|part| part.quantity.micro()).sum();
            prop_assert_eq!((sum, hour.in_service.micro()), (nanos / 3_600_000, nanos / 3_600_000));
            for part in &hour.parts {
                if let Some(tenant) = part.owner.as_ref().and_then(|owner| owner.tenant.as_ref()) {
                    *had.entry(tenant.to_string()).or_default() += part.quantity.micro();
                    prop_assert_eq!(part.state, PartState::Used);
                }
            }
        }
        // Floored once a member, and the account here once a minute and once more.
        let slack = i64::try_from(divided.len()).unwrap() + 2;
        for (tenant, owed) in pool.owed() {
            let had = had.get(&tenant).copied().unwrap_or_default();
            prop_assert!(
                (owed - slack..=owed + 2).contains(&had),
                "{} is owed {} and has {}",
                tenant,
                owed,
                had
            );
        }
        prop_assert_eq!(&pool.divided(true), &divided);
        Ok(())
    });
}

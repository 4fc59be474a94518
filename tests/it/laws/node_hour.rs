//! A node-hour's body reads back as it was written, and a damaged one is an error.

use fatia::domain::allocation::{DeviceFacts, Divider};
use fatia::domain::catalogue::Catalogue;
use fatia::domain::cost::NodeHour;
use fatia::domain::device::{Device, SharingMode};
use fatia::domain::mapping::MappingRules;
use fatia::domain::period::{BillingZone, Span};
use fatia::domain::policy::Policy;
use fatia::domain::segment::Claims;
use fatia::domain::units::Instant;
use fatia::domain::usage::{Batch, Row, Slice, SliceSize};
use fatia::store::node_hour::{decode, encode};
use proptest::prelude::*;

use super::holds;
use super::nests::nests;
use super::wire::{Message, damage, damages, messages};
use super::world::{HOUR, device_name, evidence, source, worlds};

fn reads_back(hour: &NodeHour) -> Result<(), TestCaseError> {
    let body = encode(hour).unwrap();
    prop_assert_eq!(&decode(&body).unwrap(), hour);
    prop_assert_eq!(encode(&decode(&body).unwrap()).unwrap(), body);
    Ok(())
}

#[test]
fn a_node_hour_reads_back_as_it_was_written() {
    holds(50, worlds(), |world| world.account().iter().try_for_each(|each| reads_back(&each.hour)));
}

#[test]
fn a_node_hour_of_nested_slices_reads_back_as_it_was_written() {
    holds(150, nests(), |world| world.account().iter().try_for_each(|each| reads_back(&each.hour)));
}

/// The hour of a message's first row or coverage, as one device whose names are any text sees it.
fn first_hour(message: &Message) -> Option<NodeHour> {
    let Message { source, batch, .. } = message;
    let spans = batch.rows.iter().map(|row| row.span).chain(batch.coverage.iter().map(|cover| cover.span));
    let start = spans.filter(|span| !span.is_empty()).map(Span::start).next()?;
    let hour = BillingZone::UTC.hour_of(start);
    let mut claims = Claims::new();
    claims.add(source, 1, batch);
    let segments = claims.fold(&[hour]).remove(0);
    let devices = segments
        .devices
        .iter()
        .map(|said| {
            let device = Device { uuid: said.device.clone(), model: said.device.clone() };
            let facts = DeviceFacts { device: &device, memory_mib: None, in_service: &[hour], states: &[] };
            let rules = MappingRules::default();
            let mut divider = Divider::new(Catalogue::embedded(), &rules);
            divider.divide(&facts, &segments, Some(said), &Policy::default()).unwrap()
        })
        .collect();
    Some(NodeHour { segments, devices })
}

#[test]
fn a_node_hour_of_any_names_reads_back() {
    holds(200, messages(), |message| first_hour(&message).iter().try_for_each(reads_back));
}

#[test]
fn a_damaged_body_is_an_error_or_another_node_hour_and_never_a_panic() {
    holds(400, (messages(), damages()), |(message, damages)| {
        if let Some(hour) = first_hour(&message) {
            let mut body = encode(&hour).unwrap();
            damage(&mut body, &damages);
            let _ = decode(&body);
        }
        Ok(())
    });
}

// Once a fault of src/store/node_hour.rs: `decode` takes at most 2,000 times the body's bytes and at most 64 MiB, and
// `encode` writes what is more. Equal holders compress better than that; and one batch of 5,000 nested holdings
// of one device, which acceptance takes, becomes 150 MB of JSON, because each segment lists all its holders.
#[test]
fn what_is_written_can_be_read_however_well_it_compresses() {
    let at = Instant::from_micros;
    let hour = Span::clamped(at(0), at(HOUR));
    let mut claims = Claims::new();
    for number in 0..32 {
        let rows = (0..5_000).map(|row| Row {
            slice: 0,
            evidence: 0,
            span: hour,
            uncut: Span::clamped(at(0), at(HOUR + 5_000 * number + row)),
        });
        let size = SliceSize::Declared(1);
        let slice = Slice::plain(device_name(0), SharingMode::TimeSlicing, size);
        let (slices, evidence) = (vec![slice], vec![evidence(0)]);
        claims.add(&source(1), 0, &Batch { slices, evidence, rows: rows.collect(), ..Batch::default() });
    }
    let segments = claims.fold(&[hour]).remove(0);
    let hour = NodeHour { segments, devices: vec![] };
    if let Ok(body) = encode(&hour) {
        assert_eq!(decode(&body).map_err(|error| format!("{error:?}")).as_ref(), Ok(&hour));
    }
}

//! What a device is shown divided into comes to what its hours are billed by.

use std::collections::BTreeMap;

use fatia::domain::allocation::{Divider, Part, PartState};
use fatia::domain::catalogue::Catalogue;
use fatia::domain::division::Division;
use fatia::domain::mapping::MappingRules;
use fatia::domain::period::Span;
use fatia::domain::share::{Share, Weight};
use proptest::prelude::*;

use super::holds;
use super::world::worlds;

/// The divisions of an hour as parts, rounding left out: each floored once. Energy is no matter of theirs.
pub(super) fn as_parts(divisions: &[Division]) -> Vec<Part> {
    let mut weights: BTreeMap<Part, Weight> = BTreeMap::new();
    for Division { span, pieces, .. } in divisions {
        for piece in pieces {
            let part = Part {
                state: piece.state,
                slice: piece.slice,
                evidence: piece.evidence,
                owner: piece.owner.clone(),
                mode: piece.mode,
                sku: piece.sku.clone(),
                estimated: piece.estimated,
                quantity: Default::default(),
                metered: Default::default(),
                millijoules: 0,
            };
            weights.entry(part).or_default().add(span.nanos(), &piece.share);
        }
    }
    let floored =
        weights.into_iter().map(|(part, weight)| Part { quantity: weight.floor().unwrap(), ..part });
    let mut parts: Vec<Part> = floored.filter(|part| part.quantity != Default::default()).collect();
    parts.sort_unstable();
    parts
}

#[test]
fn divisions_tile_the_time_in_service_and_come_to_the_parts() {
    holds(150, worlds(), |world| {
        let rules = MappingRules::new(world.rules.clone());
        let mut divider = Divider::new(Catalogue::embedded(), &rules);
        for accounted in world.account() {
            let segments = &accounted.hour.segments;
            let here = world.in_service_during(accounted.node, segments.hour);
            for ((device, in_service), divided) in here.iter().zip(&accounted.hour.devices) {
                let said = segments.devices.iter().find(|said| said.device == device.device.uuid);
                let facts = device.facts(in_service);
                let divisions = divider.divisions(&facts, segments, said, &world.policy);
                let mut tiled: Vec<Span> = Vec::new();
                for each in &divisions {
                    prop_assert_eq!(Share::sum(each.pieces.iter().map(|piece| &piece.share)), Share::WHOLE);
                    match tiled.last_mut() {
                        Some(last) if last.end() == each.span.start() => {
                            *last = Span::new(last.start(), each.span.end()).unwrap();
                        }
                        _ => tiled.push(each.span),
                    }
                }
                // Intervals that touch are one time in service.
                let mut served: Vec<Span> = Vec::new();
                for each in in_service {
                    match served.last_mut() {
                        Some(last) if last.end() == each.start() => {
                            *last = Span::new(last.start(), each.end()).unwrap();
                        }
                        _ => served.push(*each),
                    }
                }
                prop_assert_eq!(tiled, served);
                let billed = divided.parts.iter().filter(|part| part.state != PartState::Rounding);
                let mut billed: Vec<Part> = billed
                    .map(|part| Part { metered: Default::default(), millijoules: 0, ..part.clone() })
                    .filter(|part| part.quantity != Default::default())
                    .collect();
                billed.sort_unstable();
                prop_assert_eq!(
                    as_parts(&divisions),
                    billed,
                    "of {} in {}",
                    device.device.uuid,
                    segments.hour
                );
            }
        }
        Ok(())
    });
}

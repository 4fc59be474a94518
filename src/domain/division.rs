//! What a device was divided into, span by span: for people who look at a GPU, as the parts of its hours are for bills.
//!
//! Does not own: how shares come about ([`super::tree`], [`super::pool`]), nor which state applies
//! ([`super::allocation`]): both are the ones of the parts.
//!
//! Always true here: each instant of in-service time is in one division, and the shares of a division's pieces sum to
//! the whole. What pieces come to over an hour, floored once, are the hour's parts.

use super::allocation::{DeviceFacts, Divider, PartState, Told, nobody_reported, pieces, tiles, told};
use super::device::SharingMode;
use super::ids::Name;
use super::mapping::Owner;
use super::period::Span;
use super::policy::Policy;
use super::pool;
use super::segment::{DeviceSegments, HourSegments, Segment};
use super::share::Share;
use super::tree::{Doubt, Ground, Shares};

/// How many slices may lie around each other; what claims more is looked up no further.
const DEPTH_MAX: usize = 16;

/// A span in which nothing about a device changed, and what it was divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Division {
    /// The span, inside one billing hour.
    pub span: Span,
    /// The pieces; their shares sum to the whole.
    pub pieces: Vec<Piece>,
    /// What someone should know of it.
    pub doubts: Vec<Doubt>,
}

/// A piece of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What it was.
    pub state: PartState,
    /// Its share of the device, by the policy of the hour.
    pub share: Share,
    /// How the device was shared there; none where that is open.
    pub mode: Option<SharingMode>,
    /// What is sold: the model, and below it the kind of slice.
    pub sku: Name,
    /// Index of the slice in the hour's tables; none where no slice exists.
    pub slice: Option<usize>,
    /// The first memory slot of the GPU instance that it is or lies in; none where that is not known.
    pub start: Option<u16>,
    /// Index of the holder's evidence in the hour's tables; none where nobody held.
    pub evidence: Option<usize>,
    /// Who pays; none where nobody held.
    pub owner: Option<Owner>,
    /// SM activity as a share of the device, where it was measured.
    pub activity: Option<Share>,
    /// Whether the share is the declared one because the measured one is missing.
    pub estimated: bool,
}

impl Divider<'_> {
    /// The divisions of one device in one billing hour, in order of time. Arguments as for [`Divider::divide`].
    pub fn divisions(
        &mut self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
        policy: &Policy,
    ) -> Vec<Division> {
        let device = facts.device;
        let all = segments.map(|each| each.segments.as_slice()).unwrap_or_default();
        let ground = Ground { device: &device.uuid, model: &device.model, memory_mib: facts.memory_mib };
        let mut divisions = Vec::new();
        for service in facts.in_service {
            for (span, segment) in tiles(*service, all) {
                let shares = match segment {
                    Some(segment) => self.forest.shares(ground, policy, hour, segment),
                    None => nobody_reported(&device.model),
                };
                self.cut(facts, hour, (span, segment, &shares), &mut divisions);
            }
        }
        divisions
    }

    /// The divisions of a pool's members in one billing hour, in their order. Arguments as for
    /// [`Divider::divide_pool`].
    #[must_use]
    pub fn pool_divisions(
        &self,
        members: &[DeviceFacts<'_>],
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
    ) -> Vec<Vec<Division>> {
        let dealt = pool::deal(members, hour, segments);
        let of_member = |(facts, dealt): (&DeviceFacts<'_>, Vec<pool::Dealt<'_>>)| {
            let mut divisions = Vec::new();
            for (span, segment, shares) in &dealt {
                self.cut(facts, hour, (*span, *segment, shares), &mut divisions);
            }
            divisions
        };
        members.iter().zip(dealt).map(of_member).collect()
    }

    /// Cuts a span where a state or a rule begins or ends, and puts what is alike together again.
    fn cut(
        &self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        (span, segment, shares): (Span, Option<&Segment>, &Shares),
        divisions: &mut Vec<Division>,
    ) {
        for (span, at) in pieces(span, facts.states, self.rules) {
            let seen = shares.leaves.iter().filter(|leaf| !leaf.share.is_none());
            let seen = seen.map(|leaf| {
                let Told { state, slice, evidence, mode, sku } =
                    told(leaf, segment, &facts.device.model, facts.states, at);
                let holder = evidence.and_then(|seen| hour.evidence.get(seen));
                Piece {
                    state,
                    share: leaf.share,
                    mode,
                    sku: sku.clone(),
                    slice,
                    start: slice.and_then(|slice| start_of(hour, &facts.device.uuid, slice)),
                    evidence,
                    owner: holder.map(|holder| self.rules.owner(holder, at)),
                    activity: leaf.activity,
                    estimated: leaf.estimated,
                }
            });
            let next = Division { span, pieces: seen.collect(), doubts: shares.doubts.clone() };
            match divisions.last_mut() {
                Some(last)
                    if last.span.end() == next.span.start()
                        && last.pieces == next.pieces
                        && last.doubts == next.doubts =>
                {
                    last.span = Span::clamped(last.span.start(), next.span.end());
                }
                Some(_) | None => divisions.push(next),
            }
        }
    }
}

/// The first memory slot of a slice, or of the nearest one around it that has one.
fn start_of(hour: &HourSegments, device: &Name, slice: usize) -> Option<u16> {
    let mut slice = hour.slices.get(slice)?;
    for _ in 0..DEPTH_MAX {
        if slice.start.is_some() {
            return slice.start;
        }
        let parent = slice.parent.as_ref()?;
        slice = hour.slices.iter().find(|each| each.device == *device && each.id.as_ref() == Some(parent))?;
    }
    None
}

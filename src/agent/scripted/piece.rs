//! A span in which nothing changes: what is there, and at what rates it is used.

use std::sync::Arc;

use super::fleet::{Device, Metering, Node};
use crate::agent::source::{Amount, Holder, Meter, Presence, Standing};
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::domain::usage::{Evidence, Slice};

/// All of a device's activity, per mille.
const ALL: i64 = 1_000;

/// Nothing, measured.
pub(super) const NOTHING: Amount = Amount { active_nanos: Some(0), memory_byte_seconds: Some(0) };

/// How fast a meter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rate {
    /// Per mille of SM activity: nanoseconds in each microsecond.
    activity: i64,
    memory_bytes: i64,
}

impl Rate {
    /// What it measures over a span.
    pub(super) fn over(self, span: Span) -> Amount {
        let micros = span.end().micros_since(span.start());
        Amount {
            active_nanos: Some(self.activity.saturating_mul(micros)),
            memory_byte_seconds: Some(by_second(self.memory_bytes, span)),
        }
    }
}

/// A rate a second over a span. Rounded down at instants and not at lengths: pieces add up, and since rates change at
/// whole seconds only, where nothing is rounded, they do so over changes too.
pub(super) fn by_second(rate: i64, span: Span) -> i64 {
    let until = |instant: Instant| {
        let all = i128::from(rate).saturating_mul(instant.micros().into());
        all.div_euclid(MICROS_PER_SECOND.into())
    };
    i64::try_from(until(span.end()).saturating_sub(until(span.start()))).unwrap_or(i64::MAX)
}

/// One device in a piece.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) standing: Arc<Standing>,
    /// For each meter.
    pub(super) rates: Vec<Rate>,
    pub(super) milliwatts: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: Span,
    pub(super) devices: Vec<Played>,
}

impl Piece {
    /// What is there at an instant, and for how long. Handles of `before` are used again where nothing changed.
    pub(super) fn at(node: &Node, at: Instant, before: Option<&Self>) -> Self {
        let end = node.next_edge(at).unwrap_or(Instant::MAX);
        let mut claims: Vec<Vec<Claim>> = node.devices.iter().map(|_| Vec::new()).collect();
        for habit in &node.habits {
            let Some(stay) = habit.stay(at) else { continue };
            let rate = Rate { activity: habit.activity(at), memory_bytes: habit.memory_bytes };
            for target in &habit.on {
                let Some(device) = node.devices.get(target.device) else { continue };
                let Some(slice) = device.slice(target.part, habit.own_size.as_ref(), at) else { continue };
                if let Some(claims) = claims.get_mut(target.device) {
                    claims.push(Claim { slice, evidence: habit.evidence(stay, *target), rate });
                }
            }
        }
        let devices = node.devices.iter().zip(claims).enumerate();
        let devices = devices.map(|(number, (device, claims))| {
            let mut played = device.play(at, claims);
            let kept = before.and_then(|piece| piece.devices.get(number)).map(|each| &each.standing);
            if let Some(kept) = kept.filter(|kept| **kept == played.standing) {
                played.standing = Arc::clone(kept);
            }
            played
        });
        Self { span: Span::clamped(at, end), devices: devices.collect() }
    }
}

/// Who is on a slice, and how busy.
struct Claim {
    slice: Slice,
    evidence: Evidence,
    rate: Rate,
}

impl Device {
    /// The slice that a target is at an instant; none: the layout does not have it.
    fn slice(
        &self,
        part: Option<(u16, u16)>,
        own_size: Option<&crate::domain::usage::SliceSize>,
        at: Instant,
    ) -> Option<Slice> {
        match part {
            Some(part) => {
                let epoch = self.epoch(at)?;
                epoch.slices.get(*epoch.targets.get(&part)?).cloned()
            }
            None => {
                let size = own_size.unwrap_or(&self.own_size).clone();
                Some(Slice::plain(self.info.uuid.clone(), self.mode, size))
            }
        }
    }

    fn play(&self, at: Instant, claims: Vec<Claim>) -> Played {
        if let Some(reason) = self.lost_at(at) {
            let standing = Arc::new(Standing::lost(self.info.uuid.clone(), reason.clone()));
            return Played { standing, rates: Vec::new(), milliwatts: 0 };
        }
        let milliwatts = self.milliwatts(at, &claims);
        let is_hidden = self.hidden.iter().any(|span| span.contains(at));
        let epoch = self.epoch(at);
        let mut slices: Vec<Slice> = epoch.map(|epoch| epoch.slices.clone()).unwrap_or_default();
        let mut holders: Vec<Holder> = Vec::new();
        let mut of_slices: Vec<Rate> = vec![Rate::default(); slices.len()];
        let mut of_holders: Vec<Rate> = Vec::new();
        for claim in claims {
            let known = slices.iter().position(|slice| *slice == claim.slice);
            // Who holds what has no id is all that would show that it is there.
            if known.is_none() && is_hidden {
                continue;
            }
            let slice = known.unwrap_or_else(|| {
                slices.push(claim.slice);
                of_slices.push(Rate::default());
                slices.len().saturating_sub(1)
            });
            if let Some(sum) = of_slices.get_mut(slice) {
                *sum = sum.plus(claim.rate);
            }
            let holder = Holder { slice, evidence: claim.evidence };
            match holders.iter().position(|each| *each == holder).and_then(|at| of_holders.get_mut(at)) {
                Some(sum) => *sum = sum.plus(claim.rate),
                None => {
                    holders.push(holder);
                    of_holders.push(claim.rate);
                }
            }
        }
        if is_hidden {
            holders.clear();
            of_holders.clear();
        }
        let of_slice = |at: usize| Meter { slice: at, holder: None };
        let of_holder = |(at, holder): (usize, &Holder)| Meter { slice: holder.slice, holder: Some(at) };
        let (meters, rates) = match self.metering {
            Metering::Slices => {
                // What others lie inside is measured by them.
                let is_parent =
                    |slice: &Slice| slice.id.is_some() && slices.iter().any(|each| each.parent == slice.id);
                let all = slices.iter().zip(of_slices).enumerate();
                all.filter(|(_, (slice, _))| !is_parent(slice))
                    .map(|(at, (_, rate))| (of_slice(at), rate))
                    .unzip()
            }
            Metering::Holders => (holders.iter().enumerate().map(of_holder).collect(), of_holders),
            Metering::Nothing => (Vec::new(), Vec::new()),
        };
        let standing = Standing {
            device: self.info.uuid.clone(),
            presence: Presence::Present,
            scheduler: epoch.and_then(|epoch| epoch.scheduler),
            sees_holders: !is_hidden,
            slices,
            holders,
            meters,
        };
        Played { standing: Arc::new(standing), rates, milliwatts }
    }

    /// The device's power: idle, and of the rest as much as it is busy.
    fn milliwatts(&self, at: Instant, claims: &[Claim]) -> i64 {
        let epoch = self.epoch(at);
        let whole = epoch.map_or(1, |epoch| epoch.whole).max(1);
        let weight = |slice: &Slice| {
            let of = epoch.and_then(|epoch| {
                let at = epoch.slices.iter().position(|each| each == slice)?;
                epoch.weights.get(at).copied()
            });
            of.unwrap_or(whole)
        };
        let busy = |claim: &Claim| claim.rate.activity.saturating_mul(weight(&claim.slice));
        let all = ALL.saturating_mul(whole);
        let busy = claims.iter().map(busy).fold(0_i64, i64::saturating_add).min(all);
        let more = self.busy_milliwatts.saturating_sub(self.idle_milliwatts);
        self.idle_milliwatts.saturating_add(more.saturating_mul(busy).div_euclid(all))
    }
}

impl Rate {
    /// Both together: no SM is active more than all of the time.
    fn plus(self, other: Self) -> Self {
        Self {
            activity: self.activity.saturating_add(other.activity).min(ALL),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

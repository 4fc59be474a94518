//! The division of a device-hour into parts.
//!
//! Parts are a pure function of segments, in-service intervals, declared states and mapping rules. No price
//! is in them.
//!
//! Always true here: the parts of a device-hour sum to ⌊in-service ns ÷ 3.6·10⁶⌋ exactly. Each leaf's weight
//! is summed exactly over the hour's segments and floored once, so flooring never moves a neighbour; what
//! flooring leaves is the part `rounding`. Source: DESIGN §2 and §3.

use super::device::{DeclaredKind, DeclaredState, Device, SharingMode, UnknownWord};
use super::ids::Name;
use super::mapping::{MappingRules, Owner};
use super::period::Span;
use super::segment::{DeviceSegments, Holder, HourSegments, Segment};
use super::share::{Normalised, Share, Weight, normalise};
use super::units::{Instant, OutOfRange, Quantity};
use super::usage::SliceSize;

/// What a part of a device-hour was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartState {
    /// Held by a holder.
    Used,
    /// Held and not used; only under a usage basis.
    HeldUnused,
    /// Not held, and could have been sold.
    Idle,
    /// Not held, and the layout leaves no way to sell it.
    Stranded,
    /// Broken; the affected holder is kept.
    Unhealthy,
    /// Being worked on.
    Maintenance,
    /// Nobody reported, or a profile that no catalogue knows.
    Unknown,
    /// The few micro-hours that flooring left.
    Rounding,
}

impl PartState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Used,
        Self::HeldUnused,
        Self::Idle,
        Self::Stranded,
        Self::Unhealthy,
        Self::Maintenance,
        Self::Unknown,
        Self::Rounding,
    ];

    /// The state's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::HeldUnused => "held_unused",
            Self::Idle => "idle",
            Self::Stranded => "stranded",
            Self::Unhealthy => "unhealthy",
            Self::Maintenance => "maintenance",
            Self::Unknown => "unknown",
            Self::Rounding => "rounding",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the states.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|state| state.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// A part of a device-hour.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// What it was.
    pub state: PartState,
    /// Index of the slice in the hour's tables; none where no slice exists.
    pub slice: Option<usize>,
    /// Index of the holder's evidence in the hour's tables; none where nobody held.
    pub evidence: Option<usize>,
    /// Who pays; none where nobody held (the platform's).
    pub owner: Option<Owner>,
    /// How the device was shared for the slice; none where no slice exists.
    pub mode: Option<SharingMode>,
    /// What is sold: the model, and below it the kind of slice.
    pub sku: Name,
    /// Whether the share was measured as declared because it could not be measured.
    pub estimated: bool,
    /// How much of the device-hour.
    pub quantity: Quantity,
}

/// One device in one billing hour, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHour {
    /// The device's UUID.
    pub device: Name,
    /// Its model, by which it is priced.
    pub model: Name,
    /// Until when its in-service time was counted.
    pub counted_to: Instant,
    /// ⌊in-service ns ÷ 3.6·10⁶⌋.
    pub in_service: Quantity,
    /// The parts, in order; they sum to `in_service`.
    pub parts: Vec<Part>,
    /// Profiles that no catalogue knows, with the time for which they made the device `unknown`.
    pub unknown_profiles: Vec<(Name, Span)>,
}

/// A device-hour could not be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// A value left its range.
    #[error("device {device} cannot be divided: {source}")]
    OutOfRange {
        /// The device.
        device: Name,
        /// Which value.
        #[source]
        source: OutOfRange,
    },
    /// The parts came out larger than the whole: a fault of this program, never of its input.
    #[error("the parts of device {device} exceed its in-service time by {excess} GPU-hours")]
    Overfull {
        /// The device.
        device: Name,
        /// By how much.
        excess: Quantity,
    },
}

/// What is known of one device in one billing hour beside its segments.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFacts<'a> {
    /// The device.
    pub device: &'a Device,
    /// Its in-service spans inside the hour: sorted and disjoint.
    pub in_service: &'a [Span],
    /// States that were declared for it.
    pub states: &'a [DeclaredState],
}

/// A leaf under construction: what identifies it, and its exact weight.
struct Leaf {
    state: PartState,
    holder: Option<Holder>,
    owner: Option<Owner>,
    mode: Option<SharingMode>,
    weight: Weight,
}

/// Divides one device-hour into parts.
///
/// `segments` are those of this device; none: nobody reported, and all in-service time is `unknown` unless a
/// declared state says better.
///
/// # Errors
/// [`AllocationError`] when exact values do not fit.
pub fn divide(
    facts: &DeviceFacts<'_>,
    hour: &HourSegments,
    segments: Option<&DeviceSegments>,
    rules: &MappingRules,
) -> Result<DeviceHour, AllocationError> {
    let device = facts.device;
    let out_of_range = |source| AllocationError::OutOfRange { device: device.uuid.clone(), source };
    let segments = segments.map(|each| each.segments.as_slice()).unwrap_or_default();
    let mut leaves = Leaves { leaves: Vec::new(), hour, rules };
    let mut unknown_profiles = Vec::new();
    let mut nanos = 0_i64;
    for service in facts.in_service {
        nanos = nanos.saturating_add(service.nanos());
        for (span, segment) in tiles(*service, segments) {
            let shares = match segment {
                Some(segment) => Some(Shares::of(segment, hour).map_err(out_of_range)?),
                None => None,
            };
            if let Some(shares) = &shares {
                unknown_profiles
                    .extend(shares.unknown_profiles.iter().map(|profile| (profile.clone(), span)));
            }
            for (piece, states) in pieces(span, facts.states, rules) {
                leaves.add(piece, segment, shares.as_ref(), states).map_err(out_of_range)?;
            }
        }
    }
    let in_service = Quantity::of_device_nanos(nanos);
    let parts = leaves.into_parts(device, in_service)?;
    unknown_profiles.sort_unstable();
    Ok(DeviceHour {
        device: device.uuid.clone(),
        model: device.model.clone(),
        counted_to: facts.in_service.last().map_or(hour.hour.start(), |span| span.end()),
        in_service,
        parts,
        unknown_profiles,
    })
}

/// Tiles an in-service span with segments, and with nothing where nobody reported.
fn tiles<'a>(service: Span, segments: &'a [Segment]) -> Vec<(Span, Option<&'a Segment>)> {
    let mut tiles: Vec<(Span, Option<&'a Segment>)> = Vec::new();
    let mut at = service.start();
    for segment in segments.iter().filter(|segment| segment.span.meets(service)) {
        let span = segment.span.clip(service);
        if at < span.start() {
            tiles.push((Span::clamped(at, span.start()), None));
        }
        tiles.push((span, Some(segment)));
        at = span.end();
    }
    if at < service.end() {
        tiles.push((Span::clamped(at, service.end()), None));
    }
    tiles
}

/// Which declared states hold at an instant.
#[derive(Debug, Clone, Copy, Default)]
struct Declared {
    maintenance: bool,
    unhealthy: bool,
}

/// Cuts a span where a declared state or a mapping rule begins or ends.
fn pieces(span: Span, states: &[DeclaredState], rules: &MappingRules) -> Vec<(Span, Declared)> {
    let mut edges = rules.edges(span);
    for state in states.iter().filter(|state| state.span.meets(span)) {
        edges.extend([state.span.start(), state.span.end()]);
    }
    edges.retain(|edge| span.start() < *edge && *edge < span.end());
    edges.extend([span.start(), span.end()]);
    edges.sort_unstable();
    edges.dedup();
    let declared = |at: Instant| {
        let holds =
            |kind: DeclaredKind| states.iter().any(|state| state.kind == kind && state.span.contains(at));
        Declared { maintenance: holds(DeclaredKind::Maintenance), unhealthy: holds(DeclaredKind::Unhealthy) }
    };
    edges
        .windows(2)
        .filter_map(|pair| match pair {
            [start, end] => Some((Span::clamped(*start, *end), declared(*start))),
            _ => None,
        })
        .collect()
}

/// The shares of a segment's holders, and what their slices leave of the device.
struct Shares {
    /// One for each holder whose share is known, in the segment's order.
    held: Vec<(Holder, Share)>,
    rest: Share,
    /// The mode of the first slice of an unknown profile: the rest is then `unknown`.
    unknown_mode: Option<SharingMode>,
    unknown_profiles: Vec<Name>,
}

impl Shares {
    fn of(segment: &Segment, hour: &HourSegments) -> Result<Self, OutOfRange> {
        let (mut holders, mut shares) = (Vec::new(), Vec::new());
        let (mut unknown_mode, mut unknown_profiles) = (None, Vec::new());
        for holder in &segment.holders {
            let Some(slice) = hour.slices.get(holder.slice) else {
                continue;
            };
            let share = match &slice.size {
                SliceSize::Whole => Share::WHOLE,
                SliceSize::Declared(ppm) => Share::from_ppm(*ppm),
                SliceSize::Profile(profile) => {
                    unknown_mode = unknown_mode.or(Some(slice.mode));
                    unknown_profiles.push(profile.clone());
                    continue;
                }
            };
            holders.push(*holder);
            shares.push(share);
        }
        let Normalised { shares, rest } = normalise(&shares)?;
        Ok(Self { held: holders.into_iter().zip(shares).collect(), rest, unknown_mode, unknown_profiles })
    }
}

/// The leaves of one device-hour.
struct Leaves<'a> {
    leaves: Vec<Leaf>,
    hour: &'a HourSegments,
    rules: &'a MappingRules,
}

impl Leaves<'_> {
    /// Adds one piece of constant holders and states. The first state that applies decides (DESIGN §3).
    fn add(
        &mut self,
        piece: Span,
        segment: Option<&Segment>,
        shares: Option<&Shares>,
        declared: Declared,
    ) -> Result<(), OutOfRange> {
        let held_state = if declared.unhealthy { PartState::Unhealthy } else { PartState::Used };
        for (holder, share) in shares.map(|shares| shares.held.as_slice()).unwrap_or_default() {
            let owner =
                self.hour.evidence.get(holder.evidence).map(|seen| self.rules.owner(seen, piece.start()));
            let mode = self.hour.slices.get(holder.slice).map(|slice| slice.mode);
            self.leaf(held_state, Some(*holder), owner, mode).weight.add(piece.nanos(), *share)?;
        }
        let unknown_mode = shares.and_then(|shares| shares.unknown_mode);
        let nobody_vouches = segment.is_none_or(|segment| !segment.covered);
        let rest_state = if declared.maintenance {
            PartState::Maintenance
        } else if declared.unhealthy {
            PartState::Unhealthy
        } else if nobody_vouches || unknown_mode.is_some() {
            PartState::Unknown
        } else {
            PartState::Idle
        };
        let rest = shares.map_or(Share::WHOLE, |shares| shares.rest);
        if rest.numerator() > 0 {
            self.leaf(rest_state, None, None, unknown_mode).weight.add(piece.nanos(), rest)?;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        state: PartState,
        holder: Option<Holder>,
        owner: Option<Owner>,
        mode: Option<SharingMode>,
    ) -> &mut Leaf {
        let same = |leaf: &Leaf| {
            leaf.state == state && leaf.holder == holder && leaf.mode == mode && leaf.owner == owner
        };
        let at = match self.leaves.iter().position(same) {
            Some(at) => at,
            None => {
                self.leaves.push(Leaf { state, holder, owner, mode, weight: Weight::default() });
                self.leaves.len().saturating_sub(1)
            }
        };
        #[expect(clippy::indexing_slicing, reason = "the index was found or pushed just above")]
        &mut self.leaves[at]
    }

    fn into_parts(self, device: &Device, in_service: Quantity) -> Result<Vec<Part>, AllocationError> {
        let out_of_range = |source| AllocationError::OutOfRange { device: device.uuid.clone(), source };
        let mut parts = Vec::with_capacity(self.leaves.len().saturating_add(1));
        let mut sum = Quantity::ZERO;
        for leaf in self.leaves {
            let quantity = leaf.weight.floor().map_err(out_of_range)?;
            sum = sum.plus(quantity).map_err(out_of_range)?;
            if quantity == Quantity::ZERO {
                continue;
            }
            parts.push(Part {
                state: leaf.state,
                slice: leaf.holder.map(|holder| holder.slice),
                evidence: leaf.holder.map(|holder| holder.evidence),
                owner: leaf.owner,
                mode: leaf.mode,
                sku: sku(
                    device,
                    leaf.holder.and_then(|holder| self.hour.slices.get(holder.slice)).map(|s| &s.size),
                ),
                estimated: false,
                quantity,
            });
        }
        let left = in_service.minus(sum).map_err(out_of_range)?;
        if left < Quantity::ZERO {
            let excess = sum.minus(in_service).map_err(out_of_range)?;
            return Err(AllocationError::Overfull { device: device.uuid.clone(), excess });
        }
        if left > Quantity::ZERO {
            parts.push(Part {
                state: PartState::Rounding,
                slice: None,
                evidence: None,
                owner: None,
                mode: None,
                sku: device.model.clone(),
                estimated: false,
                quantity: left,
            });
        }
        parts.sort_unstable();
        Ok(parts)
    }
}

/// What is sold: the model for the whole device and what nobody holds, the model's share for a declared share.
fn sku(device: &Device, size: Option<&SliceSize>) -> Name {
    let below = match size {
        None | Some(SliceSize::Whole) => return device.model.clone(),
        Some(SliceSize::Declared(_)) => "share",
        Some(SliceSize::Profile(profile)) => profile.as_str(),
    };
    Name::parse(&format!("{}:{below}", device.model)).unwrap_or_else(|_| device.model.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::segment::Claims;
    use crate::domain::usage::{Batch, Coverage, CoverageOf, EvidenceField, Row, Slice, Source, SourceRank};

    const MINUTE: i64 = 60_000_000;

    fn span(start: i64, end: i64) -> Span {
        Span::new(Instant::from_micros(start * MINUTE), Instant::from_micros(end * MINUTE)).unwrap()
    }

    struct Case {
        rows: Vec<(&'static str, SharingMode, SliceSize, Span)>,
        covered: Vec<Span>,
        in_service: Vec<Span>,
        states: Vec<DeclaredState>,
    }

    impl Case {
        fn new(rows: &[(&'static str, SharingMode, SliceSize, Span)]) -> Self {
            Self {
                rows: rows.to_vec(),
                covered: vec![span(0, 60)],
                in_service: vec![span(0, 60)],
                states: vec![],
            }
        }

        fn check(&self, want: &[&str]) {
            let uuid = Name::fixed("GPU-1");
            let batch = Batch {
                slices: self
                    .rows
                    .iter()
                    .map(|(_, mode, size, _)| Slice { device: uuid.clone(), mode: *mode, size: size.clone() })
                    .collect(),
                evidence: self
                    .rows
                    .iter()
                    .map(|(tenant, ..)| {
                        [
                            (EvidenceField::Workload, Name::fixed(tenant)),
                            (EvidenceField::Tenant, Name::fixed(tenant)),
                        ]
                        .into_iter()
                        .collect()
                    })
                    .collect(),
                rows: (0..self.rows.len())
                    .map(|at| Row { slice: at, evidence: at, span: self.rows[at].3, uncut: self.rows[at].3 })
                    .collect(),
                coverage: self
                    .covered
                    .iter()
                    .map(|span| Coverage { device: uuid.clone(), span: *span, of: CoverageOf::Holding })
                    .collect(),
            };
            let mut claims = Claims::new();
            claims.add(&Source { rank: SourceRank::Import, sender: Name::fixed("s") }, 1, &batch);
            let hour = claims.fold(&[span(0, 60)]).remove(0);
            let device = Device { uuid: uuid.clone(), model: Name::fixed("A10") };
            let facts = DeviceFacts { device: &device, in_service: &self.in_service, states: &self.states };
            let divided = divide(&facts, &hour, hour.devices.first(), &MappingRules::default()).unwrap();
            let sum = Quantity::sum(divided.parts.iter().map(|part| part.quantity)).unwrap();
            assert_eq!(sum, divided.in_service, "parts sum to the whole");
            let shown: Vec<String> = divided
                .parts
                .iter()
                .map(|part| {
                    let tenant = part.owner.as_ref().and_then(|owner| owner.tenant.clone());
                    let mode = part.mode.map_or("none", SharingMode::word);
                    let tenant = tenant.map_or("-".to_owned(), |name| name.to_string());
                    format!("{} {tenant} {mode} {} {}", part.state.word(), part.sku, part.quantity.micro())
                })
                .collect();
            assert_eq!(shown, want);
        }
    }

    use SharingMode::{Dedicated, Mig, TimeSlicing};
    use SliceSize::{Declared, Profile, Whole};

    #[test]
    fn a_whole_device_is_used_then_idle() {
        Case::new(&[("a", Dedicated, Whole, span(0, 45))])
            .check(&["used a dedicated A10 750000", "idle - none A10 250000"]);
    }

    #[test]
    fn declared_shares_leave_the_rest_idle() {
        Case::new(&[
            ("a", TimeSlicing, Declared(460_000), span(0, 60)),
            ("b", TimeSlicing, Declared(460_000), span(30, 60)),
        ])
        .check(&[
            "used a time_slicing A10:share 460000",
            "used b time_slicing A10:share 230000",
            "idle - none A10 310000",
        ]);
    }

    #[test]
    fn shares_above_one_are_normalised_per_instant_and_leave_rounding() {
        Case::new(&[
            ("a", Dedicated, Whole, span(0, 60)),
            ("b", Dedicated, Whole, span(0, 60)),
            ("c", Dedicated, Whole, span(0, 60)),
        ])
        .check(&[
            "used a dedicated A10 333333",
            "used b dedicated A10 333333",
            "used c dedicated A10 333333",
            "rounding - none A10 1",
        ]);
    }

    #[test]
    fn outside_coverage_the_rest_is_unknown() {
        let mut case = Case::new(&[("a", Dedicated, Whole, span(20, 30))]);
        case.covered = vec![span(0, 15)];
        case.check(&[
            "used a dedicated A10 166666",
            "idle - none A10 250000",
            "unknown - none A10 583333",
            "rounding - none A10 1",
        ]);
    }

    #[test]
    fn out_of_service_time_is_no_part_of_it() {
        let mut case = Case::new(&[("a", Dedicated, Whole, span(0, 60))]);
        case.in_service = vec![span(0, 15), span(30, 45)];
        case.check(&["used a dedicated A10 500000"]);
    }

    #[test]
    fn a_profile_that_no_catalogue_knows_is_unknown() {
        Case::new(&[("a", Mig, Profile(Name::fixed("1g.10gb")), span(0, 30))])
            .check(&["idle - none A10 500000", "unknown - mig A10 500000"]);
    }

    #[test]
    fn maintenance_takes_what_is_unheld_and_unhealthy_keeps_the_holder() {
        let mut case = Case::new(&[("a", TimeSlicing, Declared(250_000), span(0, 60))]);
        case.states = vec![
            DeclaredState { kind: DeclaredKind::Maintenance, span: span(0, 30) },
            DeclaredState { kind: DeclaredKind::Unhealthy, span: span(15, 45) },
        ];
        case.check(&[
            "used a time_slicing A10:share 125000",
            "idle - none A10 187500",
            "unhealthy - none A10 187500",
            "unhealthy a time_slicing A10:share 125000",
            "maintenance - none A10 375000",
        ]);
    }
}

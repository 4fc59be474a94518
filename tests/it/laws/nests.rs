//! Random fleets whose devices are shared in nested ways, reconfigured, measured and metered.
//!
//! A device has up to two *eras*, each with a way of sharing and slices with names of their own. Slices hang in each
//! other as far as that can be; now and then one does not. Everything happens within a few hours, so that many fleets
//! can be looked at.

use std::collections::BTreeMap;

use fatia::domain::catalogue::{Catalogue, MigBoard, VgpuType};
use fatia::domain::device::{DeclaredKind, DeclaredState, Device, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::Rule;
use fatia::domain::period::Span;
use fatia::domain::policy::{Basis, Policy};
use fatia::domain::usage::{Coverage, CoverageOf, EnergyRow, Slice, SliceSize, VgpuScheduler};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::packing::{Standing, room, starts, weightings};
use super::world::{
    Cover, EVIDENCE, Energy, Existing, FleetDevice, HOUR, Holding, MINUTE, Measured, NODES, Place, SECOND,
    World, device_name, evidence, name, source,
};

/// Models with GPU instances of seven and of four slices, one without, and one that nobody knows.
pub(super) const MODELS: [&str; 5] =
    ["H100-80GB", "A30-24GB", "RTX-PRO-6000-Blackwell-96GB", "L40S", "X9-32GB"];
/// Length of the stage.
const STAGE: i64 = 2 * HOUR;

fn at() -> impl Strategy<Value = i64> {
    prop_oneof![
        5 => (0..=STAGE / (15 * MINUTE)).prop_map(|quarter| quarter * 15 * MINUTE),
        2 => (0..=STAGE / MINUTE).prop_map(|minute| minute * MINUTE),
        1 => (0..=STAGE / SECOND).prop_map(|second| second * SECOND),
        1 => 0..=STAGE,
    ]
}

/// A span, or its era's whole.
fn some_time() -> impl Strategy<Value = Option<(i64, i64)>> {
    option::weighted(0.35, (at(), at()))
}

/// Numbers from which a slice is made.
#[derive(Debug, Clone)]
struct Pick {
    /// Which kind and size.
    what: usize,
    how: usize,
    /// In which earlier slice it hangs, if that can be.
    inside: usize,
    life: Option<(i64, i64)>,
    /// Who holds it, and when.
    holders: Vec<(usize, Option<(i64, i64)>)>,
    is_named: bool,
    is_stated: bool,
    is_off: bool,
    /// An amendment: a later end.
    amended: Option<i64>,
}

fn pick() -> impl Strategy<Value = Pick> {
    let holders = prop_oneof![
        2 => Just(Vec::new()),
        6 => vec((0..EVIDENCE, some_time()), 1),
        1 => vec((0..EVIDENCE, some_time()), 2..4),
    ];
    let flags = (prop::bool::weighted(0.75), prop::bool::weighted(0.85), prop::bool::weighted(0.1));
    let numbers = (
        0..1_000_usize,
        0..1_000_usize,
        0..5_usize,
        some_time(),
        holders,
        flags,
        option::weighted(0.1, at()),
    );
    numbers.prop_map(|(what, how, inside, life, holders, flags, amended)| {
        let (is_named, is_stated, is_off) = flags;
        Pick { what, how, inside, life, holders, is_named, is_stated, is_off, amended }
    })
}

/// A way of sharing for some time.
#[derive(Debug, Clone)]
struct Era {
    way: usize,
    how: usize,
    from: usize,
    picks: Vec<Pick>,
}

fn era() -> impl Strategy<Value = Era> {
    (0..13_usize, 0..1_000_usize, prop_oneof![3 => Just(1_usize), 1 => Just(0)], vec(pick(), 1..7))
        .prop_map(|(way, how, from, picks)| Era { way, how, from, picks })
}

/// Use: which slice, whether of a holder, when, activity and memory in thousandths.
type UsePlan = (usize, bool, (i64, i64), Option<i64>, Option<i64>, usize);

#[derive(Debug, Clone)]
struct Plan {
    model: usize,
    memory_mib: Option<u32>,
    service: (i64, i64),
    counted_to: Option<i64>,
    states: Vec<(usize, usize, (i64, i64))>,
    is_covered: bool,
    eras: Vec<Era>,
    change: i64,
    covers: Vec<(usize, (i64, i64), bool)>,
    uses: Vec<UsePlan>,
    energies: Vec<((i64, i64), i64, usize)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let thousandths = || option::weighted(0.85, prop_oneof![3 => 0..1_000_i64, 1 => 1_000..1_600_i64]);
    let use_source = || prop_oneof![3 => Just(1_usize), 1 => Just(4), 1 => Just(0)];
    let used = (
        0..8_usize,
        any::<bool>(),
        prop_oneof![3 => Just((0, STAGE)), 2 => (at(), at())],
        thousandths(),
        thousandths(),
        use_source(),
    );
    let device = (
        0..MODELS.len(),
        option::weighted(0.3, prop_oneof![Just(81_559_u32), Just(24_576), Just(40_000)]),
        prop_oneof![3 => Just((0, STAGE)), 1 => (at(), at())],
        option::weighted(0.15, at()),
    );
    let states = prop_oneof![3 => Just(Vec::new()), 2 => vec((0..3_usize, 0..7_usize, (at(), at())), 1..3)];
    let covers = vec(
        (0..5_usize, prop_oneof![2 => Just((0, STAGE)), 1 => (at(), at())], prop::bool::weighted(0.8)),
        0..3,
    );
    let energies = vec(((at(), at()), 0..3_000_000_i64, use_source()), 0..4);
    let device = (device, prop::bool::weighted(0.85));
    (device, states, vec(era(), 1..3), at(), covers, vec(used, 0..6), energies).prop_map(
        |(
            ((model, memory_mib, service, counted_to), is_covered),
            states,
            eras,
            change,
            covers,
            uses,
            energies,
        )| Plan {
            model,
            memory_mib,
            service,
            counted_to,
            states,
            is_covered,
            eras,
            change,
            covers,
            uses,
            energies,
        },
    )
}

/// What a slice can hold inside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Instance(usize),
    Other,
    Nothing,
}

/// Slices of an era as they grow.
struct Growing<'a> {
    device: Name,
    model: &'a str,
    board: Option<&'static MigBoard>,
    era: usize,
    how: usize,
    /// Whether its GPU instances are there to be filled.
    is_filled: bool,
    slices: Vec<(Slice, Room)>,
    standing: Vec<Standing>,
}

fn types(model: &str, gi_profile: Option<&Name>) -> Vec<&'static VgpuType> {
    let code = match model {
        "H100-80GB" => "H100XM",
        "A30-24GB" => "A30",
        "RTX-PRO-6000-Blackwell-96GB" => "DC",
        _ => "L40S",
    };
    let of_board = Catalogue::embedded().vgpu_types().filter(|each| each.board_code.as_str() == code);
    of_board.filter(|each| each.gi_profile.as_ref() == gi_profile).collect()
}

impl Growing<'_> {
    fn plain(&self, mode: SharingMode, size: SliceSize) -> Slice {
        Slice::plain(self.device.clone(), mode, size)
    }

    fn vgpu(&self, mode: SharingMode, vgpu: &VgpuType) -> Slice {
        let schedulers = [None, Some(VgpuScheduler::EqualShare), Some(VgpuScheduler::FixedShare)];
        Slice {
            scheduler: schedulers[self.how / 7 % 3],
            ..self.plain(mode, SliceSize::Profile(vgpu.name.clone()))
        }
    }

    /// A part without a profile.
    fn part(&self, pick: &Pick) -> Slice {
        match pick.what % 6 {
            0 | 1 => self.plain(SharingMode::TimeSlicing, SliceSize::OneOf([2, 3, 4, 7][self.how % 4])),
            2 => self.plain(SharingMode::TimeSlicing, SliceSize::Even),
            3 => self.plain(
                SharingMode::TimeSlicing,
                SliceSize::Declared([250_000, 333_333, 700_000][pick.how % 3]),
            ),
            _ => {
                let memory_mib = [None, Some(1_024), Some(9_000), Some(100_000)][pick.how % 4];
                let percent = [10, 25, 33, 100][pick.how / 4 % 4];
                self.plain(SharingMode::Mps, SliceSize::Threads { percent, memory_mib })
            }
        }
    }

    /// A GPU instance that can stand beside the others; one time in 16 one that perhaps cannot.
    fn instance(&mut self, key: &Name, board: &MigBoard, pick: &Pick) -> Option<(Slice, Room)> {
        // Small ones twice out of three times: the large ones leave little to look at.
        let is_small = |profile: &usize| board.profiles[*profile].length * 2 < board.memory_slots;
        let small: Vec<usize> = (0..board.profiles.len()).filter(is_small).collect();
        let large = |profile: &usize| (2..=4).contains(&board.profiles[*profile].compute_slices);
        let large: Vec<usize> = (0..board.profiles.len()).filter(large).collect();
        let profile = match pick.how % 3 {
            _ if self.is_filled => large[pick.what % large.len()],
            0 => pick.what % board.profiles.len(),
            _ => small[pick.what % small.len()],
        };
        let starts = starts(board, profile);
        let is_read = !self.how.is_multiple_of(5);
        for turn in 0..starts.len() {
            let start = starts[(pick.how + turn) % starts.len()];
            let mut standing = self.standing.clone();
            standing.push((profile, is_read.then_some(start)));
            let weighting = fatia::domain::policy::Weighting::DEFAULT;
            if self.how % 16 == 3 || room(key, board, &standing, weighting).is_some() {
                self.standing = standing;
                let size = SliceSize::Profile(board.profiles[profile].name.clone());
                let slice = Slice { start: is_read.then_some(start), ..self.plain(SharingMode::Mig, size) };
                return Some((slice, Room::Instance(profile)));
            }
        }
        None
    }

    fn on_device(&mut self, way: usize, pick: &Pick) -> Option<(Slice, Room)> {
        let key = name(self.model);
        let profile = |board: &'static MigBoard, which: usize| &board.profiles[which % board.profiles.len()];
        match (way, self.board) {
            (0..=4, Some(board)) => self.instance(&key, board, pick),
            // Compute instances and MIG-backed vGPUs alone: their GPU instances are implied. Of one size an era.
            (5, Some(board)) => {
                let of = profile(board, self.how);
                let vgpus = types(self.model, Some(&of.name));
                if of.compute_slices < 2 && vgpus.is_empty() {
                    return self.instance(&key, board, pick);
                }
                if of.compute_slices < 2 || self.how.is_multiple_of(2) && !vgpus.is_empty() {
                    return Some((
                        self.vgpu(SharingMode::MigVgpu, vgpus[self.how % vgpus.len()]),
                        Room::Other,
                    ));
                }
                let slices = 1 + self.how / 3 % usize::from(of.compute_slices - 1);
                let size = SliceSize::Profile(name(&format!("{slices}c.{}", of.name)));
                Some((self.plain(SharingMode::Mig, size), Room::Other))
            }
            (6 | 7, _) => {
                let all = types(self.model, None);
                // Equal sizes, or mixed.
                let which = if way == 6 { self.how } else { pick.what };
                Some((self.vgpu(SharingMode::Vgpu, all[which % all.len()]), Room::Other))
            }
            (8, _) => {
                let mode = [SharingMode::Dedicated, SharingMode::Passthrough][self.how % 2];
                Some((self.plain(mode, SliceSize::Whole), Room::Other))
            }
            (9, _) => Some((
                self.plain(SharingMode::Partition, SliceSize::OneOf([2, 4, 8][self.how % 3])),
                Room::Nothing,
            )),
            (10, _) => {
                let size = SliceSize::Profile(name(["9g.99gb", "Z1-7Q"][pick.what % 2]));
                let mode = [SharingMode::Mig, SharingMode::Vgpu, SharingMode::TimeSlicing][pick.how % 3];
                Some((self.plain(mode, size), Room::Other))
            }
            _ => Some((self.part(pick), Room::Other)),
        }
    }

    fn inside(&mut self, room: Room, pick: &Pick) -> Option<(Slice, Room)> {
        match (room, self.board) {
            (Room::Instance(profile), Some(board)) => {
                let of = &board.profiles[profile];
                let vgpus = types(self.model, Some(&of.name));
                match pick.what % 3 {
                    0 if of.compute_slices > 1 => {
                        let slices = 1 + pick.how % usize::from(of.compute_slices);
                        let size = SliceSize::Profile(name(&format!("{slices}c.{}", of.name)));
                        Some((self.plain(SharingMode::Mig, size), Room::Other))
                    }
                    1 if !vgpus.is_empty() => {
                        Some((self.vgpu(SharingMode::MigVgpu, vgpus[self.how % vgpus.len()]), Room::Other))
                    }
                    _ => Some((self.part(pick), Room::Other)),
                }
            }
            _ => Some((self.part(pick), Room::Nothing)),
        }
    }

    fn add(&mut self, way: usize, pick: &Pick) -> Option<Slice> {
        let number = self.slices.len();
        let around = self
            .slices
            .get(if self.is_filled { pick.inside % 2 } else { pick.inside })
            .filter(|(slice, room)| slice.id.is_some() && *room != Room::Nothing);
        let around = around.map(|(slice, room)| (slice.id.clone(), *room));
        let (mut slice, room) = match around {
            Some((parent, room)) => {
                let (slice, room) = self.inside(room, pick)?;
                (Slice { parent, ..slice }, room)
            }
            None => self.on_device(way, pick)?,
        };
        // A GPU instance without a name is another one for each holder.
        let is_instance = matches!(room, Room::Instance(_)) && pick.holders.len() != 1;
        slice.id = (pick.is_named || is_instance).then(|| name(&format!("s{}-{number}", self.era)));
        if pick.what % 97 == 5 && slice.parent.is_none() && !is_instance {
            slice.parent = Some(name("nowhere"));
        }
        slice.is_powered_off = pick.is_off;
        self.slices.push((slice.clone(), room));
        Some(slice)
    }
}

/// What a plan says, into the world.
fn say(world: &mut World, number: usize, plan: &Plan) {
    let place = world.place;
    let device = device_name(number);
    let mut known: Vec<(Slice, Vec<usize>)> = Vec::new();
    let change = if plan.eras.len() == 1 { STAGE } else { plan.change };
    for (at, era) in plan.eras.iter().enumerate() {
        let of_era = if at == 0 { (0, change) } else { (change, STAGE) };
        let model = MODELS[plan.model];
        let board = Catalogue::embedded().boards().find(|board| board.key.as_str() == model);
        let board = board.and_then(|board| board.mig.as_ref());
        let (slices, standing) = (Vec::new(), Vec::new());
        let mut growing = Growing {
            device: device.clone(),
            model,
            board,
            era: at,
            how: era.how,
            is_filled: matches!(era.way, 3 | 4),
            slices,
            standing,
        };
        for pick in &era.picks {
            let Some(slice) = growing.add(era.way, pick) else { continue };
            let inside = |span: Option<(i64, i64)>| {
                let whole = place.span(of_era);
                span.map_or(whole, |span| place.span(span).clip(whole))
            };
            let source = source(era.from);
            let number = i64::from(era.from != 1);
            let life = inside(pick.life);
            if slice.id.is_some() && pick.is_stated {
                for span in pieces(&place, life) {
                    let (source, slice) = (source.clone(), slice.clone());
                    world.layouts.push(Existing { source, number, slice, span, uncut: life });
                }
                if let Some(end) = pick.amended {
                    let uncut = Span::clamped(life.start(), place.at(end).min(place.at(of_era.1)));
                    let (source, slice) = (source.clone(), slice.clone());
                    world.layouts.push(Existing { source, number: 2 * number, slice, span: uncut, uncut });
                }
            }
            for (seen, span) in &pick.holders {
                let uncut = inside(*span).clip(life);
                let (slice, evidence) = (slice.clone(), evidence(*seen));
                let mut holding =
                    Holding { source: source.clone(), number, slice, evidence, span: uncut, uncut };
                world.holdings.push(holding.clone());
                if let Some(end) = pick.amended {
                    let span = Span::clamped(uncut.start(), place.at(end).min(place.at(of_era.1)));
                    (holding.number, holding.span, holding.uncut) = (2 * number, span, span);
                    world.holdings.push(holding);
                }
            }
            known.push((slice, pick.holders.iter().map(|(seen, _)| *seen).collect()));
        }
    }
    let by_eras = plan.eras.iter().filter(|_| plan.is_covered).map(|era| (era.from, (0, STAGE), true));
    for (from, span, is_holding) in by_eras.chain(plan.covers.iter().copied()) {
        let of = if is_holding { CoverageOf::Holding } else { CoverageOf::Use };
        let (source, number) = (source(from), 1);
        let coverage = Coverage { device: device.clone(), span: place.span(span), of };
        world.covers.push(Cover {
            number: if source.rank == super::world::IMPORT { number } else { 0 },
            source,
            coverage,
        });
    }
    for (which, is_of_holder, span, active, held, from) in &plan.uses {
        let Some((slice, holders)) = known.get(which % known.len().max(1)) else { continue };
        let span = place.span(*span);
        let evidence = holders.first().filter(|_| *is_of_holder).map(|seen| evidence(*seen));
        let nanos = span.nanos();
        world.uses.push(Measured {
            source: source(*from),
            slice: slice.clone(),
            evidence,
            span,
            active_nanos: active.map(|thousandths| nanos / 1_000 * thousandths),
            // Of 8 GiB.
            memory_byte_seconds: held.map(|thousandths| nanos / 1_000_000_000 * 8_589_934 * thousandths),
        });
    }
    for (span, millijoules, from) in &plan.energies {
        let row = EnergyRow { device: device.clone(), span: place.span(*span), millijoules: *millijoules };
        world.energies.push(Energy { source: source(*from), row });
    }
    // What is left inside a slice does not know of the slice's state yet: see `nested`.
    let is_inside = |id: &Name| known.iter().any(|(slice, _)| slice.parent.as_ref() == Some(id));
    let states = plan.states.iter().map(|(kind, which, span)| DeclaredState {
        kind: DeclaredKind::ALL[*kind],
        slice: known.get(*which).and_then(|(slice, _)| slice.id.clone()).filter(|id| !is_inside(id)),
        span: place.span(*span),
    });
    let service = place.span(plan.service);
    world.devices.push(FleetDevice {
        device: Device { uuid: device, model: name(MODELS[plan.model]) },
        memory_mib: plan.memory_mib,
        node: number % NODES,
        services: if service.is_empty() { vec![] } else { vec![service] },
        counted_to: place.at(plan.counted_to.unwrap_or(STAGE)),
        states: states.collect(),
    });
}

/// A span as a source of an hour's batches states it.
fn pieces(place: &Place, span: Span) -> Vec<Span> {
    let middle = place.at(STAGE / 2);
    if span.start() < middle && middle < span.end() {
        vec![Span::new(span.start(), middle).unwrap(), Span::new(middle, span.end()).unwrap()]
    } else {
        vec![span]
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    let each = vec((0..SharingMode::ALL.len(), 0..Basis::ALL.len()), 0..5);
    let all = (0..SharingMode::ALL.len()).map(|mode| (mode, 1)).collect::<Vec<_>>();
    let basis = prop_oneof![2 => each, 1 => Just(all)];
    (weightings(), basis, any::<bool>(), any::<bool>()).prop_map(
        |(weighting, basis, entitled, reserves_powered_off)| Policy {
            weighting,
            basis: basis
                .into_iter()
                .map(|(mode, basis)| (SharingMode::ALL[mode], Basis::ALL[basis]))
                .collect::<BTreeMap<_, _>>(),
            entitled,
            reserves_powered_off,
        },
    )
}

/// A rule from some instant on, so that owners change.
fn rule() -> impl Strategy<Value = Option<i64>> {
    option::weighted(0.3, at())
}

/// Any fleet of one or two devices that are shared in nested ways.
pub(super) fn nests() -> impl Strategy<Value = World> {
    (Place::all(), vec(plan(), 1..3), policy(), rule()).prop_map(|(place, plans, policy, rule)| {
        let mut world = World { policy, ..World::of(place, Vec::new()) };
        for (number, plan) in plans.iter().enumerate() {
            say(&mut world, number, plan);
        }
        if let Some(from) = rule {
            world.rules.push(Rule {
                order: 1,
                effective: Span::clamped(place.at(from), fatia::domain::units::Instant::MAX),
                conditions: Vec::new(),
                tenant: name("zeta"),
                project: name("ruled"),
            });
        }
        world
    })
}

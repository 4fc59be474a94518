//! The sharing tree of one span by the rules of DESIGN §3, with fractions of big integers and no figure kept.
//!
//! Of the catalogue it takes rows by their names; what follows from a row is worked out here.

use fatia::domain::catalogue::{Catalogue, MigBoard, MigProfile, VgpuType};
use fatia::domain::device::SharingMode;
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::policy::{Basis, Weighting};
use fatia::domain::usage::{Evidence, Slice, SliceSize, VgpuScheduler};

use super::exact::{Exact, Moment};
use super::packing::{Standing, mix, room};
use super::world::{FleetDevice, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Used,
    HeldUnused,
    Idle,
    Stranded,
    Unknown,
}

/// A leaf of the tree.
#[derive(Debug, Clone)]
pub(super) struct Twig<'a> {
    pub kind: Kind,
    pub slice: Option<&'a Slice>,
    pub evidence: Option<&'a Evidence>,
    pub mode: Option<SharingMode>,
    /// Names of the slice and of those around it.
    pub path: Vec<&'a Name>,
    pub share: Exact,
    pub estimated: bool,
    pub activity: Option<Exact>,
}

impl Twig<'_> {
    pub(super) fn unknown(mode: Option<SharingMode>) -> Self {
        Self {
            kind: Kind::Unknown,
            slice: None,
            evidence: None,
            mode,
            path: Vec::new(),
            share: Exact::one(),
            estimated: false,
            activity: None,
        }
    }
}

/// What a node of the tree is.
#[derive(Clone, Copy)]
enum Is {
    Plain,
    Instance(&'static MigBoard, usize),
    /// So many compute slices of an instance of that profile.
    Compute(u16, &'static MigBoard, usize),
    Vgpu(&'static VgpuType),
    /// No catalogue knows it, or it hangs in nothing.
    Unknown,
}

struct Node<'a> {
    slice: Option<&'a Slice>,
    is: Is,
    parent: usize,
    holders: Vec<&'a Evidence>,
    has_powered_off: bool,
}

struct Tree<'a, 't> {
    world: &'a World,
    device: &'a FleetDevice,
    key: Option<&'static Name>,
    memory_mib: Option<u32>,
    length: Span,
    moment: &'t Moment<'a>,
    nodes: Vec<Node<'a>>,
    twigs: Vec<Twig<'a>>,
}

/// Where a node hangs that hangs in nothing.
const NOWHERE: usize = usize::MAX;

/// Divides a device over a span.
pub(super) fn divide<'a>(
    world: &'a World,
    device: &'a FleetDevice,
    span: Span,
    moment: &Moment<'a>,
) -> Vec<Twig<'a>> {
    let board = Catalogue::embedded().boards().find(|board| board.key == device.device.model);
    let mut tree = Tree {
        world,
        device,
        key: board.map(|board| &board.key),
        memory_mib: device.memory_mib.or(board.map(|board| board.memory_mib)),
        length: span,
        moment,
        nodes: vec![Node {
            slice: None,
            is: Is::Plain,
            parent: NOWHERE,
            holders: vec![],
            has_powered_off: false,
        }],
        twigs: vec![],
    };
    tree.plant();
    if tree.stands().is_some_and(|(board, standing)| tree.room(board, &standing).is_none()) {
        return vec![Twig::unknown(Some(SharingMode::Mig))];
    }
    tree.share_out(0, &Exact::one());
    tree.twigs
}

fn mig_board(model: &Name) -> Option<&'static MigBoard> {
    Catalogue::embedded().boards().find(|board| board.key == *model)?.mig.as_ref()
}

fn memory_of(model: &Name) -> Option<u32> {
    Catalogue::embedded().boards().find(|board| board.key == *model).map(|board| board.memory_mib)
}

/// What a slice is by its profile's name.
fn is(model: &Name, slice: &Slice) -> Is {
    let SliceSize::Profile(name) = &slice.size else { return Is::Plain };
    let vgpu = Catalogue::embedded().vgpu_types().find(|each| each.name == *name);
    match (slice.mode, vgpu) {
        // A type is for boards of one memory; on a board that no catalogue knows it is what its name says.
        (SharingMode::Vgpu | SharingMode::MigVgpu, Some(vgpu))
            if memory_of(model).is_none_or(|mib| mib == vgpu.board_memory_mib) =>
        {
            return Is::Vgpu(vgpu);
        }
        (SharingMode::Mig | SharingMode::MigVgpu, _) => {}
        _ => return Is::Unknown,
    }
    let Some(board) = mig_board(model) else { return Is::Unknown };
    let (compute, profile) = match name.as_str().split_once("c.") {
        Some((compute, profile)) => (compute.parse().ok(), profile),
        None => (None, name.as_str()),
    };
    match (board.profiles.iter().position(|each| each.name.as_str() == profile), compute) {
        (Some(profile), Some(slices)) => Is::Compute(slices, board, profile),
        (Some(profile), None) => Is::Instance(board, profile),
        (None, _) => Is::Unknown,
    }
}

fn instance(model: &Name, profile: &Name) -> Is {
    let found = mig_board(model)
        .and_then(|board| Some((board, board.profiles.iter().position(|each| each.name == *profile)?)));
    found.map_or(Is::Unknown, |(board, profile)| Is::Instance(board, profile))
}

fn profile_of(board: &'static MigBoard, profile: usize) -> &'static MigProfile {
    &board.profiles[profile]
}

impl<'a> Tree<'a, '_> {
    fn plant(&mut self) {
        let model = &self.device.device.model;
        for slice in &self.moment.exist {
            self.nodes.push(Node {
                slice: Some(slice),
                is: is(model, slice),
                parent: NOWHERE,
                holders: vec![],
                has_powered_off: false,
            });
        }
        for (slice, evidence) in &self.moment.held {
            let same = |node: &Node<'_>| node.slice.is_some_and(|other| other.id == slice.id);
            let known = self.nodes.iter().position(|node| slice.id.is_some() && same(node));
            let at = known.unwrap_or_else(|| {
                let is = is(model, slice);
                self.nodes.push(Node {
                    slice: Some(slice),
                    is,
                    parent: NOWHERE,
                    holders: vec![],
                    has_powered_off: false,
                });
                self.nodes.len() - 1
            });
            self.nodes[at].has_powered_off |= slice.is_powered_off;
            if !slice.is_powered_off || self.world.policy.reserves_powered_off {
                // Who holds a named slice twice at once holds it once.
                if slice.id.is_none() || !self.nodes[at].holders.contains(evidence) {
                    self.nodes[at].holders.push(evidence);
                }
            }
        }
        for at in 1..self.nodes.len() {
            let parent = self.nodes[at].slice.unwrap().parent.as_ref();
            let named = |id: &Name| {
                self.nodes.iter().position(|node| node.slice.is_some_and(|s| s.id.as_ref() == Some(id)))
            };
            self.nodes[at].parent = parent.map_or(0, |id| named(id).unwrap_or(NOWHERE));
        }
        let lost: Vec<usize> = (1..self.nodes.len()).filter(|at| self.is_lost(*at)).collect();
        for at in lost {
            self.nodes[at].parent = 0;
            self.nodes[at].is = Is::Unknown;
        }
        self.imply();
    }

    fn is_lost(&self, start: usize) -> bool {
        let mut at = start;
        for _ in &self.nodes {
            match self.nodes[at].parent {
                0 => return false,
                NOWHERE => return true,
                parent => at = parent,
            }
        }
        true
    }

    /// Puts compute instances and MIG-backed vGPUs without a parent into as few GPU instances as hold them: the
    /// largest first, which is the best where all sizes divide what they are put into or stand alone.
    fn imply(&mut self) {
        struct Bin {
            node: usize,
            left: u16,
            of: Name,
        }
        let mut bins: Vec<Bin> = Vec::new();
        let mut open: Vec<(u16, usize, Name, u16, Name)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate().skip(1).filter(|(_, node)| node.parent == 0) {
            match node.is {
                Is::Compute(slices, board, profile) => {
                    let profile = profile_of(board, profile);
                    open.push((
                        slices,
                        at,
                        profile.name.clone(),
                        profile.compute_slices,
                        profile.name.clone(),
                    ));
                }
                Is::Vgpu(vgpu) => {
                    if let Some(profile) = &vgpu.gi_profile {
                        open.push((1, at, vgpu.name.clone(), vgpu.max, profile.clone()));
                    }
                }
                Is::Plain | Is::Instance(..) | Is::Unknown => {}
            }
        }
        open.sort_by_key(|(slices, at, ..)| (u16::MAX - slices, *at));
        for (slices, at, of, capacity, profile) in open {
            let found = bins.iter_mut().find(|bin| bin.of == of && bin.left >= slices);
            let node = match found {
                Some(bin) => {
                    bin.left -= slices;
                    bin.node
                }
                None => {
                    let is = instance(&self.device.device.model, &profile);
                    self.nodes.push(Node {
                        slice: None,
                        is,
                        parent: 0,
                        holders: vec![],
                        has_powered_off: false,
                    });
                    let node = self.nodes.len() - 1;
                    bins.push(Bin { node, left: capacity - slices, of });
                    node
                }
            };
            self.nodes[at].parent = node;
        }
    }

    fn children(&self, of: usize) -> Vec<usize> {
        (1..self.nodes.len()).filter(|at| self.nodes[*at].parent == of).collect()
    }

    /// The GPU instances on the device.
    fn stands(&self) -> Option<(&'static MigBoard, Vec<Standing>)> {
        let all: Vec<(&'static MigBoard, Standing)> = self
            .children(0)
            .into_iter()
            .filter_map(|at| match self.nodes[at].is {
                Is::Instance(board, profile) => {
                    Some((board, (profile, self.nodes[at].slice.and_then(|slice| slice.start))))
                }
                Is::Plain | Is::Compute(..) | Is::Vgpu(_) | Is::Unknown => None,
            })
            .collect();
        Some((all.first()?.0, all.into_iter().map(|(_, standing)| standing).collect()))
    }

    fn room(&self, board: &MigBoard, standing: &[Standing]) -> Option<Exact> {
        let (_, more, whole) = room(self.key?, board, standing, self.world.policy.weighting)?;
        Some(Exact::of(more, whole))
    }

    /// MiB of a node.
    fn memory(&self, at: usize) -> Option<u32> {
        let of_instance = |board: &'static MigBoard, profile: usize| {
            let profile = profile_of(board, profile);
            let by_slots = |all| all * u32::from(profile.memory_slots) / u32::from(board.memory_slots);
            profile.memory_mib.or(self.memory_mib.map(by_slots))
        };
        match self.nodes[at].is {
            _ if at == 0 => self.memory_mib,
            Is::Instance(board, profile) => of_instance(board, profile),
            Is::Compute(slices, board, profile) => {
                let all = of_instance(board, profile)?;
                Some(all * u32::from(slices) / u32::from(profile_of(board, profile).compute_slices))
            }
            Is::Vgpu(vgpu) => Some(vgpu.framebuffer_mib),
            // All of the device has all of its memory.
            Is::Plain if self.nodes[at].parent == 0 => {
                let is_whole = self.nodes[at].slice.is_some_and(|slice| slice.size == SliceSize::Whole);
                self.memory_mib.filter(|_| is_whole)
            }
            Is::Plain | Is::Unknown => None,
        }
    }

    /// Memory that vGPUs on a node divide.
    fn vgpu_memory(&self, at: usize, vgpu: &VgpuType) -> u32 {
        if at == 0 { vgpu.board_memory_mib } else { self.memory(at).unwrap_or(0) }
    }

    fn weigh(&self, compute: &Exact, memory: &Exact) -> Exact {
        match self.world.policy.weighting {
            Weighting::Compute => compute.clone(),
            Weighting::Memory => memory.clone(),
            Weighting::Dominant => compute.clone().max(memory.clone()),
            Weighting::Blended { alpha_ppm } => {
                let alpha = Exact::of(alpha_ppm, 1_000_000);
                alpha.times(compute).plus(&Exact::one().minus(&alpha).times(memory))
            }
        }
    }

    fn vgpu_shares(&self, parent: usize, vgpu: &VgpuType) -> (Exact, Exact) {
        let all = vgpu.framebuffer_mib * u32::from(vgpu.max);
        let memory = Exact::of(vgpu.framebuffer_mib, self.vgpu_memory(parent, vgpu).max(all));
        (Exact::of(1, vgpu.max), memory)
    }

    /// Compute share, memory share, and whether one was not to be had.
    fn shares(&self, at: usize) -> Option<(Exact, Exact, bool)> {
        let node = &self.nodes[at];
        let both = |share: Exact| Some((share.clone(), share, false));
        let siblings = || self.children(node.parent).into_iter().map(|at| &self.nodes[at]);
        match node.is {
            Is::Unknown => None,
            Is::Instance(..) if node.parent != 0 => None,
            Is::Instance(board, profile) => {
                let profile = profile_of(board, profile);
                Some((
                    Exact::of(profile.compute_slices, board.compute_slices),
                    Exact::of(profile.memory_slots, board.memory_slots),
                    false,
                ))
            }
            Is::Compute(slices, board, profile) => match self.nodes[node.parent].is {
                Is::Instance(_, of) if of == profile => {
                    both(Exact::of(slices, profile_of(board, profile).compute_slices))
                }
                _ => None,
            },
            Is::Vgpu(vgpu) => {
                let is_equal = node.slice.unwrap().scheduler == Some(VgpuScheduler::EqualShare);
                if is_equal && self.world.policy.entitled {
                    // Among those that run: what is bound to a VM that is off, and held by nobody else, has no turn.
                    let is_off = |each: &Node<'_>| each.has_powered_off && each.holders.is_empty();
                    let runs = |each: &&Node<'_>| matches!(each.is, Is::Vgpu(_)) && !is_off(each);
                    if is_off(node) {
                        return both(Exact::zero());
                    }
                    return both(Exact::of(1, siblings().filter(runs).count()));
                }
                let (compute, memory) = self.vgpu_shares(node.parent, vgpu);
                Some((compute, memory, false))
            }
            Is::Plain => match &node.slice.unwrap().size {
                SliceSize::Whole | SliceSize::Devices(_) => both(Exact::one()),
                SliceSize::Declared(ppm) => both(Exact::of(*ppm, 1_000_000)),
                SliceSize::OneOf(count) => both(Exact::of(1, *count)),
                SliceSize::Even => {
                    let like =
                        |each: &&Node<'_>| each.slice.is_some_and(|slice| slice.size == SliceSize::Even);
                    // Those that live share; what nobody holds has nothing, unless none of them is held.
                    let number = |node: &Node<'_>| {
                        self.nodes.iter().position(|each| std::ptr::eq(each, node)).unwrap_or_default()
                    };
                    let lives = |each: &&Node<'_>| {
                        !each.holders.is_empty() || !self.children(number(each)).is_empty()
                    };
                    match siblings().filter(like).filter(lives).count() {
                        0 => both(Exact::of(1, siblings().filter(like).count())),
                        living if lives(&node) => both(Exact::of(1, living)),
                        _ => both(Exact::zero()),
                    }
                }
                SliceSize::Threads { percent, memory_mib } => {
                    let compute = Exact::of(*percent, 100);
                    let memory = match (memory_mib, self.memory(node.parent)) {
                        (Some(limit), Some(all)) => Exact::of((*limit).min(all), all),
                        _ => return Some((compute.clone(), compute, memory_mib.is_some())),
                    };
                    Some((compute, memory, false))
                }
                SliceSize::Profile(_) => None,
            },
        }
    }

    fn mode(&self, at: usize) -> SharingMode {
        self.nodes[at].slice.map_or(SharingMode::Mig, |slice| slice.mode)
    }

    /// Activity and memory held, of the parent.
    fn measured(&self, at: usize, compute: &Exact) -> (Option<Exact>, Option<Exact>) {
        let node = &self.nodes[at];
        let (slice, evidence) = (node.slice.unwrap(), node.holders[0]);
        let own = self.moment.measures.get(&(slice, Some(evidence)));
        let Some((active, held)) = own.or_else(|| self.moment.measures.get(&(slice, None))) else {
            return (None, None);
        };
        // Slices that are alike to the letter, with one holder, each have their part of what was measured together.
        let alike = self
            .moment
            .held
            .iter()
            .filter(|(other, seen)| *other == slice && (own.is_none() || *seen == evidence))
            .count();
        // A slice with an id is there once.
        let alike = if slice.id.is_some() { 1 } else { alike };
        let part = |all: &Option<i64>| all.map(|all| all / i64::try_from(alike.max(1)).unwrap());
        let (active, held) = (part(active), part(held));
        let billionths = |share: Exact| {
            Exact::of(
                share.times(&Exact::of(1_000_000_000, 1)).min(Exact::of(1_000_000_000, 1)).floor(),
                1_000_000_000,
            )
        };
        let nanos = self.length.nanos();
        let active = active.map(|active| billionths(Exact::of(active, nanos)));
        let active = active.map(|active| match node.is {
            Is::Instance(..) | Is::Compute(..) => active.times(compute),
            Is::Plain | Is::Vgpu(_) | Is::Unknown => active,
        });
        let held = held.zip(self.memory(node.parent)).map(|(held, mib)| {
            let bytes = i128::from(mib) * 1_048_576;
            billionths(Exact::of(i128::from(held) * 1_000_000_000, bytes * i128::from(nanos)))
        });
        (active, held)
    }

    fn twig(
        &mut self,
        at: usize,
        kind: Kind,
        evidence: Option<&'a Evidence>,
        share: Exact,
    ) -> Option<&mut Twig<'a>> {
        if share.is_zero() && (evidence.is_none() || kind != Kind::Used) {
            return None;
        }
        let path = self.path(at);
        let (slice, mode) = (self.nodes[at].slice, Some(self.mode(at)));
        let (estimated, activity) = (false, None);
        self.twigs.push(Twig { kind, slice, evidence, mode, path, share, estimated, activity });
        self.twigs.last_mut()
    }

    /// What nobody holds of a node, beside what exists in it.
    fn rest(&mut self, at: usize, kind: Kind, mode: Option<SharingMode>, share: Exact) {
        if !share.is_zero() {
            let path = self.path(at);
            self.twigs.push(Twig { kind, share, path, ..Twig::unknown(mode) });
        }
    }

    fn path(&self, at: usize) -> Vec<&'a Name> {
        let mut path = Vec::new();
        let mut next = at;
        while next != 0 {
            path.extend(self.nodes[next].slice.and_then(|slice| slice.id.as_ref()));
            next = self.nodes[next].parent;
        }
        path
    }

    /// Divides a node among its children and holders.
    fn share_out(&mut self, at: usize, share: &Exact) {
        struct Child<'a> {
            node: Option<usize>,
            evidence: Option<&'a Evidence>,
            weight: Exact,
            /// Only under a usage basis.
            used: Option<Exact>,
            estimated: bool,
            activity: Option<Exact>,
        }
        let children = self.children(at);
        let mut unknown = None;
        let mut unknown_ids: Vec<&'a Name> = Vec::new();
        let mut all: Vec<Child<'a>> = Vec::new();
        for child in &children {
            let Some((compute, memory, mut estimated)) = self.shares(*child) else {
                unknown = unknown.or(Some(self.mode(*child)));
                unknown_ids.extend(self.nodes[*child].slice.and_then(|slice| slice.id.as_ref()));
                continue;
            };
            let mut weight = self.weigh(&compute, &memory);
            let (mut used, mut activity) = (None, None);
            if self.nodes[*child].holders.len() == 1 && self.children(*child).is_empty() {
                let (active, held) = self.measured(*child, &compute);
                let basis =
                    self.world.policy.basis.get(&self.mode(*child)).copied().unwrap_or(Basis::Allocation);
                let use_of = |active: &Option<Exact>, held: &Option<Exact>| {
                    self.weigh(active.as_ref().unwrap_or(&compute), held.as_ref().unwrap_or(&memory))
                };
                if basis != Basis::Allocation {
                    estimated |= active.is_none() || held.is_none();
                }
                match basis {
                    Basis::Allocation => {}
                    Basis::Usage => used = Some(use_of(&active, &held)),
                    Basis::Larger => weight = weight.max(use_of(&active, &held)),
                }
                activity = active;
            }
            let evidence = self.nodes[*child].holders.first().copied();
            all.push(Child { node: Some(*child), evidence, weight, used, estimated, activity });
        }
        for evidence in self.nodes[at].holders.clone() {
            let (used, estimated, activity) = (None, false, None);
            let weight = Exact::one();
            all.push(Child { node: None, evidence: Some(evidence), weight, used, estimated, activity });
        }
        // Those that run first; what is bound to a VM that is off stands in what they leave.
        let is_off = |child: &Child<'_>| {
            child.node.is_some_and(|at| self.nodes[at].has_powered_off && self.nodes[at].holders.is_empty())
        };
        let of = |off: bool| {
            Exact::sum(all.iter().filter(|child| is_off(child) == off).map(|child| &child.weight))
        };
        let (running, waiting) = (of(false).max(Exact::one()), of(true));
        let left = Exact::one().minus(&of(false).over(&running));
        let held: Vec<Exact> = all
            .iter()
            .map(|child| match is_off(child) {
                false => child.weight.over(&running),
                true if waiting > left => child.weight.times(&left).over(&waiting),
                true => child.weight.clone(),
            })
            .collect();
        let mut rest = Exact::one().minus(&Exact::sum(&held));
        // Use: what is above what others leave is divided by its sum; what is left of what was held together goes by
        // how far each stayed below what it holds.
        let of = |is_asked: bool| {
            Exact::sum(
                all.iter()
                    .zip(&held)
                    .filter(|(child, _)| child.used.is_some() == is_asked)
                    .map(|(_, share)| share),
            )
        };
        let (by_use, cap) = (of(true), Exact::one().minus(&of(false)));
        let all_used = Exact::sum(all.iter().filter_map(|child| child.used.as_ref()));
        let scale = if all_used > cap { cap.over(&all_used) } else { Exact::one() };
        let all_used = all_used.min(cap);
        rest = rest.minus(&all_used.minus(&by_use).positive()).positive();
        let below = |used: &Exact, held: &Exact| held.minus(&used.times(&scale)).positive();
        let short = all.iter().zip(&held).filter_map(|(child, held)| Some(below(child.used.as_ref()?, held)));
        let short = short.fold(Exact::zero(), |sum, each| sum.plus(&each));
        let unused = by_use.minus(&all_used).positive();
        let is_empty = all.is_empty();
        for (child, held) in all.into_iter().zip(held) {
            let node = child.node.unwrap_or(at);
            let (estimated, activity) = (child.estimated, child.activity.map(|active| active.times(share)));
            let mark = |twig: Option<&mut Twig<'_>>, activity: Option<Exact>| {
                if let Some(twig) = twig {
                    (twig.estimated, twig.activity) = (estimated, activity);
                }
            };
            if let Some(used) = child.used {
                mark(self.twig(node, Kind::Used, child.evidence, used.times(&scale).times(share)), activity);
                if !short.is_zero() {
                    let not_used = below(&used, &held).times(&unused).over(&short);
                    mark(self.twig(node, Kind::HeldUnused, child.evidence, not_used.times(share)), None);
                }
                continue;
            }
            let part = held.times(share);
            if child.node.is_none() {
                mark(self.twig(node, Kind::Used, child.evidence, part), activity);
            } else if !self.children(node).is_empty() || self.nodes[node].holders.len() > 1 {
                self.share_out(node, &part);
            } else if child.evidence.is_some() {
                mark(self.twig(node, Kind::Used, child.evidence, part), activity);
            } else {
                // An existing slice that nobody holds.
                self.twig(node, Kind::Idle, None, part);
            }
        }
        if unknown.is_some() {
            // A state of what is unknown concerns what is unknown with it.
            if !rest.is_zero() {
                let path = [self.path(at), unknown_ids].concat();
                self.twigs.push(Twig { share: rest.times(share), path, ..Twig::unknown(unknown) });
            }
        } else if is_empty {
            self.rest(at, Kind::Idle, None, rest.times(share));
        } else if !rest.is_zero() {
            let (more, mode) = self.more(at, &children).unwrap_or((rest.clone(), None));
            let idle = more.min(rest.clone());
            self.rest(at, Kind::Stranded, mode, rest.minus(&idle).times(share));
            self.rest(at, Kind::Idle, mode, idle.times(share));
        }
    }

    /// What can still be added to a node, where its children say so.
    fn more(&self, at: usize, children: &[usize]) -> Option<(Exact, Option<SharingMode>)> {
        let kinds = || children.iter().map(|at| self.nodes[*at].is);
        if at == 0 && kinds().all(|is| matches!(is, Is::Instance(..))) {
            let (board, standing) = self.stands()?;
            return Some((self.room(board, &standing)?, Some(SharingMode::Mig)));
        }
        if !kinds().all(|is| matches!(is, Is::Vgpu(_))) {
            return None;
        }
        let runs = |at: &usize| !self.nodes[*at].has_powered_off || !self.nodes[*at].holders.is_empty();
        let running = self.children(at).into_iter().filter(runs);
        let vgpus: Vec<&'static VgpuType> = running
            .filter_map(|at| if let Is::Vgpu(vgpu) = self.nodes[at].is { Some(vgpu) } else { None })
            .collect();
        let first = *vgpus.first()?;
        let mode = Some(if first.gi_profile.is_some() { SharingMode::MigVgpu } else { SharingMode::Vgpu });
        let weight = |vgpu: &VgpuType| {
            let (compute, memory) = self.vgpu_shares(at, vgpu);
            self.weigh(&compute, &memory)
        };
        if vgpus.iter().all(|vgpu| (vgpu.framebuffer_mib, vgpu.max) == (first.framebuffer_mib, first.max)) {
            let more = usize::from(first.max).saturating_sub(vgpus.len());
            return Some((weight(first).times(&Exact::of(more, 1)), mode));
        }
        if first.gi_profile.is_some() {
            // Of how many a GPU instance takes beside others no row says anything.
            return Some((Exact::zero(), mode));
        }
        Some((mix(&vgpus, &weight), mode))
    }
}

//! The sharing tree: device → GPU instance → compute instance → vGPU, replica, MPS client → holder.
//!
//! Every slice has a compute share and a memory share of its parent. The price book's weighting makes one weight of
//! them; at each node the weights of the children that exist, held or not, are divided by their sum where that is
//! above one; a slice's share of the device is the product down the path. What the children leave is idle as far as
//! it could still be sold, and stranded beyond.
//!
//! Always true here: the leaves of a segment sum to the whole device; nothing is rounded, measured shares apart,
//! which are rounded down to 10⁻⁹ before anything is computed with them. Source: DESIGN §3.

use std::collections::HashMap;
use std::rc::Rc;

use super::catalogue::{Board, Catalogue, MigBoard, MigProfile, ProfileName, VgpuType};
use super::device::SharingMode;
use super::ids::Name;
use super::layout::{self, Instance, Layouts};
use super::policy::{Basis, Policy, Weighting};
use super::segment::{Holder, HourSegments, Measure, Segment};
use super::share::{Normalised, Share, normalise};
use super::usage::{Slice, SliceSize, VgpuScheduler};

const BYTES_PER_MIB: i128 = 1 << 20;
const NANOS_PER_SECOND: i128 = 1_000_000_000;
/// How many slices may lie around each other. Nothing nests deeper than device, GPU instance, compute instance, vGPU
/// and client; what does is taken for lost.
pub(super) const DEPTH_MAX: usize = 16;
/// The unit in which framebuffers are packed: the smallest one is 512 MiB.
const FRAMEBUFFER_UNIT_MIB: u32 = 512;
/// A board of 1 TiB; an operator's catalogue may say more, and is packed as far as this.
const FRAMEBUFFER_UNITS_MAX: usize = 2_048;

/// What a leaf of the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafKind {
    /// Held, and charged as used.
    Used,
    /// Held and not used.
    HeldUnused,
    /// Not held: a slice that exists, or one that could be added.
    Idle,
    /// Not held, and nothing can be added there.
    Stranded,
    /// Of a slice of which nothing is known.
    Unknown,
}

/// Where a leaf is in its segment. Places and not indexes, so that a shape that was worked out serves every segment
/// of that shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spot {
    /// No slice exists there.
    Nowhere,
    /// The slice of the segment's holder of that place, and the holder.
    Holder(usize),
    /// The slice of that holder alone: it does not count as held.
    HolderSlice(usize),
    /// The slice of that place in the segment's layout.
    Layout(usize),
}

/// One leaf: who holds what share of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// What it is.
    pub kind: LeafKind,
    /// Whose it is.
    pub spot: Spot,
    /// How the device is shared there; none where that is open.
    pub mode: Option<SharingMode>,
    /// What is sold: the model, and below it the profile or the kind of part.
    pub sku: Name,
    /// Ids of the slice and of those around it, by which declared states find it.
    pub path: Vec<Name>,
    /// Its share of the device.
    pub share: Share,
    /// Whether it is the declared share because the measured one is missing.
    pub estimated: bool,
    /// SM activity as a share of the device, where it was measured.
    pub activity: Option<Share>,
    /// The same as a share of the compute that the slice has; more than all of it where it may burst.
    pub utilization: Option<Share>,
}

impl Leaf {
    /// Whether somebody holds it.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.spot, Spot::Holder(_))
    }

    /// Index of its slice; none where no slice exists.
    #[must_use]
    pub fn slice(&self, segment: &Segment) -> Option<usize> {
        match self.spot {
            Spot::Nowhere => None,
            Spot::Holder(at) | Spot::HolderSlice(at) => segment.holders.get(at).map(|holder| holder.slice),
            Spot::Layout(at) => segment.layout.get(at).copied(),
        }
    }

    /// Index of the holder's evidence; none where nobody holds.
    #[must_use]
    pub fn evidence(&self, segment: &Segment) -> Option<usize> {
        match self.spot {
            Spot::Holder(at) => segment.holders.get(at).map(|holder| holder.evidence),
            Spot::Nowhere | Spot::HolderSlice(_) | Spot::Layout(_) => None,
        }
    }
}

/// Something about a segment that someone should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DoubtKind {
    /// A profile that no catalogue knows: its time is unknown.
    UnknownProfile,
    /// A layout that cannot be: the device's time is unknown.
    IllegalLayout,
    /// A slice inside one that does not exist, or inside too many: its time is unknown.
    LostParent,
    /// A placement was not known, and the one with the most idle was taken.
    LayoutAssumed,
    /// More devices of a pool are held than it has.
    PoolOverheld,
}

impl DoubtKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::UnknownProfile,
        Self::IllegalLayout,
        Self::LostParent,
        Self::LayoutAssumed,
        Self::PoolOverheld,
    ];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::UnknownProfile => "unknown_profile",
            Self::IllegalLayout => "illegal_layout",
            Self::LostParent => "lost_parent",
            Self::LayoutAssumed => "layout_assumed",
            Self::PoolOverheld => "pool_overheld",
        }
    }

    /// Reads a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// A doubt: its kind, and about what (a profile, a slice, a reason).
pub type Doubt = (DoubtKind, Name);

/// The shares of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    /// The leaves; they sum to the whole.
    pub leaves: Vec<Leaf>,
    /// What someone should know of it.
    pub doubts: Vec<Doubt>,
}

/// What a profile text is, on a board.
#[derive(Debug, Clone, Copy)]
enum Resolved<'c> {
    /// Its size needs no catalogue.
    Plain,
    Instance(&'c MigBoard, &'c MigProfile, usize),
    /// So many slices of a GPU instance.
    Compute(u16, &'c MigBoard, &'c MigProfile),
    Vgpu(&'c VgpuType),
    Unknown,
    /// It hangs in a slice that does not exist.
    Lost,
}

/// Shares of segments, with everything remembered that depends on a layout alone.
#[derive(Debug)]
pub struct Forest<'c> {
    catalogue: &'c Catalogue,
    resolved: HashMap<(Name, SharingMode, Name), Resolved<'c>>,
    boards: HashMap<Name, Option<&'c Board>>,
    layouts: Layouts,
    mixed: HashMap<(Weighting, u64, Vec<Name>), Share>,
    /// By device: the shapes that it had lately.
    shapes: HashMap<Name, Vec<Shape>>,
    /// The undivided device by model: held by one, and held by nobody.
    whole: HashMap<(Name, Option<SharingMode>), Rc<Shares>>,
}

/// How many shapes of one device are remembered.
const SHAPES_MAX: usize = 32;

/// What a segment's shares depend on where nothing was measured, and what they are.
#[derive(Debug)]
struct Shape {
    model: Name,
    memory_mib: Option<u32>,
    policy: Policy,
    layout: Vec<Slice>,
    held: Vec<Slice>,
    shares: Rc<Shares>,
}

impl Shape {
    fn fits(&self, ground: Ground<'_>, policy: &Policy, hour: &HourSegments, segment: &Segment) -> bool {
        let is = |slice: &Slice, at: usize| hour.slices.get(at) == Some(slice);
        self.held.len() == segment.holders.len()
            && self.layout.len() == segment.layout.len()
            && self.memory_mib == ground.memory_mib
            && self.held.iter().zip(&segment.holders).all(|(slice, holder)| is(slice, holder.slice))
            && self.layout.iter().zip(&segment.layout).all(|(slice, at)| is(slice, *at))
            && self.model == *ground.model
            && self.policy == *policy
    }
}

/// The device on which a tree stands.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// Its UUID.
    pub device: &'a Name,
    /// Its model.
    pub model: &'a Name,
    /// Its memory as stated; none: as the catalogue knows it.
    pub memory_mib: Option<u32>,
}

impl<'c> Forest<'c> {
    /// Nothing remembered yet.
    #[must_use]
    pub fn new(catalogue: &'c Catalogue) -> Self {
        Self {
            catalogue,
            resolved: HashMap::new(),
            boards: HashMap::new(),
            layouts: Layouts::default(),
            mixed: HashMap::new(),
            shapes: HashMap::new(),
            whole: HashMap::new(),
        }
    }

    /// The device's board in the catalogue.
    pub fn board(&mut self, model: &Name) -> Option<&'c Board> {
        if let Some(board) = self.boards.get(model) {
            return *board;
        }
        let board = self.catalogue.board(model);
        self.boards.insert(model.clone(), board);
        board
    }

    /// Divides the device among a segment's slices. A shape that the device had before costs a comparison.
    pub fn shares(
        &mut self,
        ground: Ground<'_>,
        policy: &Policy,
        hour: &HourSegments,
        segment: &Segment,
    ) -> Rc<Shares> {
        if let Some(mode) = plain(policy, hour, segment) {
            return self.whole(ground.model, mode);
        }
        // What was measured is never twice the same.
        if !segment.measures.is_empty() {
            return Rc::new(self.divide(ground, policy, hour, segment));
        }
        let known = self.shapes.get(ground.device).map(Vec::as_slice).unwrap_or_default();
        if let Some(shape) = known.iter().rev().find(|shape| shape.fits(ground, policy, hour, segment)) {
            return Rc::clone(&shape.shares);
        }
        let shares = Rc::new(self.divide(ground, policy, hour, segment));
        let slices = |all: &mut dyn Iterator<Item = usize>| -> Vec<Slice> {
            all.filter_map(|at| hour.slices.get(at).cloned()).collect()
        };
        let shape = Shape {
            model: ground.model.clone(),
            memory_mib: ground.memory_mib,
            policy: policy.clone(),
            layout: slices(&mut segment.layout.iter().copied()),
            held: slices(&mut segment.holders.iter().map(|holder| holder.slice)),
            shares: Rc::clone(&shares),
        };
        let known = self.shapes.entry(ground.device.clone()).or_default();
        if known.len() >= SHAPES_MAX {
            known.remove(0);
        }
        known.push(shape);
        shares
    }

    /// The undivided device, held in a mode or by nobody.
    fn whole(&mut self, model: &Name, mode: Option<SharingMode>) -> Rc<Shares> {
        if let Some(known) = self.whole.get(&(model.clone(), mode)) {
            return Rc::clone(known);
        }
        let (kind, spot) = match mode {
            Some(_) => (LeafKind::Used, Spot::Holder(0)),
            None => (LeafKind::Idle, Spot::Nowhere),
        };
        let leaf = Leaf {
            kind,
            spot,
            mode,
            sku: model.clone(),
            path: Vec::new(),
            share: Share::WHOLE,
            estimated: false,
            activity: None,
            utilization: None,
        };
        let shares = Rc::new(Shares { leaves: vec![leaf], doubts: Vec::new() });
        self.whole.insert((model.clone(), mode), Rc::clone(&shares));
        shares
    }

    fn divide(
        &mut self,
        ground: Ground<'_>,
        policy: &Policy,
        hour: &HourSegments,
        segment: &Segment,
    ) -> Shares {
        let board = self.board(ground.model);
        let memory_mib = ground.memory_mib.or_else(|| board.map(|board| board.memory_mib));
        let mut nodes: Vec<Node<'_, 'c>> = Vec::with_capacity(segment.holders.len().saturating_add(2));
        nodes.push(Node::root());
        let mut tree = Tree {
            forest: self,
            ground,
            board,
            memory_mib,
            policy,
            segment,
            nodes,
            shares: Shares::default(),
            is_assumed: false,
        };
        tree.plant(hour);
        tree.grow()
    }

    fn resolve(&mut self, model: &Name, slice: &Slice) -> Resolved<'c> {
        let SliceSize::Profile(profile) = &slice.size else { return Resolved::Plain };
        let key = (model.clone(), slice.mode, profile.clone());
        if let Some(resolved) = self.resolved.get(&key) {
            return *resolved;
        }
        let resolved = match slice.mode {
            SharingMode::Mig => self.resolve_mig(model, profile),
            SharingMode::Vgpu => self.vgpu(model, profile).map_or(Resolved::Unknown, Resolved::Vgpu),
            SharingMode::MigVgpu => match self.vgpu(model, profile) {
                Some(vgpu) => Resolved::Vgpu(vgpu),
                None => self.resolve_mig(model, profile),
            },
            SharingMode::Passthrough
            | SharingMode::Dedicated
            | SharingMode::TimeSlicing
            | SharingMode::Mps
            | SharingMode::Partition => Resolved::Unknown,
        };
        self.resolved.insert(key, resolved);
        resolved
    }

    /// A vGPU type, on a board of the memory that the type is for; on one that no catalogue knows, as its name says.
    fn vgpu(&self, model: &Name, profile: &Name) -> Option<&'c VgpuType> {
        let vgpu = self.catalogue.vgpu(profile.as_str())?;
        let board = self.catalogue.board(model);
        board.is_none_or(|board| board.memory_mib == vgpu.board_memory_mib).then_some(vgpu)
    }

    fn resolve_mig(&self, model: &Name, profile: &Name) -> Resolved<'c> {
        let Some((board, found)) = self.catalogue.mig_profile(model, profile.as_str()) else {
            return Resolved::Unknown;
        };
        let Some(at) = board.profiles.iter().position(|each| each.name == found.name) else {
            return Resolved::Unknown;
        };
        match ProfileName::parse(profile.as_str()).and_then(|name| name.compute_instance) {
            Some(slices) if slices < found.compute_slices => Resolved::Compute(slices, board, found),
            Some(slices) if slices > found.compute_slices => Resolved::Unknown,
            Some(_) | None => Resolved::Instance(board, found, at),
        }
    }

    /// What a GPU instance of that profile is on this board.
    fn instance(&self, model: &Name, profile: &Name) -> Resolved<'c> {
        match self.resolve_mig(model, profile) {
            instance @ Resolved::Instance(..) => instance,
            Resolved::Plain
            | Resolved::Compute(..)
            | Resolved::Vgpu(_)
            | Resolved::Unknown
            | Resolved::Lost => Resolved::Unknown,
        }
    }
}

/// What most segments are: the whole device held by one (its mode) or by nobody, and nothing to measure.
fn plain(policy: &Policy, hour: &HourSegments, segment: &Segment) -> Option<Option<SharingMode>> {
    if !segment.layout.is_empty() || !segment.measures.is_empty() {
        return None;
    }
    let holder = match segment.holders.as_slice() {
        [] => return Some(None),
        [holder] => holder,
        _ => return None,
    };
    let slice = hour.slices.get(holder.slice)?;
    let is_plain = slice.size == SliceSize::Whole
        && slice.id.is_none()
        && slice.parent.is_none()
        && !slice.is_powered_off
        && policy.basis(slice.mode) == Basis::Allocation;
    is_plain.then_some(Some(slice.mode))
}

/// A slice in the tree. The first node is the device.
#[derive(Debug)]
struct Node<'a, 'c> {
    slice: Option<(usize, &'a Slice)>,
    spot: Spot,
    /// Its placement, where any that speaks of it knows it.
    start: Option<u16>,
    resolved: Resolved<'c>,
    /// Its parent; none for the device, and for what hangs in no slice that exists.
    parent: Option<usize>,
    /// Who holds it, by their places in the segment.
    holders: Vec<usize>,
    /// Whether a VM that is powered off, and so holds nothing, is bound to it.
    has_powered_off: bool,
    has_children: bool,
    /// The profile of a GPU instance that another profile implies.
    implied: Option<Name>,
}

impl Node<'_, '_> {
    /// Whether somebody holds it, or something in it.
    const fn is_live(&self) -> bool {
        !self.holders.is_empty() || self.has_children
    }

    /// Whether it is there for a VM that is powered off, and for nobody else.
    const fn is_off(&self) -> bool {
        self.has_powered_off && self.holders.is_empty()
    }

    const fn root() -> Self {
        Self {
            slice: None,
            spot: Spot::Nowhere,
            start: None,
            resolved: Resolved::Plain,
            parent: None,
            holders: Vec::new(),
            has_powered_off: false,
            has_children: false,
            implied: None,
        }
    }
}

/// One child of a node while its share is worked out.
struct Item {
    /// None: a holder of the node itself.
    node: Option<usize>,
    holder: Option<usize>,
    weight: Share,
    basis: Basis,
    /// What was used of the parent; none: not to be asked, or not measured.
    used: Option<Share>,
    activity: Option<Share>,
    utilization: Option<Share>,
    estimated: bool,
}

struct Tree<'t, 'a, 'c> {
    forest: &'t mut Forest<'c>,
    ground: Ground<'a>,
    board: Option<&'c Board>,
    memory_mib: Option<u32>,
    policy: &'a Policy,
    segment: &'a Segment,
    nodes: Vec<Node<'a, 'c>>,
    shares: Shares,
    is_assumed: bool,
}

impl<'a, 'c> Tree<'_, 'a, 'c> {
    /// Makes the nodes: what is stated to exist, what is held, and the GPU instances that profiles imply.
    fn plant(&mut self, hour: &'a HourSegments) {
        let mut named: Vec<(&'a Name, usize)> = Vec::new();
        for (place, at) in self.segment.layout.iter().enumerate() {
            self.named_node(hour, *at, Spot::Layout(place), &mut named);
        }
        for (place, Holder { slice: at, evidence }) in self.segment.holders.iter().enumerate() {
            let Some(slice) = hour.slices.get(*at) else { continue };
            let spot = Spot::HolderSlice(place);
            let node = match slice.id {
                Some(_) => self.named_node(hour, *at, spot, &mut named),
                None => Some(self.node(*at, slice, spot)),
            };
            // Who holds a named slice twice at once holds it once.
            let holder = |at: &usize| self.segment.holders.get(*at).map(|holder| holder.evidence);
            let Some(node) = node.and_then(|node| self.nodes.get_mut(node)) else { continue };
            if slice.is_powered_off && !self.policy.reserves_powered_off {
                node.has_powered_off = true;
            } else if !node.holders.iter().any(|at| holder(at) == Some(*evidence)) {
                node.holders.push(place);
            }
        }
        for at in 1..self.nodes.len() {
            let Some((_, slice)) = self.nodes.get(at).and_then(|node| node.slice) else { continue };
            let parent = match &slice.parent {
                None => Some(0),
                Some(id) => named.iter().find(|(each, _)| *each == id).map(|(_, node)| *node),
            };
            // A slice is not inside itself; longer circles hang in nothing and are found lost.
            self.hang(at, parent.filter(|parent| *parent != at));
        }
        self.imply();
    }

    fn node(&mut self, at: usize, slice: &'a Slice, spot: Spot) -> usize {
        let resolved = self.forest.resolve(self.ground.model, slice);
        self.nodes.push(Node {
            slice: Some((at, slice)),
            spot,
            start: slice.start,
            resolved,
            parent: None,
            holders: Vec::new(),
            has_powered_off: false,
            has_children: false,
            implied: None,
        });
        self.nodes.len().saturating_sub(1)
    }

    /// The node of a slice that has an id. One id is one slice: who states it first says what it is, in the order of
    /// the layout and then of the holders; a placement counts from whomever it comes.
    fn named_node(
        &mut self,
        hour: &'a HourSegments,
        at: usize,
        spot: Spot,
        named: &mut Vec<(&'a Name, usize)>,
    ) -> Option<usize> {
        let slice = hour.slices.get(at)?;
        let id = slice.id.as_ref()?;
        if let Some((_, node)) = named.iter().find(|(each, _)| *each == id) {
            if let Some(there) = self.nodes.get_mut(*node) {
                there.start = there.start.or(slice.start);
            }
            return Some(*node);
        }
        let node = self.node(at, slice, spot);
        named.push((id, node));
        Some(node)
    }

    fn hang(&mut self, at: usize, parent: Option<usize>) {
        if let Some(node) = self.nodes.get_mut(at) {
            node.parent = parent;
        }
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(parent)) {
            parent.has_children = true;
        }
    }

    /// Compute instances and MIG-backed vGPUs that name no parent stand in GPU instances of their profile, as few of
    /// them as hold all.
    fn imply(&mut self) {
        /// A GPU instance that fills up: its profile, the capacity that is left, and what it is filled with.
        struct Implied {
            node: usize,
            left: u16,
            of: Name,
        }
        let mut open: Vec<Implied> = Vec::new();
        // The largest first: so the fewest instances hold them on every board that there is.
        let takes = |node: &Node<'_, '_>| match node.resolved {
            Resolved::Compute(slices, ..) => slices,
            Resolved::Plain
            | Resolved::Instance(..)
            | Resolved::Vgpu(_)
            | Resolved::Unknown
            | Resolved::Lost => 1,
        };
        let mut order: Vec<usize> = (1..self.nodes.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.nodes.get(*at).map(takes)));
        for at in order {
            let Some(node) = self.nodes.get(at).filter(|node| node.parent == Some(0)) else { continue };
            let (profile, takes, capacity, of) = match node.resolved {
                Resolved::Compute(slices, _, profile) => {
                    (profile.name.clone(), slices, profile.compute_slices, profile.name.clone())
                }
                Resolved::Vgpu(vgpu) => match &vgpu.gi_profile {
                    Some(profile) => (profile.clone(), 1, vgpu.max, vgpu.name.clone()),
                    None => continue,
                },
                Resolved::Plain | Resolved::Instance(..) | Resolved::Unknown | Resolved::Lost => continue,
            };
            let found = open.iter_mut().find(|each| each.of == of && each.left >= takes);
            let parent = match found {
                Some(implied) => {
                    implied.left = implied.left.saturating_sub(takes);
                    // Which of them share an instance is not known.
                    self.is_assumed = true;
                    implied.node
                }
                None => {
                    let resolved = self.forest.instance(self.ground.model, &profile);
                    let parent = self.nodes.len();
                    self.nodes.push(Node { resolved, implied: Some(profile), ..Node::root() });
                    self.hang(parent, Some(0));
                    open.push(Implied { node: parent, left: capacity.saturating_sub(takes), of });
                    parent
                }
            };
            self.hang(at, Some(parent));
        }
    }

    fn grow(mut self) -> Shares {
        self.find_lost();
        if let Some(reason) = self.illegal() {
            self.doubt(DoubtKind::IllegalLayout, &reason);
            let mode = Some(SharingMode::Mig);
            self.shares.leaves.clear();
            self.leaf(0, LeafKind::Unknown, mode, Share::WHOLE);
            return self.finish();
        }
        self.divide(0, &Share::WHOLE, 0);
        self.finish()
    }

    fn finish(mut self) -> Shares {
        if self.is_assumed {
            self.doubt(DoubtKind::LayoutAssumed, self.ground.model.as_str());
        }
        self.shares.doubts.sort_unstable();
        self.shares.doubts.dedup();
        self.shares
    }

    fn doubt(&mut self, kind: DoubtKind, about: &str) {
        let mut about = about.to_owned();
        while about.len() > super::ids::NAME_BYTES_MAX {
            about.pop();
        }
        let about = Name::parse(&about).unwrap_or_else(|_| self.ground.model.clone());
        self.shares.doubts.push((kind, about));
    }

    /// What hangs in nothing: each such slice's time is unknown, and so is what the others leave of the device.
    fn find_lost(&mut self) {
        let is_lost = |start: usize| {
            let mut at = start;
            for _ in 0..DEPTH_MAX {
                match self.nodes.get(at).and_then(|node| node.parent) {
                    Some(0) => return false,
                    Some(parent) => at = parent,
                    None => return true,
                }
            }
            true
        };
        let lost: Vec<usize> = (1..self.nodes.len()).filter(|at| is_lost(*at)).collect();
        for at in lost {
            let id =
                self.nodes.get(at).and_then(|node| node.slice).and_then(|(_, slice)| slice.parent.clone());
            if let Some(id) = id {
                self.doubt(DoubtKind::LostParent, id.as_str());
            }
            if let Some(node) = self.nodes.get_mut(at) {
                node.parent = Some(0);
                node.resolved = Resolved::Lost;
                node.has_children = false;
            }
        }
    }

    fn children(&self, of: usize) -> impl Iterator<Item = (usize, &Node<'a, 'c>)> {
        self.nodes.iter().enumerate().skip(1).filter(move |(_, node)| node.parent == Some(of))
    }

    /// The GPU instances on the device, with their board.
    fn instances(&self) -> (Option<&'c MigBoard>, Vec<Instance>) {
        let mut board = None;
        let mut instances = Vec::new();
        for (_, node) in self.children(0) {
            if let Resolved::Instance(of, _, profile) = node.resolved {
                board = Some(of);
                instances.push(Instance { profile, start: node.start });
            }
        }
        (board, instances)
    }

    /// Why the GPU instances on the device cannot be.
    fn illegal(&mut self) -> Option<String> {
        let (board, instances) = self.instances();
        if instances.is_empty() {
            return None;
        }
        let (key, weighting) = (self.board.map(|board| &board.key)?, self.policy.weighting);
        let examined = self.forest.layouts.examine((key, board?), instances, weighting);
        examined.as_ref().err().map(ToString::to_string)
    }

    /// A leaf of a node where no slice exists.
    fn leaf(&mut self, at: usize, kind: LeafKind, mode: Option<SharingMode>, share: Share) {
        if share.is_none() {
            return;
        }
        self.shares.leaves.push(Leaf {
            kind,
            spot: Spot::Nowhere,
            mode,
            sku: self.ground.model.clone(),
            path: self.path(at),
            share,
            estimated: false,
            activity: None,
            utilization: None,
        });
    }

    /// Divides a node's share among its children and holders.
    fn divide(&mut self, at: usize, share: &Share, depth: usize) {
        let mut items: Vec<Item> = Vec::new();
        let mut unknown: Option<SharingMode> = None;
        let mut unknown_ids: Vec<Name> = Vec::new();
        let children: Vec<usize> = self.children(at).map(|(child, _)| child).collect();
        let likes = self.likes(&children);
        for child in &children {
            match self.item(at, *child, &likes) {
                Some(item) => items.push(item),
                None => {
                    unknown = unknown.or(self.mode_of(*child));
                    let slice = self.nodes.get(*child).and_then(|node| node.slice);
                    unknown_ids.extend(slice.and_then(|(_, slice)| slice.id.clone()));
                }
            }
        }
        let holders = self.nodes.get(at).map(|node| node.holders.clone()).unwrap_or_default();
        if at != 0 {
            items.extend(holders.into_iter().map(|holder| Item {
                node: None,
                holder: Some(holder),
                weight: Share::WHOLE,
                basis: Basis::Allocation,
                used: None,
                activity: None,
                utilization: None,
                estimated: false,
            }));
        }
        // What is bound to a VM that is off takes nothing from those that run; it stands in what they leave.
        let off: Vec<bool> = items
            .iter()
            .map(|item| item.node.and_then(|node| self.nodes.get(node)).is_some_and(Node::is_off))
            .collect();
        let weights: Vec<Share> = items
            .iter()
            .map(|item| match (&item.used, item.basis) {
                (Some(used), Basis::Larger) => item.weight.at_least(*used),
                (Some(_) | None, Basis::Allocation | Basis::Usage) | (None, Basis::Larger) => item.weight,
            })
            .collect();
        let normalised = normalise_running(&weights, &off);
        let used = used_shares(&items, &normalised.shares);
        let mut rest = normalised.rest;
        if let Some(used) = &used {
            rest = rest.minus(&used.beyond_held);
        }
        for (number, item) in items.iter().enumerate() {
            let Some(allocated) = normalised.shares.get(number) else { continue };
            match used.as_ref().and_then(|used| used.of.get(number)).and_then(Option::as_ref) {
                Some((taken, idle)) => {
                    self.held(at, item, LeafKind::Used, taken.of(share), share);
                    self.held(at, item, LeafKind::HeldUnused, idle.of(share), share);
                }
                None => self.child(at, item, allocated.of(share), share, depth),
            }
        }
        let leaves = self.shares.leaves.len();
        self.leave(at, &children, unknown, rest, share, items.is_empty());
        // A state of a slice whose size is not known concerns what is unknown with it.
        if let (Some(leaf), true) = (self.shares.leaves.get_mut(leaves), unknown.is_some()) {
            leaf.path.extend(unknown_ids);
        }
    }

    /// How many siblings of each kind share by their number.
    fn likes(&self, children: &[usize]) -> Likes {
        let mut likes = Likes::default();
        for node in children.iter().filter_map(|child| self.nodes.get(*child)) {
            let Some((_, slice)) = node.slice else { continue };
            if slice.size == SliceSize::Even {
                likes.even = likes.even.saturating_add(1);
                likes.even_held = likes.even_held.saturating_add(u32::from(node.is_live()));
            }
            if matches!(node.resolved, Resolved::Vgpu(_)) && !node.is_off() {
                likes.vgpus = likes.vgpus.saturating_add(1);
            }
        }
        likes
    }

    fn mode_of(&self, at: usize) -> Option<SharingMode> {
        let node = self.nodes.get(at)?;
        node.slice.map(|(_, slice)| slice.mode).or(Some(SharingMode::Mig))
    }

    /// A child with its weight; none where nothing is known of its size.
    fn item(&mut self, parent: usize, at: usize, likes: &Likes) -> Option<Item> {
        let node = self.nodes.get(at)?;
        let (resolved, slice, mode) = (node.resolved, node.slice, self.mode_of(at)?);
        let is_leaf = !node.has_children && node.holders.len() == 1;
        let holder = node.holders.first().copied();
        let of = (slice.map(|(_, slice)| slice), node.is_live(), node.is_off());
        let Some(size) = self.size(parent, resolved, of, likes) else {
            let implied = self.nodes.get(at).and_then(|node| node.implied.clone());
            let profile = match (slice.map(|(_, slice)| &slice.size), implied) {
                (Some(SliceSize::Profile(profile)), _) => profile.clone(),
                (_, Some(profile)) => profile,
                (Some(_) | None, None) => self.ground.model.clone(),
            };
            if !matches!(resolved, Resolved::Lost) {
                self.doubt(DoubtKind::UnknownProfile, profile.as_str());
            }
            return None;
        };
        let (compute, memory, mut estimated) = size;
        let basis = if is_leaf { self.policy.basis(mode) } else { Basis::Allocation };
        let weight = self.policy.weighting.weigh(&compute, &memory);
        let (mut used, mut activity) = (None, None);
        let held = holder.and_then(|at| self.segment.holders.get(at));
        if let Some(held) = held.filter(|_| is_leaf) {
            let is_named = slice.is_some_and(|(_, slice)| slice.id.is_some());
            let measure = self.measure(held.slice, held.evidence, is_named);
            let measured = measure.map(|measure| self.measured(parent, resolved, &compute, &measure));
            let (active, held) = measured.unwrap_or((None, None));
            if basis != Basis::Allocation {
                estimated |= active.is_none() || held.is_none();
                let (active, held) = (active.unwrap_or(compute), held.unwrap_or(memory));
                used = Some(self.policy.weighting.weigh(&active, &held));
            }
            activity = active;
        }
        let utilization = activity.as_ref().map(|activity| activity.over(&compute));
        Some(Item { node: Some(at), holder, weight, basis, used, activity, utilization, estimated })
    }

    /// Compute and memory share of a child of `parent`, and whether one stands in for what is not known.
    fn size(
        &self,
        parent: usize,
        resolved: Resolved<'c>,
        (slice, is_live, is_off): (Option<&Slice>, bool, bool),
        likes: &Likes,
    ) -> Option<(Share, Share, bool)> {
        let both = |share: Share| Some((share, share, false));
        match resolved {
            Resolved::Unknown | Resolved::Lost => None,
            Resolved::Instance(board, profile, _) => {
                if parent == 0 {
                    let (compute, memory) = layout::shares(board, profile);
                    return Some((compute, memory, false));
                }
                // A compute instance with all of its GPU instance has that one's name.
                match self.nodes.get(parent).map(|node| node.resolved) {
                    Some(Resolved::Instance(_, of, _)) if of.name == profile.name => both(Share::WHOLE),
                    Some(_) | None => None,
                }
            }
            Resolved::Compute(slices, _, profile) => {
                let is_in = |of: &MigProfile| of.compute_slices == profile.compute_slices;
                match self.nodes.get(parent).map(|node| node.resolved) {
                    Some(Resolved::Instance(_, of, _)) if is_in(of) => {
                        both(Share::part_of(slices.into(), profile.compute_slices.into()))
                    }
                    Some(_) | None => None,
                }
            }
            Resolved::Vgpu(vgpu) => {
                let equal = slice.and_then(|slice| slice.scheduler) == Some(VgpuScheduler::EqualShare);
                if self.policy.entitled && equal {
                    // Among those that run; what is off has no turn.
                    return both(if is_off { Share::NONE } else { Share::one_of(likes.vgpus) });
                }
                let memory_mib = match parent {
                    0 => u64::from(vgpu.board_memory_mib),
                    _ => self.memory_of(parent).unwrap_or_default(),
                };
                let all = u64::from(vgpu.framebuffer_mib).saturating_mul(vgpu.max.into());
                let memory = Share::part_of(vgpu.framebuffer_mib.into(), memory_mib.max(all));
                Some((Share::one_of(vgpu.max.into()), memory, false))
            }
            Resolved::Plain => match slice.map(|slice| &slice.size)? {
                SliceSize::Whole | SliceSize::Devices(_) => both(Share::WHOLE),
                SliceSize::Declared(ppm) => both(Share::from_ppm(*ppm)),
                SliceSize::OneOf(count) => both(Share::one_of(*count)),
                SliceSize::Even => match likes.even_held {
                    0 => both(Share::one_of(likes.even)),
                    held => both(if is_live { Share::one_of(held) } else { Share::NONE }),
                },
                SliceSize::Threads { percent, memory_mib } => {
                    let compute = Share::part_of((*percent).into(), 100);
                    let memory = match (memory_mib, self.memory_of(parent)) {
                        (Some(limit), Some(memory)) => Some(Share::part_of((*limit).into(), memory)),
                        (Some(_) | None, _) => None,
                    };
                    let estimated = memory_mib.is_some() && memory.is_none();
                    Some((compute, memory.unwrap_or(compute), estimated))
                }
                SliceSize::Profile(_) => None,
            },
        }
    }

    /// The memory of a node in MiB, where it is known.
    fn memory_of(&self, at: usize) -> Option<u64> {
        let Some(node) = self.nodes.get(at).filter(|_| at != 0) else {
            return self.memory_mib.map(u64::from);
        };
        let of_instance = |board: &MigBoard, profile: &MigProfile| match profile.memory_mib {
            Some(mib) => Some(u64::from(mib)),
            None => {
                let all = u64::from(self.memory_mib?).checked_mul(profile.memory_slots.into())?;
                all.checked_div(board.memory_slots.into())
            }
        };
        match node.resolved {
            Resolved::Instance(board, profile, _) => of_instance(board, profile),
            Resolved::Compute(slices, board, profile) => {
                let all = of_instance(board, profile)?.checked_mul(slices.into())?;
                all.checked_div(profile.compute_slices.into())
            }
            Resolved::Vgpu(vgpu) => Some(vgpu.framebuffer_mib.into()),
            Resolved::Plain if node.slice.is_some_and(|(_, slice)| slice.size == SliceSize::Whole) => {
                // What hangs in nothing has no memory, and a circle no end.
                node.parent.filter(|parent| *parent == 0).and_then(|parent| self.memory_of(parent))
            }
            Resolved::Plain | Resolved::Unknown | Resolved::Lost => None,
        }
    }

    /// What was measured of a slice's only holder. Of several slices that are alike to the letter and have one holder,
    /// each has its part of what was measured of them together.
    fn measure(&self, slice: usize, evidence: usize, is_named: bool) -> Option<Measure> {
        let of = |seen: Option<usize>| {
            self.segment.measures.iter().find(|each| (each.slice, each.evidence) == (slice, seen)).copied()
        };
        let alike = |holder: &&Holder| (holder.slice, holder.evidence) == (slice, evidence);
        let of_slice = |holder: &&Holder| holder.slice == slice;
        let holders = || self.segment.holders.iter();
        // A slice with an id is there once, however often it is said who holds it.
        if is_named {
            return of(Some(evidence)).or_else(|| of(None));
        }
        let (measure, among) = match of(Some(evidence)) {
            Some(measure) => (measure, holders().filter(alike).count()),
            None => (of(None)?, holders().filter(of_slice).count()),
        };
        let among = i64::try_from(among).unwrap_or(i64::MAX).max(1);
        let part = |all: Option<i64>| all.map(|all| all.div_euclid(among));
        Some(Measure {
            active_nanos: part(measure.active_nanos),
            memory_byte_seconds: part(measure.memory_byte_seconds),
            ..measure
        })
    }

    /// Activity and memory held as measured shares of the parent.
    fn measured(
        &self,
        parent: usize,
        resolved: Resolved<'c>,
        compute: &Share,
        measure: &Measure,
    ) -> (Option<Share>, Option<Share>) {
        let nanos = i128::from(self.segment.span.nanos());
        let active = measure.active_nanos.map(|active| {
            let activity = Share::measured(active.into(), nanos);
            match resolved {
                // Of the instance itself, so that of its parent it is as much smaller as the instance is.
                Resolved::Instance(..) | Resolved::Compute(..) => activity.of(compute),
                Resolved::Plain | Resolved::Vgpu(_) | Resolved::Unknown | Resolved::Lost => activity,
            }
        });
        let held = measure.memory_byte_seconds.and_then(|held| {
            let bytes = i128::from(self.memory_of(parent)?).checked_mul(BYTES_PER_MIB)?;
            Some(Share::measured(i128::from(held).checked_mul(NANOS_PER_SECOND)?, bytes.checked_mul(nanos)?))
        });
        (active, held)
    }

    /// A child by allocation: a leaf, or a node to divide further.
    fn child(&mut self, parent: usize, item: &Item, share: Share, of_parent: &Share, depth: usize) {
        let Some(at) = item.node else {
            self.held(parent, item, LeafKind::Used, share, of_parent);
            return;
        };
        let Some(node) = self.nodes.get(at) else { return };
        let (count, has_children, spot) = (node.holders.len(), node.has_children, node.spot);
        // Circles were cut before; the bound says so once more.
        if (has_children || count > 1) && depth < self.nodes.len() {
            self.divide(at, &share, depth.saturating_add(1));
        } else if count == 1 {
            self.held(parent, item, LeafKind::Used, share, of_parent);
        } else {
            if share.is_none() {
                return;
            }
            let (mode, sku, path) = (self.mode_of(at), self.sku(at), self.path(at));
            let (kind, estimated, activity, utilization) = (LeafKind::Idle, false, None, None);
            self.shares.leaves.push(Leaf {
                kind,
                spot,
                mode,
                sku,
                path,
                share,
                estimated,
                activity,
                utilization,
            });
        }
    }

    /// A leaf that is held.
    fn held(&mut self, parent: usize, item: &Item, kind: LeafKind, share: Share, of_parent: &Share) {
        let at = item.node.unwrap_or(parent);
        if share.is_none() && kind != LeafKind::Used {
            return;
        }
        let (mode, sku, path) = (self.mode_of(at), self.sku(at), self.path(at));
        self.shares.leaves.push(Leaf {
            kind,
            spot: item.holder.map_or(Spot::Nowhere, Spot::Holder),
            mode,
            sku,
            path,
            share,
            estimated: item.estimated,
            activity: match kind {
                LeafKind::Used => item.activity.as_ref().map(|active| active.of(of_parent)),
                LeafKind::HeldUnused | LeafKind::Idle | LeafKind::Stranded | LeafKind::Unknown => None,
            },
            utilization: item.utilization.filter(|_| kind == LeafKind::Used),
        });
    }

    /// The ids of a slice and of those around it.
    fn path(&self, at: usize) -> Vec<Name> {
        let mut path = Vec::new();
        let mut next = Some(at);
        while let Some(node) = next.filter(|at| *at != 0).and_then(|at| self.nodes.get(at)) {
            path.extend(node.slice.and_then(|(_, slice)| slice.id.clone()));
            next = node.parent;
            if path.len() > self.nodes.len() {
                break;
            }
        }
        path
    }

    /// What is sold at a node: the model, and below it the profile, or the kind of part.
    fn sku(&self, at: usize) -> Name {
        let model = self.ground.model;
        let named = |text: String| Name::parse(&text).unwrap_or_else(|_| model.clone());
        let Some(node) = self.nodes.get(at) else { return model.clone() };
        let profile = |node: &Node<'a, 'c>| match (node.resolved, node.slice.map(|(_, slice)| &slice.size)) {
            (Resolved::Compute(slices, _, profile), _) => {
                Name::parse(&format!("{slices}c.{}", profile.name)).ok()
            }
            (Resolved::Instance(_, profile, _), _) => Some(profile.name.clone()),
            (Resolved::Vgpu(vgpu), _) => Some(vgpu.name.clone()),
            (Resolved::Plain | Resolved::Unknown | Resolved::Lost, Some(SliceSize::Profile(profile))) => {
                Some(profile.clone())
            }
            (Resolved::Plain | Resolved::Unknown | Resolved::Lost, Some(_) | None) => None,
        };
        if let Some(profile) = profile(node) {
            return named(format!("{model}:{profile}"));
        }
        let word = match node.slice.map(|(_, slice)| (&slice.size, slice.mode)) {
            None | Some((SliceSize::Whole | SliceSize::Devices(_), _)) => return model.clone(),
            Some((SliceSize::Declared(_) | SliceSize::Profile(_), _)) => "share",
            Some((SliceSize::OneOf(_) | SliceSize::Even, SharingMode::Partition)) => "partition",
            Some((SliceSize::OneOf(_) | SliceSize::Even, _)) => "replica",
            Some((SliceSize::Threads { .. }, _)) => "mps",
        };
        let around = node.parent.filter(|parent| *parent != 0).and_then(|parent| self.nodes.get(parent));
        match around.and_then(profile) {
            Some(profile) => named(format!("{model}:{profile}/{word}")),
            None => named(format!("{model}:{word}")),
        }
    }

    /// What the children leave of a node: idle as far as something can be added, stranded beyond.
    fn leave(
        &mut self,
        at: usize,
        children: &[usize],
        unknown: Option<SharingMode>,
        rest: Share,
        share: &Share,
        is_empty: bool,
    ) {
        if rest.is_none() {
            return;
        }
        if unknown.is_some() {
            self.leaf(at, LeafKind::Unknown, unknown, rest.of(share));
            return;
        }
        if is_empty {
            self.leaf(at, LeafKind::Idle, None, rest.of(share));
            return;
        }
        match self.addable(at, children) {
            // A board whose layout is of no fixed sizes: all of the rest can be sold.
            None => self.leaf(at, LeafKind::Idle, None, rest.of(share)),
            Some((addable, mode)) => {
                let idle = addable.at_most(rest);
                let stranded = rest.minus(&idle);
                self.leaf(at, LeafKind::Idle, Some(mode), idle.of(share));
                self.leaf(at, LeafKind::Stranded, Some(mode), stranded.of(share));
            }
        }
    }

    /// The most that can be added to a node, where that follows from a layout.
    fn addable(&mut self, at: usize, children: &[usize]) -> Option<(Share, SharingMode)> {
        let all = |kind: fn(&Resolved<'_>) -> bool| {
            let mut nodes = children.iter().filter_map(|child| self.nodes.get(*child));
            nodes.all(|node| kind(&node.resolved))
        };
        if at == 0 && all(|resolved| matches!(resolved, Resolved::Instance(..))) {
            let (board, instances) = self.instances();
            let key = &self.board?.key;
            let examined = self.forest.layouts.examine((key, board?), instances, self.policy.weighting);
            let room = examined.as_ref().ok()?;
            self.is_assumed |= room.is_assumed;
            return Some((room.addable, SharingMode::Mig));
        }
        if all(|resolved| matches!(resolved, Resolved::Vgpu(_))) {
            return self.addable_vgpus(at, children);
        }
        None
    }

    /// Equal size: more of the running type. Mixed sizes: the heaviest set of types that the framebuffer holds.
    fn addable_vgpus(&mut self, at: usize, children: &[usize]) -> Option<(Share, SharingMode)> {
        let running: Vec<&'c VgpuType> = children
            .iter()
            .filter_map(|child| self.nodes.get(*child))
            .filter(|node| !node.is_off())
            .filter_map(|node| match node.resolved {
                Resolved::Vgpu(vgpu) => Some(vgpu),
                Resolved::Plain
                | Resolved::Instance(..)
                | Resolved::Compute(..)
                | Resolved::Unknown
                | Resolved::Lost => None,
            })
            .collect();
        let first = running.first()?;
        let mode = if first.gi_profile.is_some() { SharingMode::MigVgpu } else { SharingMode::Vgpu };
        let is_equal =
            |vgpu: &&&VgpuType| (vgpu.framebuffer_mib, vgpu.max) == (first.framebuffer_mib, first.max);
        let parent_mib =
            if at == 0 { first.board_memory_mib.into() } else { self.memory_of(at).unwrap_or_default() };
        let weighting = self.policy.weighting;
        if running.iter().all(|vgpu| is_equal(&vgpu)) {
            let more = usize::from(first.max).saturating_sub(running.len());
            let more = u64::try_from(more).unwrap_or_default();
            let each = vgpu_weight(first, parent_mib, weighting);
            let more = Share::new(more.into(), 1).unwrap_or(Share::NONE);
            return Some((each.of(&more), mode));
        }
        // Which placement ids are free is in no table: what the framebuffer allows is taken.
        self.is_assumed = true;
        let mut names: Vec<Name> = running.iter().map(|vgpu| vgpu.name.clone()).collect();
        names.sort_unstable();
        let key = (weighting, parent_mib, names);
        if let Some(known) = self.forest.mixed.get(&key) {
            return Some((*known, mode));
        }
        let catalogue = self.forest.catalogue;
        let types: Vec<&VgpuType> = match &first.gi_profile {
            None => catalogue.vgpu_types_of(&first.board_code).collect(),
            Some(profile) => {
                let here = |vgpu: &&VgpuType| {
                    vgpu.board_code == first.board_code && vgpu.gi_profile.as_ref() == Some(profile)
                };
                catalogue.vgpu_types().filter(here).collect()
            }
        };
        let best = heaviest_mix(parent_mib, &running, &types, weighting);
        self.forest.mixed.insert(key, best);
        Some((best, mode))
    }
}

/// Normalises those that run among themselves; those that are off among what that leaves.
fn normalise_running(weights: &[Share], off: &[bool]) -> Normalised {
    if !off.contains(&true) {
        return normalise(weights);
    }
    let of = |is_off: bool| -> Vec<Share> {
        weights
            .iter()
            .zip(off)
            .map(|(weight, off)| if *off == is_off { *weight } else { Share::NONE })
            .collect()
    };
    let running = normalise(&of(false));
    let waiting = of(true);
    let sum = Share::sum(&waiting);
    let fits = sum <= running.rest;
    let shares = running
        .shares
        .iter()
        .zip(&waiting)
        .map(|(running_share, waiting)| match waiting.is_none() {
            true => *running_share,
            false if fits => *waiting,
            false => waiting.of(&running.rest).over(&sum),
        })
        .collect();
    let rest = if fits { running.rest.minus(&sum) } else { Share::NONE };
    Normalised { shares, rest }
}

/// How many siblings of a kind there are.
#[derive(Debug, Clone, Copy, Default)]
struct Likes {
    even: u32,
    /// Of these, how many are held.
    even_held: u32,
    /// Running ones.
    vgpus: u32,
}

fn vgpu_weight(vgpu: &VgpuType, parent_mib: u64, weighting: Weighting) -> Share {
    let all = u64::from(vgpu.framebuffer_mib).saturating_mul(vgpu.max.into());
    let memory = Share::part_of(vgpu.framebuffer_mib.into(), parent_mib.max(all));
    weighting.weigh(&Share::one_of(vgpu.max.into()), &memory)
}

/// The heaviest set of further vGPUs on a board of mixed sizes: each type as often as its mixed-size maximum allows,
/// all within the framebuffer that is left.
fn heaviest_mix(parent_mib: u64, running: &[&VgpuType], types: &[&VgpuType], weighting: Weighting) -> Share {
    let units = |mib: u32| usize::try_from(mib.div_ceil(FRAMEBUFFER_UNIT_MIB)).unwrap_or(usize::MAX);
    let taken = running.iter().fold(0_u64, |sum, vgpu| sum.saturating_add(vgpu.framebuffer_mib.into()));
    let free = parent_mib.saturating_sub(taken).div_euclid(FRAMEBUFFER_UNIT_MIB.into());
    let room = usize::try_from(free).unwrap_or(0).min(FRAMEBUFFER_UNITS_MAX);
    let mut best: Vec<Share> = vec![Share::NONE; room.saturating_add(1)];
    for vgpu in types {
        let there = running.iter().filter(|each| each.name == vgpu.name).count();
        // Where sizes are mixed and no table says how far, the board's maximum is the only bound known.
        let limit = usize::from(vgpu.max_mixed.unwrap_or(vgpu.max)).saturating_sub(there);
        let (size, weight) = (units(vgpu.framebuffer_mib), vgpu_weight(vgpu, parent_mib, weighting));
        for _ in 0..limit.min(room.checked_div(size).unwrap_or(0)) {
            for filled in (size..=room).rev() {
                let Some(with) = best.get(filled.saturating_sub(size)).map(|rest| rest.plus(&weight)) else {
                    continue;
                };
                if let Some(slot) = best.get_mut(filled).filter(|slot| **slot < with) {
                    *slot = with;
                }
            }
        }
    }
    best.pop().unwrap_or(Share::NONE)
}

/// What was used of a node's children, where the book asks for it.
struct Used {
    /// For each item under a usage basis: what it used, and what it held beside that.
    of: Vec<Option<(Share, Share)>>,
    /// Use beyond what all of them hold: it came out of what nobody holds.
    beyond_held: Share,
}

/// Divides what items under a usage basis hold into what was used and what was not.
///
/// Use is divided by its sum where it is more than the others leave. Held and unused is what they hold together
/// minus what they used together, in the proportion in which each stayed below what it holds: a neighbour who used
/// more than it holds used what another left.
fn used_shares(items: &[Item], allocated: &[Share]) -> Option<Used> {
    let asked = |item: &Item| item.basis == Basis::Usage && item.used.is_some();
    if !items.iter().any(asked) {
        return None;
    }
    let both = || items.iter().zip(allocated);
    let held = Share::sum(both().filter(|(item, _)| asked(item)).map(|(_, share)| share));
    let others = Share::sum(both().filter(|(item, _)| !asked(item)).map(|(_, share)| share));
    let cap = Share::WHOLE.minus(&others);
    let sum = Share::sum(items.iter().filter(|item| asked(item)).filter_map(|item| item.used.as_ref()));
    let used: Vec<Option<Share>> = items
        .iter()
        .map(|item| {
            let used = item.used.filter(|_| asked(item))?;
            Some(if sum <= cap { used } else { used.of(&cap).over(&sum) })
        })
        .collect();
    let sum = sum.at_most(cap);
    let unused = held.minus(&sum);
    let below: Vec<Option<Share>> =
        used.iter().zip(allocated).map(|(used, share)| Some(share.minus(used.as_ref()?))).collect();
    let deficit = Share::sum(below.iter().flatten());
    let of =
        used.into_iter().zip(below).map(|(used, below)| Some((used?, below?.of(&unused).over(&deficit))));
    Some(Used { of: of.collect(), beyond_held: sum.minus(&held) })
}

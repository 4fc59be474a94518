//! What sources report: slices, evidence, holdings and coverage; and the algebra of spans.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::device::{SharingMode, UnknownWord};
use super::ids::Name;
use super::period::Span;
use super::units::Instant;

/// Who reports, in the order of trust: the first that speaks for a device and instant is believed.
///
/// Source: DESIGN §3, "by each rank".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceRank {
    /// An agent on the host that holds the device.
    HostAgent,
    /// A hypervisor's inventory.
    Hypervisor,
    /// A kubelet's or Slurm's own record.
    Scheduler,
    /// A scraped metrics endpoint.
    Scrape,
    /// An agent in a guest: use only.
    GuestAgent,
    /// A history imported by a person.
    Import,
}

impl SourceRank {
    /// All ranks, the most trusted first.
    pub const ALL: [Self; 6] =
        [Self::HostAgent, Self::Hypervisor, Self::Scheduler, Self::Scrape, Self::GuestAgent, Self::Import];

    /// The rank's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::HostAgent => "host_agent",
            Self::Hypervisor => "hypervisor",
            Self::Scheduler => "scheduler",
            Self::Scrape => "scrape",
            Self::GuestAgent => "guest_agent",
            Self::Import => "import",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the ranks.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|rank| rank.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// A sender of batches with its rank. Ordered by trust: rank first, then the smallest sender.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// How far it is trusted.
    pub rank: SourceRank,
    /// Its natural id; an import's is its source name.
    pub sender: Name,
}

/// How large a slice is of its parent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceSize {
    /// All of it.
    Whole,
    /// A declared share for compute and memory alike, in millionths; 1 to 1,000,000.
    Declared(u32),
    /// What the profile of that name says. A profile that no catalogue knows makes the slice's time `unknown`.
    Profile(Name),
    /// One of so many equal parts: declared replicas, partitions; at least 1.
    OneOf(u32),
    /// As much as each of its like that lives at the same time: replicas of which no number was declared.
    Even,
    /// What an MPS client may use.
    Threads {
        /// Its active thread percentage, 1 to 100.
        percent: u32,
        /// Its pinned device memory limit in MiB; none: the memory share is that of the threads.
        memory_mib: Option<u32>,
    },
    /// So many whole devices of a pool, at least 1. Of one device it is all.
    Devices(u32),
}

/// Most devices of a pool that one line may hold.
pub const POOL_DEVICES_MAX: u32 = 1_000_000;

/// The time-slicing policy of vGPUs on one board. Source: NVIDIA Virtual GPU Software User Guide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VgpuScheduler {
    /// Whoever has work runs.
    BestEffort,
    /// Each running vGPU has an equal share of time.
    EqualShare,
    /// Each vGPU has 1 ÷ max(type) of time, whatever else runs.
    FixedShare,
}

impl VgpuScheduler {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::BestEffort, Self::EqualShare, Self::FixedShare];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::BestEffort => "best_effort",
            Self::EqualShare => "equal_share",
            Self::FixedShare => "fixed_share",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the policies.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|each| each.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// A part of a device that one consumer can hold. Slices nest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The device's UUID.
    pub device: Name,
    /// How the device is shared for this slice.
    pub mode: SharingMode,
    /// How large it is of its parent.
    pub size: SliceSize,
    /// What its source calls it (a MIG UUID, a vGPU's UUID); unlike any other of the device at one time. None: each
    /// holder has one of its own, which exists while it is held.
    pub id: Option<Name>,
    /// The id of the slice inside which it lies; none: the device, or for a compute instance or a MIG-backed vGPU a
    /// GPU instance that its profile implies.
    pub parent: Option<Name>,
    /// A GPU instance's first memory slot; none: placement unreadable.
    pub start: Option<u16>,
    /// A vGPU's scheduler, where it is known.
    pub scheduler: Option<VgpuScheduler>,
    /// Whether its VM is bound to it and powered off.
    pub is_powered_off: bool,
}

impl Slice {
    /// A slice without a name of its own, directly on the device.
    #[must_use]
    pub const fn plain(device: Name, mode: SharingMode, size: SliceSize) -> Self {
        Self {
            device,
            mode,
            size,
            id: None,
            parent: None,
            start: None,
            scheduler: None,
            is_powered_off: false,
        }
    }
    /// The slice's path below the device: what kind of part it is, in words that sort.
    #[must_use]
    pub fn path(&self) -> String {
        match &self.size {
            SliceSize::Whole => "device".to_owned(),
            SliceSize::Declared(ppm) => format!("{}/{ppm}ppm", self.mode.word()),
            SliceSize::Profile(profile) => format!("{}/{profile}", self.mode.word()),
            SliceSize::OneOf(count) => format!("{}/1of{count}", self.mode.word()),
            SliceSize::Even => format!("{}/even", self.mode.word()),
            SliceSize::Threads { percent, .. } => format!("{}/{percent}percent", self.mode.word()),
            SliceSize::Devices(count) => format!("{count}devices"),
        }
    }
}

/// What a source may have seen of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvidenceField {
    /// The workload as an import names it.
    Workload,
    /// A tenant that an import declares; agents may not.
    Tenant,
    /// A project that an import declares; agents may not.
    Project,
    /// A Kubernetes namespace.
    Namespace,
    /// A pod's name.
    Pod,
    /// A VM's UUID.
    Vm,
    /// A scheduler's job number.
    Job,
    /// A scheduler's account.
    Account,
    /// A user's name on the host.
    User,
    /// A control group's path.
    Cgroup,
    /// A process's command name.
    Process,
}

impl EvidenceField {
    /// All fields.
    pub const ALL: [Self; 11] = [
        Self::Workload,
        Self::Tenant,
        Self::Project,
        Self::Namespace,
        Self::Pod,
        Self::Vm,
        Self::Job,
        Self::Account,
        Self::User,
        Self::Cgroup,
        Self::Process,
    ];

    /// The field's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Workload => "workload",
            Self::Tenant => "tenant",
            Self::Project => "project",
            Self::Namespace => "namespace",
            Self::Pod => "pod",
            Self::Vm => "vm",
            Self::Job => "job",
            Self::Account => "account",
            Self::User => "user",
            Self::Cgroup => "cgroup",
            Self::Process => "process",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the fields.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|field| field.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }

    /// Whether the field names who pays: only an import may carry it.
    #[must_use]
    pub fn is_declaration(self) -> bool {
        matches!(self, Self::Tenant | Self::Project)
    }
}

/// What a source saw of a holder. A source never names a tenant: mapping rules do.
/// Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Evidence(Arc<BTreeMap<EvidenceField, Name>>);

impl Evidence {
    /// The value of a field.
    #[must_use]
    pub fn get(&self, field: EvidenceField) -> Option<&Name> {
        self.0.get(&field)
    }

    /// All fields that are there, in order.
    pub fn iter(&self) -> impl Iterator<Item = (EvidenceField, &Name)> {
        self.0.iter().map(|(field, value)| (*field, value))
    }

    /// Where the fields are kept: equal for clones of one evidence. To find it quickly, never to order or tell it by.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether nothing was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name under which reports show the holder: the most specific field that was seen.
    #[must_use]
    pub fn workload(&self) -> Option<&Name> {
        use EvidenceField::{Cgroup, Job, Pod, Process, User, Vm, Workload};
        [Workload, Pod, Vm, Job, Cgroup, Process, User].into_iter().find_map(|field| self.get(field))
    }
}

impl FromIterator<(EvidenceField, Name)> for Evidence {
    fn from_iter<I: IntoIterator<Item = (EvidenceField, Name)>>(fields: I) -> Self {
        Self(Arc::new(fields.into_iter().collect()))
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (field, value)) in self.iter().enumerate() {
            write!(f, "{}{}={value}", if at == 0 { "" } else { " " }, field.word())?;
        }
        Ok(())
    }
}

/// One holding in a batch: a slice, its holder and when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// Index of the slice in the batch's table.
    pub slice: usize,
    /// Index of the evidence in the batch's table.
    pub evidence: usize,
    /// The span that this row states.
    pub span: Span,
    /// The whole span of which `span` is a piece. Empty: the holding never was (a deletion).
    pub uncut: Span,
}

/// One existing slice in a batch, held or not, and when it existed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutRow {
    /// Index of the slice in the batch's table; it has an id.
    pub slice: usize,
    /// The span that this row states.
    pub span: Span,
    /// The whole span of which `span` is a piece. Empty: the slice never was (a deletion).
    pub uncut: Span,
}

/// How much of a slice was used over a span: integrals, so that spans can be cut and added.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseRow {
    /// Index of the slice in the batch's table.
    pub slice: usize,
    /// Index of the holder's evidence in the batch's table; none: measured for the slice as a whole.
    pub evidence: Option<usize>,
    /// When.
    pub span: Span,
    /// Where the holding begins of which this is a piece: an import that states it anew states its use anew.
    pub uncut_start: Instant,
    /// Nanoseconds × SM activity: of the slice itself for a whole device and MIG, of its parent for the others.
    pub active_nanos: Option<i64>,
    /// Bytes held × seconds.
    pub memory_byte_seconds: Option<i64>,
}

/// How much energy a device took over a span.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnergyRow {
    /// The device's UUID.
    pub device: Name,
    /// When.
    pub span: Span,
    /// Millijoules.
    pub millijoules: i64,
}

/// No board takes as much, in watts: what is above is a counter that went wrong.
pub const WATTS_MAX: u32 = 100_000;

impl EnergyRow {
    /// Whether a board can have taken so much: between nothing and [`WATTS_MAX`].
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        let micros = i128::from(self.span.end().micros_since(self.span.start()));
        // Milliwatts × seconds are millijoules.
        let most = i128::from(WATTS_MAX).saturating_mul(micros).div_euclid(1_000);
        self.millijoules >= 0 && i128::from(self.millijoules) <= most
    }
}

/// What a sender's own clocks showed at the end of a span, and how it placed them: evidence, by which a placement can be
/// checked later. Nothing is derived from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockRow {
    /// When, as it was placed.
    pub span: Span,
    /// Which run of the sender's machine; its monotonic clock counts from there.
    pub boot: Name,
    /// Its monotonic clock at the span's end, in nanoseconds.
    pub monotonic_nanos: i64,
    /// Its wall clock at the span's end, in microseconds since 1970 UTC; it may show any time at all.
    pub wall_micros: i64,
    /// What the placement adds to the wall clock, in microseconds.
    pub offset_micros: i64,
}

/// A span of which a sender says that what it saw is lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gap {
    /// When.
    pub span: Span,
    /// Why, for people.
    pub reason: Name,
}

/// What a span of coverage vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoverageOf {
    /// Who held what.
    Holding,
    /// How much of it was used.
    Use,
}

impl CoverageOf {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holding => "holding",
            Self::Use => "use",
        }
    }
}

/// A span for which a source vouches that what it did not report of a device was not there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coverage {
    /// The device's UUID.
    pub device: Name,
    /// When.
    pub span: Span,
    /// For what.
    pub of: CoverageOf,
}

/// A batch's contents after decoding: the rows that were accepted, with the tables they point into.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The slices that rows name.
    pub slices: Vec<Slice>,
    /// The evidence that rows name.
    pub evidence: Vec<Evidence>,
    /// The holdings.
    pub rows: Vec<Row>,
    /// Which slices existed.
    pub layout: Vec<LayoutRow>,
    /// What was used.
    pub usage: Vec<UseRow>,
    /// What energy was taken.
    pub energy: Vec<EnergyRow>,
    /// What the sender vouches for.
    pub coverage: Vec<Coverage>,
    /// What the sender's clocks showed.
    pub clocks: Vec<ClockRow>,
    /// What the sender lost.
    pub gaps: Vec<Gap>,
}

impl Batch {
    /// The devices that the batch speaks of, each once.
    pub fn devices(&self) -> impl Iterator<Item = &Name> {
        let mut all: Vec<&Name> = self
            .slices
            .iter()
            .map(|slice| &slice.device)
            .chain(self.coverage.iter().map(|c| &c.device))
            .chain(self.energy.iter().map(|each| &each.device))
            .collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
    }
}

/// Merges spans that meet or touch; the result is sorted and disjoint, without empty spans.
#[must_use]
pub fn merged(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut sorted: Vec<Span> = spans.into_iter().filter(|span| !span.is_empty()).collect();
    sorted.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(sorted.len());
    for span in sorted {
        match merged.last_mut() {
            Some(last) if span.start() <= last.end() => {
                *last = Span::clamped(last.start(), last.end().max(span.end()));
            }
            Some(_) | None => merged.push(span),
        }
    }
    merged
}

/// What of `whole` no span covers. `spans` need not be sorted or disjoint.
#[must_use]
pub fn gaps(whole: Span, spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut gaps = Vec::new();
    let mut at = whole.start();
    for span in merged(spans.into_iter().map(|span| span.clip(whole))) {
        if at < span.start() {
            gaps.push(Span::clamped(at, span.start()));
        }
        at = span.end();
    }
    if at < whole.end() {
        gaps.push(Span::clamped(at, whole.end()));
    }
    gaps
}

/// What of an integral over `whole` falls into `piece`, by time. Cut anywhere, pieces sum to the whole, and a piece
/// has the same value however the rest is cut.
#[must_use]
pub fn cut_integral(integral: i64, whole: Span, piece: Span) -> i64 {
    let (piece, length) = (piece.clip(whole), whole.end().micros_since(whole.start()));
    if piece.is_empty() || length < 1 {
        return 0;
    }
    let until = |instant: Instant| {
        let part = i128::from(integral).saturating_mul(instant.micros_since(whole.start()).into());
        part.div_euclid(length.into())
    };
    let value = until(piece.end()).saturating_sub(until(piece.start()));
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The nanoseconds that disjoint spans cover.
#[must_use]
pub fn covered_nanos(spans: &[Span]) -> i64 {
    spans.iter().fold(0_i64, |sum, span| sum.saturating_add(span.nanos()))
}

/// The latest end of spans that cover holding, per device of the batch.
#[must_use]
pub fn holding_edges(coverage: &[Coverage]) -> BTreeMap<&Name, Instant> {
    let mut edges = BTreeMap::new();
    for each in coverage.iter().filter(|each| each.of == CoverageOf::Holding) {
        let edge = edges.entry(&each.device).or_insert(Instant::MIN);
        *edge = each.span.end().max(*edge);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, end: i64) -> Span {
        Span::new(Instant::from_micros(start), Instant::from_micros(end)).unwrap()
    }

    #[test]
    fn touching_spans_merge_and_gaps_are_the_rest() {
        let spans = [span(5, 7), span(0, 2), span(2, 3), span(6, 9), span(4, 4)];
        assert_eq!(merged(spans), vec![span(0, 3), span(5, 9)]);
        assert_eq!(gaps(span(0, 10), spans), vec![span(3, 5), span(9, 10)]);
        assert_eq!(gaps(span(6, 8), spans), vec![]);
        assert_eq!(gaps(span(0, 10), []), vec![span(0, 10)]);
    }

    #[test]
    fn an_integral_that_is_cut_sums_to_itself() {
        let whole = span(10, 17);
        assert_eq!(cut_integral(100, whole, span(0, 100)), 100);
        let pieces = [span(10, 11), span(11, 14), span(14, 17)];
        let cut: Vec<i64> = pieces.iter().map(|piece| cut_integral(100, whole, *piece)).collect();
        assert_eq!(cut, [14, 43, 43]);
        assert_eq!(cut_integral(100, whole, span(17, 18)), 0);
        assert_eq!(cut_integral(i64::MAX, span(0, 3), span(0, 3)), i64::MAX);
    }

    #[test]
    fn the_most_specific_evidence_names_the_workload() {
        let name = |text: &'static str| Name::fixed(text);
        let evidence: Evidence =
            [(EvidenceField::User, name("ana")), (EvidenceField::Pod, name("train-0"))].into_iter().collect();
        assert_eq!(evidence.workload().unwrap().as_str(), "train-0");
        assert_eq!(evidence.to_string(), "pod=train-0 user=ana");
        assert_eq!(Evidence::default().workload(), None);
    }

    #[test]
    fn words_read_back() {
        for field in EvidenceField::ALL {
            assert_eq!(EvidenceField::parse(field.word()), Ok(field));
        }
        for mode in SharingMode::ALL {
            assert_eq!(SharingMode::parse(mode.word()), Ok(mode));
        }
        assert!(SharingMode::parse("whole").unwrap_err().to_string().contains("dedicated"));
    }
}

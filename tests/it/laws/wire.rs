//! A message reads back as the batch it was made from; what is damaged costs itself alone, and never a panic.

use fatia::domain::device::SharingMode;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::segment::Claims;
use fatia::domain::units::Instant;
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, EnergyRow, Evidence, EvidenceField, LayoutRow, POOL_DEVICES_MAX, Row, Slice,
    SliceSize, Source, SourceRank, UseRow, VgpuScheduler,
};
use fatia::wire::body;
use fatia::wire::usage_v1::{Decoded, PARTS_MAX, decode, encode};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

use super::holds;

/// A batch with who sends it for what.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub scope: ScopeName,
    pub source: Source,
    pub batch: Batch,
}

impl Message {
    pub(super) fn bytes(&self) -> Vec<u8> {
        encode(&self.scope, &self.source, &self.batch).unwrap()
    }

    fn read(&self, bytes: &[u8]) -> Decoded {
        decode(bytes, &self.scope, Span::ALWAYS).unwrap()
    }
}

/// Any name: short ones that meet each other, and any text, with quotes and the like.
pub(super) fn names() -> impl Strategy<Value = Name> {
    prop_oneof![
        2 => (0..3_usize).prop_map(|at| Name::fixed(["a", "GPU-1", "node-1"][at])),
        1 => "\\PC{1,12}".prop_filter_map("no name", |text| Name::parse(&text).ok()),
        1 => "[\"\\\\/\u{e9}\u{1f980}]{1,4}".prop_filter_map("no name", |text| Name::parse(&text).ok()),
    ]
}

/// A span, and its place in a longer one.
fn spans() -> impl Strategy<Value = (Span, Span)> {
    let instant = prop_oneof![0..1_000_i64, 0..=Instant::MAX.micros()];
    vec(instant, 4).prop_map(|mut edges| {
        edges.sort_unstable();
        let at = |edge: usize| Instant::from_micros(edges[edge]);
        (Span::new(at(1), at(2)).unwrap(), Span::new(at(0), at(3)).unwrap())
    })
}

fn slices() -> impl Strategy<Value = Slice> {
    let size = prop_oneof![
        Just(SliceSize::Whole),
        (1..=1_000_000_u32).prop_map(SliceSize::Declared),
        names().prop_map(SliceSize::Profile),
        (1..=PARTS_MAX).prop_map(SliceSize::OneOf),
        Just(SliceSize::Even),
        (1..=POOL_DEVICES_MAX).prop_map(SliceSize::Devices),
        (1..=100_u32, option::of(1..=u32::MAX))
            .prop_map(|(percent, memory_mib)| SliceSize::Threads { percent, memory_mib }),
    ];
    let around = (option::of(names()), option::of(names()), option::of(any::<u16>()));
    let vgpu = (option::of(prop::sample::select(VgpuScheduler::ALL.to_vec())), prop::bool::weighted(0.2));
    // Often as plain as slices were before they had names.
    let named = option::of((around, vgpu));
    (names(), 0..SharingMode::ALL.len(), size, named).prop_map(|(device, mode, size, named)| {
        let plain = Slice::plain(device, SharingMode::ALL[mode], size);
        match named {
            None => plain,
            Some(((id, parent, start), (scheduler, is_powered_off))) => {
                Slice { id, parent, start, scheduler, is_powered_off, ..plain }
            }
        }
    })
}

/// Rows of the tables beside holdings: an index or two, spans, and figures.
type More =
    (Vec<(Index, (Span, Span))>, Vec<(Index, Option<Index>, Span, [Option<i64>; 2])>, Vec<(Name, Span, i64)>);

fn more() -> impl Strategy<Value = More> {
    let span = || spans().prop_map(|(span, _)| span);
    let figure = || option::of(prop_oneof![0..1_000_i64, 0..=i64::MAX]);
    let layout = vec((any::<Index>(), spans()), 0..5);
    let figures = (figure(), figure()).prop_map(<[Option<i64>; 2]>::from);
    let usage = vec((any::<Index>(), option::of(any::<Index>()), span(), figures), 0..5);
    let energy = vec((names(), span(), prop_oneof![0..1_000_i64, 0..=i64::MAX]), 0..4);
    prop_oneof![
        1 => Just((vec![], vec![], vec![])),
        2 => (layout, usage, energy),
    ]
}

/// Adds what can be added: only slices with an id can be stated to exist.
fn add_more(batch: &mut Batch, (layout, usage, energy): More) {
    let named: Vec<usize> = (0..batch.slices.len()).filter(|at| batch.slices[*at].id.is_some()).collect();
    if !named.is_empty() {
        let row = |(at, (span, uncut)): (Index, (Span, Span))| LayoutRow {
            slice: named[at.index(named.len())],
            span,
            uncut,
        };
        batch.layout = layout.into_iter().map(row).collect();
    }
    if !batch.slices.is_empty() {
        let row = |(at, seen, span, [active_nanos, memory_byte_seconds]): (
            Index,
            Option<Index>,
            Span,
            [Option<i64>; 2],
        )| {
            let evidence =
                seen.filter(|_| !batch.evidence.is_empty()).map(|seen| seen.index(batch.evidence.len()));
            UseRow {
                slice: at.index(batch.slices.len()),
                evidence,
                span,
                uncut_start: span.start(),
                // Nothing is active for longer than it lasts.
                active_nanos: active_nanos.map(|active| active.min(span.nanos())),
                memory_byte_seconds,
            }
        };
        batch.usage = usage.into_iter().map(row).collect();
    }
    batch.energy = energy
        .into_iter()
        .map(|(device, span, millijoules)| EnergyRow { device, span, millijoules })
        .filter(EnergyRow::is_plausible)
        .collect();
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let field = (0..EvidenceField::ALL.len()).prop_map(|at| EvidenceField::ALL[at]);
    btree_map(field, names(), 0..4).prop_map(|fields| fields.into_iter().collect())
}

pub(super) fn messages() -> impl Strategy<Value = Message> {
    let head = (any::<bool>(), names(), 0..SourceRank::ALL.len(), names());
    let tables = (vec(slices(), 0..5), vec(evidence(), 0..5));
    let rows = vec((any::<Index>(), any::<Index>(), spans()), 0..8);
    let coverage = vec((names(), spans(), any::<bool>()), 0..5);
    (head, tables, rows, coverage, more()).prop_map(
        |((is_node, scope, rank, sender), tables, rows, coverage, more)| {
            let (slices, mut evidence) = tables;
            let rank = SourceRank::ALL[rank];
            if rank != SourceRank::Import {
                // Only an import may declare who pays.
                for seen in &mut evidence {
                    let kept = seen.iter().filter(|(field, _)| !field.is_declaration());
                    *seen = kept.map(|(field, value)| (field, value.clone())).collect();
                }
            }
            let rows = if slices.is_empty() || evidence.is_empty() { vec![] } else { rows };
            let rows = rows.into_iter().map(|(slice, seen, (span, uncut))| Row {
                slice: slice.index(slices.len()),
                evidence: seen.index(evidence.len()),
                span,
                uncut,
            });
            let coverage = coverage.into_iter().map(|(device, (span, _), is_holding)| Coverage {
                device,
                span,
                of: if is_holding { CoverageOf::Holding } else { CoverageOf::Use },
            });
            let (rows, coverage) = (rows.collect(), coverage.collect());
            let kind = if is_node { ScopeKind::Node } else { ScopeKind::Pool };
            let mut batch = Batch { slices, evidence, rows, coverage, ..Batch::default() };
            add_more(&mut batch, more);
            Message { scope: ScopeName { kind, name: scope }, source: Source { rank, sender }, batch }
        },
    )
}

#[test]
fn a_message_reads_back_as_its_batch() {
    holds(400, messages(), |message| {
        let bytes = message.bytes();
        let unpacked = body::unpack(&body::pack(&bytes).unwrap()).unwrap();
        prop_assert_eq!(&unpacked, &bytes);
        let Decoded { source, batch, row_numbers, coverage_numbers, refused, .. } = message.read(&unpacked);
        let numbers = message.read(&unpacked);
        prop_assert_eq!(numbers.layout_numbers, (0..batch.layout.len()).collect::<Vec<_>>());
        prop_assert_eq!(numbers.usage_numbers, (0..batch.usage.len()).collect::<Vec<_>>());
        prop_assert_eq!(numbers.energy_numbers, (0..batch.energy.len()).collect::<Vec<_>>());
        prop_assert_eq!(&refused, &vec![]);
        prop_assert_eq!(&source, &message.source);
        prop_assert_eq!(&batch, &message.batch);
        prop_assert_eq!(row_numbers, (0..batch.rows.len()).collect::<Vec<_>>());
        prop_assert_eq!(coverage_numbers, (0..batch.coverage.len()).collect::<Vec<_>>());
        prop_assert_eq!(encode(&message.scope, &source, &batch).unwrap(), bytes);
        Ok(())
    });
}

#[test]
fn a_message_without_the_later_tables_does_not_name_them() {
    holds(200, messages(), |message| {
        let json: serde_json::Value = serde_json::from_slice(&message.bytes()).unwrap();
        let Batch { layout, usage, energy, .. } = &message.batch;
        for (table, is_empty) in
            [("layout", layout.is_empty()), ("usage", usage.is_empty()), ("energy", energy.is_empty())]
        {
            prop_assert_eq!(json.get(table).is_none(), is_empty, "{}", table);
        }
        let words = ["v", "scope", "source", "devices", "slices", "evidence", "rows", "coverage"];
        prop_assert!(words.iter().all(|word| json.get(word).is_some()), "{}", json);
        let plain = message.batch.slices.iter().map(|slice| {
            let Slice { device, mode, size, .. } = slice;
            *slice == Slice::plain(device.clone(), *mode, size.clone())
        });
        for (slice, is_plain) in json["slices"].as_array().unwrap().iter().zip(plain) {
            let later = ["id", "parent", "start", "scheduler", "powered_off"];
            prop_assert_eq!(later.iter().all(|word| slice.get(word).is_none()), is_plain, "{}", slice);
        }
        Ok(())
    });
}

/// JSON that is an entry of no table. Some of it no tree of values can hold, so it is put in as text.
fn junk() -> impl Strategy<Value = String> {
    let fixed = [
        "null",
        "true",
        "17",
        "-1",
        "1e999",
        "\"text\"",
        "\"\\ud800\"",
        "[]",
        "[0,0,0]",
        "[0,0,9223372036854775808,0,0,0]",
        "[0,0,-5,0,0,0]",
        "[0,0,9,0,0,9]",
        "[0,0,5,9,6,9]",
        "[18446744073709551615,0,0,0,0,0]",
        "[0,0,0.5,1,0,1]",
        "[0,1,0,\"holding\"]",
        "[0,null,0,1,-1,null]",
        "[0,null,0,1,null,-1]",
        "[0,0,1,-1]",
        "[0,0,9,0,4]",
        "[0,9,0,0,9]",
        "{\"device\":0,\"mode\":\"mps\",\"percent\":101}",
        "{\"device\":0,\"mode\":\"mps\",\"percent\":0}",
        "{\"device\":0,\"mode\":\"mps\",\"memory_mib\":5}",
        "{\"device\":0,\"mode\":\"mps\",\"percent\":5,\"memory_mib\":0}",
        "{\"device\":0,\"mode\":\"mig\",\"one_of\":0}",
        "{\"device\":0,\"mode\":\"mig\",\"even\":true,\"share_ppm\":5}",
        "{\"device\":0,\"mode\":\"mig\",\"start\":-1}",
        "{\"device\":0,\"mode\":\"mig\",\"id\":\" \"}",
        "{\"device\":0,\"mode\":\"vgpu\",\"scheduler\":\"fair\"}",
        "{\"device\":0,\"device\":0}",
        "{\"colour\":\"red\"}",
        "{\"device\":4294967296,\"mode\":\"mig\"}",
        "{\"device\":0,\"mode\":\"mig\",\"share_ppm\":0}",
        "{\"workload\":\" \"}",
        "{\"workload\":\"a\\nb\"}",
    ];
    prop_oneof![
        8 => (0..fixed.len()).prop_map(move |at| fixed[at].to_owned()),
        1 => (1..400_usize).prop_map(|depth| "[".repeat(depth) + &"]".repeat(depth)),
    ]
}

/// The message with one entry of a table replaced; none where the table has no entry.
fn damaged(message: &Message, table: &str, entry: Index, junk: &str) -> Option<(usize, Vec<u8>)> {
    const MARK: &str = "the damaged entry";
    let mut json: serde_json::Value = serde_json::from_slice(&message.bytes()).unwrap();
    let entries = json.get_mut(table).and_then(serde_json::Value::as_array_mut)?;
    if entries.is_empty() {
        return None;
    }
    let number = entry.index(entries.len());
    entries[number] = MARK.into();
    Some((number, json.to_string().replace(&format!("\"{MARK}\""), junk).into_bytes()))
}

/// A row with what it points at, which stays itself when tables shrink.
fn resolved(batch: &Batch) -> Vec<(Slice, Evidence, Span, Span)> {
    let of = |row: &Row| {
        (batch.slices[row.slice].clone(), batch.evidence[row.evidence].clone(), row.span, row.uncut)
    };
    batch.rows.iter().map(of).collect()
}

#[test]
fn a_damaged_row_costs_itself_alone() {
    holds(300, (messages(), any::<Index>(), junk()), |(message, entry, junk)| {
        let Some((number, bytes)) = damaged(&message, "rows", entry, &junk) else { return Ok(()) };
        let decoded = message.read(&bytes);
        let mut want = message.batch.clone();
        want.rows.remove(number);
        let mut numbers: Vec<usize> = (0..message.batch.rows.len()).collect();
        numbers.remove(number);
        prop_assert_eq!(&decoded.batch, &want);
        prop_assert_eq!(decoded.row_numbers, numbers);
        let pointers: Vec<&str> = decoded.refused.iter().map(|each| each.pointer.as_str()).collect();
        prop_assert_eq!(pointers, vec![format!("/rows/{number}")]);
        Ok(())
    });
}

#[test]
fn a_damaged_entry_of_any_other_table_costs_itself_alone() {
    let tables = prop::sample::select(vec!["coverage", "layout", "usage", "energy"]);
    holds(600, (messages(), tables, any::<Index>(), junk()), |(message, table, entry, junk)| {
        // These are entries of these tables.
        prop_assume!(table != "coverage" || !junk.contains("holding"));
        prop_assume!(table != "usage" || junk != "[0,0,5,9,6,9]");
        let Some((number, bytes)) = damaged(&message, table, entry, &junk) else { return Ok(()) };
        let decoded = message.read(&bytes);
        let mut want = message.batch.clone();
        match table {
            "coverage" => drop(want.coverage.remove(number)),
            "layout" => drop(want.layout.remove(number)),
            "usage" => drop(want.usage.remove(number)),
            _ => drop(want.energy.remove(number)),
        }
        prop_assert_eq!(&decoded.batch, &want);
        let pointers: Vec<&str> = decoded.refused.iter().map(|each| each.pointer.as_str()).collect();
        prop_assert_eq!(pointers, vec![format!("/{table}/{number}")]);
        Ok(())
    });
}

/// A row of another table with what it points at.
type Pointed = (Slice, Option<Evidence>, Span);

/// The same for existing slices and for use.
fn resolved_more(batch: &Batch) -> (Vec<Pointed>, Vec<Pointed>) {
    let exist = batch.layout.iter().map(|row| (batch.slices[row.slice].clone(), None, row.span));
    let used = batch.usage.iter().map(|row| {
        (batch.slices[row.slice].clone(), row.evidence.map(|at| batch.evidence[at].clone()), row.span)
    });
    (exist.collect(), used.collect())
}

#[test]
fn a_damaged_table_entry_costs_the_rows_that_name_it_alone() {
    let cases = (messages(), any::<bool>(), any::<Index>(), junk());
    holds(300, cases, |(message, is_slice, entry, junk)| {
        let table = if is_slice { "slices" } else { "evidence" };
        let Some((number, bytes)) = damaged(&message, table, entry, &junk) else { return Ok(()) };
        let decoded = message.read(&bytes);
        let mut want = message.batch.clone();
        want.rows.retain(|row| number != if is_slice { row.slice } else { row.evidence });
        want.layout.retain(|row| !is_slice || number != row.slice);
        want.usage.retain(|row| if is_slice { number != row.slice } else { Some(number) != row.evidence });
        prop_assert_eq!(resolved(&decoded.batch), resolved(&want));
        prop_assert_eq!(resolved_more(&decoded.batch), resolved_more(&want));
        prop_assert_eq!(&decoded.batch.coverage, &want.coverage);
        prop_assert_eq!(&decoded.batch.energy, &want.energy);
        let count = |batch: &Batch| batch.rows.len() + batch.layout.len() + batch.usage.len();
        let lost = count(&message.batch) - count(&want);
        prop_assert_eq!(decoded.refused.len(), 1 + lost, "{:?}", decoded.refused);
        Ok(())
    });
}

/// One change of some bytes.
#[derive(Debug, Clone)]
pub(super) enum Damage {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Copy(Index, Index),
    Truncate(Index),
}

pub(super) fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let any_index = any::<Index>;
    let json: Vec<u8> = b"[]{},:\"\\0123456789-.eEtrufalsn ".to_vec();
    let byte = prop_oneof![any::<u8>(), prop::sample::select(json)];
    let one = prop_oneof![
        4 => (any_index(), byte.clone()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        3 => (any_index(), vec(byte, 1..4)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        3 => (any_index(), 1..4_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (any_index(), any_index()).prop_map(|(from, to)| Damage::Copy(from, to)),
        1 => any_index().prop_map(Damage::Truncate),
    ];
    vec(one, 1..5)
}

pub(super) fn damage(bytes: &mut Vec<u8>, all: &[Damage]) {
    for each in all {
        let length = bytes.len() + 1;
        match each {
            Damage::Set(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Set(..) => {}
            Damage::Insert(at, new) => {
                let at = at.index(length);
                bytes.splice(at..at, new.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..(at + count).min(length - 1));
            }
            Damage::Copy(from, to) => {
                let (from, to) = (from.index(length), to.index(length));
                let copied = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(to..to, copied);
            }
            Damage::Truncate(at) => bytes.truncate(at.index(length)),
        }
    }
}

#[test]
fn whatever_bytes_arrive_nothing_panics_and_what_is_taken_keeps_the_rules() {
    let within = Span::clamped(Instant::from_micros(0), Instant::from_micros(Instant::MAX.micros() / 2));
    holds(1_500, (messages(), damages()), move |(message, damages)| {
        let mut bytes = message.bytes();
        damage(&mut bytes, &damages);
        let Ok(Decoded { source, batch, row_numbers, coverage_numbers, .. }) =
            decode(&bytes, &message.scope, within)
        else {
            return Ok(());
        };
        prop_assert_eq!(row_numbers.len(), batch.rows.len());
        prop_assert_eq!(coverage_numbers.len(), batch.coverage.len());
        for row in &batch.rows {
            prop_assert!(row.slice < batch.slices.len() && row.evidence < batch.evidence.len());
            prop_assert_eq!(row.span.clip(within), row.span);
            prop_assert_eq!(row.span.clip(row.uncut), row.span);
            prop_assert!(row.span.start() <= row.span.end() && row.uncut.start() <= row.uncut.end());
        }
        for cover in &batch.coverage {
            prop_assert_eq!(cover.span.clip(within), cover.span);
        }
        for row in &batch.layout {
            prop_assert!(batch.slices[row.slice].id.is_some());
            prop_assert_eq!((row.span.clip(within), row.span.clip(row.uncut)), (row.span, row.span));
        }
        for row in &batch.usage {
            prop_assert!(row.slice < batch.slices.len());
            prop_assert!(row.evidence.is_none_or(|at| at < batch.evidence.len()));
            prop_assert_eq!(row.span.clip(within), row.span);
            prop_assert!(row.active_nanos.unwrap_or(0) >= 0 && row.memory_byte_seconds.unwrap_or(0) >= 0);
        }
        for row in &batch.energy {
            prop_assert_eq!(row.span.clip(within), row.span);
            prop_assert!(row.millijoules >= 0);
        }
        for slice in &batch.slices {
            match slice.size {
                SliceSize::Declared(ppm) => prop_assert!((1..=1_000_000).contains(&ppm)),
                SliceSize::OneOf(count) => prop_assert!((1..=PARTS_MAX).contains(&count)),
                SliceSize::Devices(count) => prop_assert!((1..=POOL_DEVICES_MAX).contains(&count)),
                SliceSize::Threads { percent, memory_mib } => {
                    prop_assert!((1..=100).contains(&percent) && memory_mib != Some(0));
                }
                SliceSize::Whole | SliceSize::Profile(_) | SliceSize::Even => {}
            }
        }
        for (field, _) in batch.evidence.iter().flat_map(Evidence::iter) {
            prop_assert!(source.rank == SourceRank::Import || !field.is_declaration());
        }
        let mut claims = Claims::new();
        claims.add(&source, 1, &batch);
        let hour = Span::clamped(Instant::MIN, Instant::from_micros(3_600_000_000));
        prop_assert_eq!(claims.fold(&[hour]).len(), 1);
        Ok(())
    });
}

#[test]
fn whatever_body_arrives_unpacking_stays_inside_its_limit() {
    holds(600, (messages(), damages(), any::<bool>()), |(message, damages, is_noise)| {
        let mut packed = if is_noise { Vec::new() } else { body::pack(&message.bytes()).unwrap() };
        damage(&mut packed, &damages);
        if let Ok(unpacked) = body::unpack(&packed) {
            prop_assert!(unpacked.len() <= body::UNPACKED_BYTES_MAX);
        }
        Ok(())
    });
    holds(300, vec(any::<u8>(), 0..300), |bytes| {
        let scope = ScopeName { kind: ScopeKind::Node, name: Name::fixed("node-1") };
        prop_assert!(decode(&bytes, &scope, Span::ALWAYS).is_err());
        prop_assert!(body::unpack(&bytes).is_err() || bytes.is_empty());
        Ok(())
    });
}

//! Laws of windows, on scripted fleets and samples that come as they like.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::agent::scripted::ScriptedSource;
use crate::agent::source::Source;
use crate::domain::ids::{ScopeKind, ScopeName};
use crate::domain::usage::{Source as Sender, SourceRank, merged};
use crate::wire::usage_v1::{decode, encode};

/// What happens between two samples, in microseconds.
#[derive(Debug, Clone, Copy)]
enum Step {
    On(i64),
    Back(i64),
    /// The process ends and begins anew, so long after.
    Restart(i64),
}

fn steps(may_go_back: bool) -> impl Strategy<Value = Vec<Step>> {
    let back = if may_go_back { 1 } else { 0 };
    prop::collection::vec(
        prop_oneof![
            20 => (900_000_i64..1_100_000).prop_map(Step::On),
            2 => Just(Step::On(1_000_000)),
            2 => Just(Step::On(0)),
            3 => (1_000_001_i64..10_000_000).prop_map(Step::On),
            1 => (10_000_001_i64..90_000_000).prop_map(Step::On),
            back => (1_i64..40_000_000).prop_map(Step::Back),
            1 => (1_i64..30_000_000).prop_map(Step::Restart),
        ],
        1..250,
    )
}

/// A node with a MIG board, a time-sliced one and a whole one, with habits that come and go.
fn fleet() -> impl Strategy<Value = String> {
    let habit = (0..12_usize, 0..=1_000_u16, 0..5_000_u32, 5..90_u32, 0..=100_u32, 0..=1_000_u16);
    let fault = (0..3_usize, 0..3_usize, 1..240_u32, 1..60_u32);
    let habits = prop::collection::vec(habit, 0..14);
    (any::<u32>(), habits, prop::collection::vec(fault, 0..3)).prop_map(|(seed, habits, faults)| {
        let mut text = format!("seed = {seed}\nstart = \"2026-06-01T00:00:00Z\"\n[[node]]\nname = \"n\"\n");
        let slots: Vec<String> =
            (0..7).map(|start| format!("{{ profile = \"1g.10gb\", start = {start} }}")).collect();
        for mode in [
            format!("mode = \"mig\"\nlayout = [{}]", slots.join(", ")),
            "mode = \"time_slicing\"".to_owned(),
            "mode = \"dedicated\"".to_owned(),
        ] {
            let model = "model = \"NVIDIA H100 80GB HBM3\"\nwatts = { idle = 71, busy = 699 }";
            writeln!(text, "[[node.device]]\n{model}\n{mode}").unwrap();
        }
        for (number, (on, busy, memory, every, lasts, chance)) in habits.into_iter().enumerate() {
            let on = match on {
                0..=6 => format!("0.{on}"),
                7..=10 => "1".to_owned(),
                _ => "2".to_owned(),
            };
            let lasts = (every * lasts / 100).max(1);
            writeln!(
                text,
                "[[node.habit]]\nwho = {{ pod = \"h{number}-{{n}}\" }}\non = [\"{on}\"]\nbusy = {busy}\n\
                 memory_mib = {memory}\n\
                 bursts = {{ every = \"{every}s\", lasts = \"{lasts}s\", chance = {chance} }}"
            )
            .unwrap();
        }
        let mut reconfigured = false;
        for (kind, device, at, length) in faults {
            let fault = match kind {
                0 => format!("kind = \"lost\"\ndevice = {device}\nfor = \"{length}s\""),
                1 => format!("kind = \"holders_hidden\"\ndevice = {device}\nfor = \"{length}s\""),
                _ if !reconfigured => {
                    reconfigured = true;
                    "kind = \"reconfigure\"\ndevice = 0\nlayout = [{ profile = \"3g.40gb\", start = 0 }]"
                        .to_owned()
                }
                _ => continue,
            };
            writeln!(text, "[[node.fault]]\nat = \"{at}s\"\n{fault}").unwrap();
        }
        text
    })
}

fn open(text: &str) -> ScriptedSource {
    ScriptedSource::open(text, &Name::fixed("n")).unwrap()
}

/// The state that a source had when a window closed.
struct StateOf<'a>(&'a ScriptedSource);

impl Stamp for StateOf<'_> {
    fn clocks(&self, _: Span) -> Option<ClockRow> {
        None
    }

    fn source_state(&self) -> Vec<u8> {
        self.0.state()
    }
}

/// All that a run of an agent did: its windows, and what it saw when, life by life.
#[derive(Default)]
struct Run {
    windows: Vec<Window>,
    lives: Vec<Life>,
}

#[derive(Default)]
struct Life {
    samples: Vec<(Instant, Vec<Arc<Standing>>)>,
    /// Its windows are `windows[from..to]` of the run.
    windows: std::ops::Range<usize>,
    /// The window that was open when it ended by force: nobody has it but the test.
    lost: Option<Window>,
}

/// Runs an agent over steps. Each restart loses the open window; an orderly end closes the last.
fn run(text: &str, steps: &[Step]) -> Run {
    let mut run = Run::default();
    let (mut source, mut windower) = (open(text), Windower::new(Instant::MIN));
    let mut now = Instant::from_micros(START);
    let mut sample = Sample::default();
    let mut life = Life::default();
    for step in steps {
        match step {
            Step::On(micros) => now = now.plus_micros(*micros),
            Step::Back(micros) => now = now.plus_micros(-micros),
            Step::Restart(micros) => {
                now = now.plus_micros(*micros);
                life.lost = windower.close(&StateOf(&source));
                life.windows.end = run.windows.len();
                run.lives.push(std::mem::take(&mut life));
                life.windows = run.windows.len()..run.windows.len();
                let last = run.windows.last();
                source = open(text);
                source.restore(last.map_or(&[][..], |window| &window.source_state));
                windower = Windower::new(last.map_or(Instant::MIN, |window| window.span.end()));
            }
        }
        source.sample(now, &mut sample).unwrap();
        life.samples.push((now, sample.devices.iter().map(|look| Arc::clone(&look.standing)).collect()));
        run.windows.extend(windower.add(now, &sample, &StateOf(&source)));
    }
    run.windows.extend(windower.close(&StateOf(&source)));
    assert_eq!(windower.counts().misfits, 0);
    assert_eq!(windower.counts().overstated_nanos, 0);
    life.windows.end = run.windows.len();
    run.lives.push(life);
    run
}

/// What a device's script is over a span: activity, bytes × seconds and millijoules, all told.
fn exact(text: &str, device: usize, span: Span) -> [i64; 3] {
    let mut source = open(text);
    let mut sample = Sample::default();
    source.sample(span.start(), &mut sample).unwrap();
    source.sample(span.end(), &mut sample).unwrap();
    let look = &sample.devices[device];
    let amounts = look.amounts.iter().chain(look.newcomers.iter().map(|each| &each.amount));
    let sums = amounts.fold([0, 0], |[active, held], each| {
        [active + each.active_nanos.unwrap(), held + each.memory_byte_seconds.unwrap()]
    });
    [sums[0], sums[1], look.millijoules.unwrap()]
}

/// Windows are inside minutes, in order, and each states only what is inside it and decodes without a refusal.
fn check_shape(windows: &[Window]) {
    let scope = ScopeName { kind: ScopeKind::Node, name: Name::fixed("n") };
    let sender = Sender { rank: SourceRank::HostAgent, sender: Name::fixed("agent") };
    let mut edge = Instant::MIN;
    for window in windows {
        let (span, batch) = (window.span, &window.batch);
        assert!(edge <= span.start() && span.start() < span.end(), "{span} after {edge}");
        edge = span.end();
        assert!(span.end() <= edge_after(span.start(), MINUTE_MICROS), "{span} is over a minute edge");
        assert!(batch.rows.iter().all(|row| row.span == span && row.uncut == span));
        assert!(batch.layout.iter().all(|row| row.span == span && row.uncut == span));
        assert!(batch.coverage.iter().all(|each| each.span == span));
        for table in [batch.slices.len(), batch.evidence.len()] {
            assert!(table <= batch.rows.len() + batch.layout.len() + batch.usage.len());
        }
        let bytes = encode(&scope, &sender, batch).unwrap();
        let decoded = decode(&bytes, &scope, span).unwrap();
        assert_eq!(decoded.refused, vec![]);
        assert_eq!(&decoded.batch, batch);
    }
}

/// The time that a life saw: between samples that follow each other closely enough, after the edge it began with, and
/// never again what it has seen or gone past.
fn seen(life: &Life, mut edge: Instant) -> Vec<Span> {
    let mut seen = Vec::new();
    for (a, b) in life.samples.windows(2).map(|pair| (pair[0].0, pair[1].0)) {
        let span = Span::clamped(a.max(edge), b);
        if b.micros_since(a) <= SILENCE_MAX_MICROS && !span.is_empty() {
            seen.push(span);
            edge = span.end();
        }
    }
    merged(seen)
}

/// What is covered is what was seen, but for the window that was open when a life ended by force.
fn check_coverage(run: &Run) {
    let mut edge = Instant::MIN;
    for life in &run.lives {
        let windows = &run.windows[life.windows.clone()];
        let end = windows.last().map_or(edge, |window| window.span.end());
        let stated = merged(windows.iter().map(|window| window.span));
        let until = Span::clamped(Instant::MIN, end);
        let expected = merged(seen(life, edge).into_iter().map(|span| span.clip(until)));
        assert_eq!(stated, expected);
        let lost = seen(life, end).iter().fold(0, |sum, span| sum + span.nanos());
        assert!(lost < 60 * SECOND, "no more than the open window is lost");
        edge = end;
    }
}

/// What is there at a window's start is there until its end, and is what the window says.
fn check_standings(run: &Run) {
    for life in &run.lives {
        for window in &run.windows[life.windows.clone()] {
            let before = life.samples.iter().rposition(|(at, _)| *at <= window.span.start()).unwrap();
            let stands = &life.samples[before].1;
            for (at, now) in &life.samples {
                assert!(*at <= window.span.start() || window.span.end() <= *at || now == stands);
            }
            let batch = &window.batch;
            let mut held: Vec<_> = batch
                .rows
                .iter()
                .map(|row| (&batch.slices[row.slice], &batch.evidence[row.evidence]))
                .collect();
            let holders = |standing: &Arc<Standing>| {
                let standing = Arc::clone(standing);
                let all = standing.holders.iter();
                all.map(|holder| (standing.slices[holder.slice].clone(), holder.evidence.clone()))
                    .collect::<Vec<_>>()
            };
            let mut expected: Vec<_> = stands.iter().flat_map(holders).collect();
            held.sort();
            expected.sort();
            assert_eq!(held, expected.iter().map(|(slice, seen)| (slice, seen)).collect::<Vec<_>>());
            let exist = stands.iter().flat_map(|each| &each.slices).filter(|slice| slice.id.is_some());
            assert_eq!(batch.layout.len(), exist.count());
        }
    }
}

/// What is stated of each device over each span that it vouches for without a break is what the script is there. With
/// the window that a life lost: what was measured around its first edge is divided by time, and the rest is in there.
fn check_sums(text: &str, run: &Run) {
    let devices: Vec<Name> =
        open(text).inventory().unwrap().devices.into_iter().map(|each| each.uuid).collect();
    for (number, device) in devices.iter().enumerate() {
        // What holders use is known where they are seen, and the boards whose slices are measured tell always.
        let of = if number == 0 { CoverageOf::Use } else { CoverageOf::Holding };
        for life in &run.lives {
            let windows: Vec<&Window> = run.windows[life.windows.clone()].iter().chain(&life.lost).collect();
            let covered = windows.iter().flat_map(|window| &window.batch.coverage);
            let covered = covered.filter(|each| each.device == *device && each.of == of);
            for whole in merged(covered.map(|each| each.span)) {
                let inside = windows.iter().filter(|window| window.span.meets(whole));
                let mut sums = [0_i64; 3];
                for batch in inside.map(|window| &window.batch) {
                    for row in batch.usage.iter().filter(|row| batch.slices[row.slice].device == *device) {
                        sums[0] += row.active_nanos.unwrap();
                        sums[1] += row.memory_byte_seconds.unwrap();
                    }
                    let energy = batch.energy.iter().filter(|row| row.device == *device);
                    sums[2] += energy.map(|row| row.millijoules).sum::<i64>();
                }
                assert_eq!(sums, exact(text, number, whole), "{device} over {whole}");
            }
        }
    }
}

/// What a batch says, in words that do not depend on its tables.
fn said(batch: &Batch) -> Vec<String> {
    let slice = |at: usize| &batch.slices[at];
    let seen = |at: usize| &batch.evidence[at];
    let rows =
        batch.rows.iter().map(|row| format!("{:?} {} {:?}", slice(row.slice), seen(row.evidence), row.span));
    let layout = batch.layout.iter().map(|row| format!("{:?} {:?}", slice(row.slice), row.uncut));
    let usage = batch.usage.iter().map(|row| {
        let amounts = (row.active_nanos, row.memory_byte_seconds, row.span, row.uncut_start);
        format!("{:?} {:?} {amounts:?}", slice(row.slice), row.evidence.map(seen))
    });
    let energy = batch.energy.iter().map(|row| format!("{row:?}"));
    let coverage = batch.coverage.iter().map(|each| format!("{each:?}"));
    let mut said: Vec<String> = rows.chain(layout).chain(usage).chain(energy).chain(coverage).collect();
    said.sort();
    said
}

#[test]
fn parts_of_a_window_say_what_it_says() {
    let text = include_str!("../../../../tests/fixtures/agent/dense.toml");
    let mut source = ScriptedSource::open(text, &Name::fixed("dense-1")).unwrap();
    let (mut windower, mut sample) = (Windower::new(Instant::MIN), Sample::default());
    for second in 0..10 {
        let at = Instant::from_micros(START + second * 1_000_000);
        source.sample(at, &mut sample).unwrap();
        windower.add(at, &sample, &StateOf(&source));
    }
    let window = windower.close(&StateOf(&source)).unwrap();
    assert_eq!(window.clone().parts(5_000), vec![window.clone()]);
    for (rows_max, count) in [(56, 1), (55, 2), (15, 4), (7, 8), (1, 8)] {
        let parts = window.clone().parts(rows_max);
        assert_eq!(parts.len(), count, "{rows_max}");
        assert!(
            parts.iter().all(|part| part.span == window.span && part.source_state == window.source_state)
        );
        parts.iter().for_each(|part| check_shape(std::slice::from_ref(part)));
        let mut all: Vec<String> = parts.iter().flat_map(|part| said(&part.batch)).collect();
        all.sort();
        assert_eq!(all, said(&window.batch));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    })]

    #[test]
    fn windows_sum_to_the_script_over_what_they_cover(text in fleet(), steps in steps(false)) {
        // An interval in which holders were hidden measured none of them: the sums are of scripts without.
        let text = text.replace("holders_hidden\"\ndevice = 1", "lost\"\ndevice = 1")
            .replace("holders_hidden\"\ndevice = 2", "lost\"\ndevice = 2");
        let run = run(&text, &steps);
        check_shape(&run.windows);
        check_coverage(&run);
        check_standings(&run);
        check_sums(&text, &run);
    }

    #[test]
    fn whatever_clocks_and_sources_do_no_time_is_told_twice(text in fleet(), steps in steps(true)) {
        let run = run(&text, &steps);
        check_shape(&run.windows);
        check_coverage(&run);
    }

    #[test]
    fn a_steady_holder_is_measured_as_long_as_it_is_covered(busy in 0..=1_000_u16, steps in steps(true)) {
        let text = format!(
            "seed = 1\nstart = \"2026-06-01T00:00:00Z\"\n[[node]]\nname = \"n\"\n[[node.device]]\n\
             model = \"NVIDIA H100 80GB HBM3\"\nwatts = {{ idle = 1, busy = 2 }}\nmode = \"dedicated\"\n\
             [[node.habit]]\nwho = {{ pod = \"p\" }}\non = [\"0\"]\nbusy = {busy}\n\
             [[node.fault]]\nkind = \"buffer_replayed\"\nat = \"20s\"\nfor = \"60s\"",
        );
        let run = run(&text, &steps);
        check_shape(&run.windows);
        for window in &run.windows {
            let active: i64 = window.batch.usage.iter().map(|row| row.active_nanos.unwrap()).sum();
            prop_assert_eq!(active, window.span.nanos() / 1_000 * i64::from(busy));
        }
    }

    #[test]
    fn a_look_a_minute_and_at_changes_tells_what_a_look_a_second_does(text in fleet()) {
        let text = text.replace("holders_hidden", "lost");
        let end = Instant::from_micros(START + 300_000_000);
        let seconds = (0..=300).map(|second| Instant::from_micros(START + second * 1_000_000)).collect();
        let source = open(&text);
        let minutes = (0..=5).map(|minute| START + minute * 60_000_000);
        let mut rare: Vec<Instant> = minutes.map(Instant::from_micros).collect();
        let mut at = Instant::from_micros(START);
        while let Some(next) = source.next_change_before(at, end) {
            rare.push(next);
            at = next;
        }
        rare.sort_unstable();
        rare.dedup();
        prop_assert_eq!(played(&text, seconds), played(&text, rare));
    }
}

/// The windows of looks at given instants, without what differs by who looked.
fn played(text: &str, instants: Vec<Instant>) -> BTreeMap<Span, Batch> {
    let mut source = open(text);
    let mut windower = Windower::with_silence_max(Instant::MIN, 60_000_000);
    let mut sample = Sample::default();
    let mut windows = Vec::new();
    for at in instants {
        source.sample(at, &mut sample).unwrap();
        windows.extend(windower.add(at, &sample, &StateOf(&source)));
    }
    windows.extend(windower.close(&StateOf(&source)));
    windows.into_iter().map(|window| (window.span, window.batch)).collect()
}

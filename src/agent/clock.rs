//! Server time on a host whose own clocks may show anything.
//!
//! Server time is the host's monotonic clock plus an offset that the server's replies give. The wall clock counts only
//! until the first reply of a boot, corrected by what it was wrong before. The monotonic clock has to go on while the
//! machine sleeps (`CLOCK_BOOTTIME` on Linux).
//!
//! No clock is read here: readings are arguments.

use serde::{Deserialize, Serialize};

use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::{Instant, NANOS_PER_MICRO};
use crate::domain::usage::ClockRow;

/// Differences below this are the network's and not a clock's, in microseconds.
pub const STEP_MIN_MICROS: i64 = 500_000;
/// What was placed by a clock that was off by so much or more is placed anew, in microseconds.
pub const OFF_MICROS_MIN: i64 = 1_000_000;
/// Of so many last replies the one with the shortest round trip is believed.
pub const REPLIES_KEPT: usize = 8;

/// What the host's clocks showed at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Which run of the machine it is: the monotonic clock counts from there.
    pub boot: Name,
    /// Monotonic clock, in nanoseconds; it goes on while the machine sleeps.
    pub monotonic_nanos: i64,
    /// Wall clock, in microseconds since 1970 UTC; it may be set to anything, at any time.
    pub wall_micros: i64,
}

impl Reading {
    const fn monotonic_micros(&self) -> i64 {
        self.monotonic_nanos.div_euclid(NANOS_PER_MICRO)
    }
}

/// What outlives a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockState {
    /// The run of the machine at which `offset_micros` counts; none: no reply was ever seen.
    pub boot: Option<String>,
    /// Server time − monotonic clock, in microseconds.
    pub offset_micros: i64,
    /// Server time − wall clock as last seen, in microseconds: what counts after a reboot.
    pub wall_offset_micros: i64,
}

/// One reply of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reply {
    round_trip_micros: i64,
    offset_micros: i64,
}

/// What a reply changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// Nothing that counts.
    Kept,
    /// The first estimate of this boot: it moved server time by so many microseconds.
    First(i64),
    /// Server time moved by so many microseconds.
    Stepped(i64),
    /// The readings cannot belong to one exchange: another boot between them, or time that went back.
    Refused,
}

/// Server time. See the module.
#[derive(Debug, Clone, Default)]
pub struct ServerClock {
    /// The boot and the offset to its monotonic clock, once there is one.
    offset: Option<(Name, i64)>,
    /// Server time − wall clock, as last seen.
    wall_offset_micros: i64,
    /// The last replies of this boot, the newest last.
    replies: Vec<Reply>,
}

impl ServerClock {
    /// A clock that has seen no reply yet: the wall clock counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that goes on from a state of before.
    #[must_use]
    pub fn restored(state: &ClockState) -> Self {
        let boot = state.boot.as_deref().and_then(|text| Name::parse(text).ok());
        Self {
            offset: boot.map(|boot| (boot, state.offset_micros)),
            wall_offset_micros: state.wall_offset_micros,
            replies: Vec::new(),
        }
    }

    /// What has to outlive the process.
    #[must_use]
    pub fn state(&self) -> ClockState {
        ClockState {
            boot: self.offset.as_ref().map(|(boot, _)| boot.as_str().to_owned()),
            offset_micros: self.offset.as_ref().map_or(0, |(_, offset)| *offset),
            wall_offset_micros: self.wall_offset_micros,
        }
    }

    /// Takes a reply: the server's clock showed `server_micros` somewhere between `sent` and `received`. The middle is
    /// assumed, which is wrong by half the round trip at most.
    pub fn observe(&mut self, sent: &Reading, received: &Reading, server_micros: i64) -> Observed {
        let round_trip_micros = received.monotonic_micros().saturating_sub(sent.monotonic_micros());
        let is_instant = (Instant::MIN..Instant::MAX).contains(&Instant::from_micros(server_micros));
        if sent.boot != received.boot || round_trip_micros < 0 || !is_instant {
            return Observed::Refused;
        }
        let middle = i64::midpoint(sent.monotonic_micros(), received.monotonic_micros());
        let reply = Reply { round_trip_micros, offset_micros: server_micros.saturating_sub(middle) };
        let now = self.now(received);
        let known = self.of_boot(&received.boot);
        if known.is_none() {
            self.replies.clear();
        }
        // Replies that are further apart than their round trips allow are of two clocks: the older ones count no more.
        self.replies.retain(|old| {
            let apart = old.offset_micros.saturating_sub(reply.offset_micros).saturating_abs();
            apart < STEP_MIN_MICROS.saturating_add(old.round_trip_micros.max(round_trip_micros) / 2)
        });
        if self.replies.len() >= REPLIES_KEPT {
            self.replies.remove(0);
        }
        self.replies.push(reply);
        let best = *self.replies.iter().min_by_key(|each| each.round_trip_micros).unwrap_or(&reply);
        // What is known from before a restart has no replies beside it: a few slow ones do not speak against it.
        let doubt = if self.replies.len() < REPLIES_KEPT { best.round_trip_micros / 2 } else { 0 };
        let best = best.offset_micros;
        let moved = best.saturating_add(received.monotonic_micros()).saturating_sub(now.micros());
        let outcome = match known {
            Some(old)
                if best.saturating_sub(old).saturating_abs() < STEP_MIN_MICROS.saturating_add(doubt) =>
            {
                Observed::Kept
            }
            Some(_) => Observed::Stepped(moved),
            None => Observed::First(moved),
        };
        if outcome != Observed::Kept {
            self.offset = Some((received.boot.clone(), best));
        }
        let server = self.now(received).micros();
        self.wall_offset_micros = server.saturating_sub(received.wall_micros);
        outcome
    }

    /// Server time at a reading, kept inside the time that is ever accepted.
    #[must_use]
    pub fn now(&self, reading: &Reading) -> Instant {
        let micros = match self.of_boot(&reading.boot) {
            Some(offset) => reading.monotonic_micros().saturating_add(offset),
            None => reading.wall_micros.saturating_add(self.wall_offset_micros),
        };
        Instant::MIN.plus_micros(micros)
    }

    /// What the clocks showed at the end of `span`, as evidence. `reading` may be of a little later: both clocks are
    /// taken back to the span's end.
    #[must_use]
    pub fn evidence(&self, span: Span, reading: &Reading) -> ClockRow {
        let now = self.now(reading);
        let late = now.micros_since(span.end());
        let wall_micros = reading.wall_micros.saturating_sub(late);
        ClockRow {
            span,
            boot: reading.boot.clone(),
            // A span may end before the machine began, when its clock was stepped: a row below 0 would be refused.
            monotonic_nanos: reading
                .monotonic_nanos
                .saturating_sub(late.saturating_mul(NANOS_PER_MICRO))
                .max(0),
            wall_micros,
            offset_micros: span.end().micros().saturating_sub(wall_micros),
        }
    }

    /// Server time less monotonic clock in a run of the machine, in microseconds; none: nothing was heard in it.
    #[must_use]
    pub fn offset(&self, boot: &Name) -> Option<i64> {
        self.of_boot(boot)
    }

    /// Server time is known to be at least `edge`: what the wall clock says counts no more where it is behind that.
    pub fn not_before(&mut self, edge: Instant, reading: &Reading) {
        let behind = edge.micros_since(self.now(reading));
        if self.of_boot(&reading.boot).is_none() && behind > 0 {
            self.wall_offset_micros = self.wall_offset_micros.saturating_add(behind);
        }
    }

    fn of_boot(&self, boot: &Name) -> Option<i64> {
        self.offset.as_ref().filter(|(of, _)| of == boot).map(|(_, offset)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    /// 2026-06-01T00:00:00Z.
    const SERVER: i64 = 1_780_272_000 * SECOND;

    fn reading(boot: &'static str, monotonic_micros: i64, wall_micros: i64) -> Reading {
        Reading { boot: Name::fixed(boot), monotonic_nanos: monotonic_micros * 1_000, wall_micros }
    }

    /// A clock that was told the time at monotonic 100 s, with a wall clock that is wrong by so much.
    fn told(wrong: i64) -> ServerClock {
        let mut clock = ServerClock::new();
        let sent = reading("a", 100 * SECOND - 10_000, SERVER + wrong - 10_000);
        let received = reading("a", 100 * SECOND + 10_000, SERVER + wrong + 10_000);
        assert!(matches!(clock.observe(&sent, &received, SERVER), Observed::First(_)));
        clock
    }

    #[test]
    fn a_wall_clock_that_is_wrong_by_a_day_or_a_year_does_not_show() {
        for wrong in [26 * HOUR, -26 * HOUR, 365 * 24 * HOUR, -365 * 24 * HOUR, 0, -SERVER] {
            let clock = told(wrong);
            let later = reading("a", 160 * SECOND, SERVER + wrong + 60 * SECOND);
            assert_eq!(clock.now(&later).micros(), SERVER + 60 * SECOND, "{wrong}");
            let span =
                Span::clamped(Instant::from_micros(SERVER), Instant::from_micros(SERVER + 59 * SECOND));
            let row = clock.evidence(span, &later);
            assert_eq!(row.offset_micros, -wrong);
            assert_eq!(row.wall_micros + row.offset_micros, SERVER + 59 * SECOND);
            assert_eq!(row.monotonic_nanos, 159 * SECOND * 1_000);
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_back_moves_nothing() {
        let clock = told(0);
        let before = clock.now(&reading("a", 200 * SECOND, SERVER + 100 * SECOND));
        let after = clock.now(&reading("a", 201 * SECOND, SERVER - 5 * HOUR));
        assert_eq!(after.micros_since(before), SECOND);
    }

    #[test]
    fn a_slow_answer_after_a_restart_moves_nothing_and_a_fast_one_does() {
        let answer = |round_trip: i64, off: i64| {
            let mut clock = ServerClock::restored(&told(0).state());
            let at = 200 * SECOND;
            let (sent, received) = (reading("a", at, SERVER), reading("a", at + round_trip, SERVER));
            clock.observe(&sent, &received, SERVER + 100 * SECOND + off)
        };
        // The service looked at its clock at once, and its answer took two seconds; or the request took as long.
        assert_eq!(answer(2 * SECOND, 0), Observed::Kept);
        assert_eq!(answer(2 * SECOND, 2 * SECOND), Observed::Kept);
        assert!(matches!(answer(2 * SECOND, 3 * SECOND), Observed::Stepped(_)));
        assert!(matches!(answer(10_000, SECOND), Observed::Stepped(_)));
    }

    #[test]
    fn sleep_is_time() {
        // The machine sleeps for nine hours: the monotonic clock goes on, the wall clock may come back late.
        let clock = told(0);
        let woken = reading("a", 100 * SECOND + 9 * HOUR, SERVER + 2 * SECOND);
        assert_eq!(clock.now(&woken).micros(), SERVER + 9 * HOUR);
    }

    #[test]
    fn after_a_reboot_the_wall_clock_counts_with_what_it_was_wrong_before() {
        let clock = told(26 * HOUR);
        let state: ClockState =
            serde_json::from_str(&serde_json::to_string(&clock.state()).unwrap()).unwrap();
        let mut clock = ServerClock::restored(&state);
        assert_eq!(clock.now(&reading("a", 101 * SECOND, 0)).micros(), SERVER + SECOND);
        // The monotonic clock began anew: the old offset must not be added to it.
        let rebooted = reading("b", 3 * SECOND, SERVER + 26 * HOUR + 40 * SECOND);
        assert_eq!(clock.now(&rebooted).micros(), SERVER + 40 * SECOND);
        let observed = clock.observe(&rebooted, &rebooted, SERVER + 45 * SECOND);
        assert_eq!(observed, Observed::First(5 * SECOND));
        assert_eq!(clock.now(&reading("b", 4 * SECOND, 0)).micros(), SERVER + 46 * SECOND);
    }

    #[test]
    fn small_differences_are_the_networks() {
        let mut clock = told(0);
        for (at, off) in [(200, 499_999), (300, -499_999), (400, 120_000)] {
            let now = reading("a", at * SECOND, 0);
            let observed = clock.observe(&now, &now, SERVER + (at - 100) * SECOND + off);
            assert_eq!(observed, Observed::Kept, "{off}");
            assert_eq!(clock.now(&now).micros(), SERVER + (at - 100) * SECOND);
        }
    }

    #[test]
    fn a_servers_clock_that_was_set_is_followed_in_one_step() {
        for step in [600_000, -600_000, 24 * HOUR, -24 * HOUR] {
            let mut clock = told(0);
            let (sent, received) = (reading("a", 200 * SECOND, 0), reading("a", 200 * SECOND + 40_000, 0));
            let observed = clock.observe(&sent, &received, SERVER + 100 * SECOND + 20_000 + step);
            assert_eq!(observed, Observed::Stepped(step), "{step}");
            assert_eq!(clock.now(&sent).micros(), SERVER + 100 * SECOND + step);
        }
    }

    #[test]
    fn the_shortest_round_trip_is_believed() {
        let mut clock = told(0);
        // Four seconds on the way there and none back: the middle is two seconds off.
        let (sent, received) = (reading("a", 200 * SECOND, 0), reading("a", 204 * SECOND, 0));
        assert_eq!(clock.observe(&sent, &received, SERVER + 104 * SECOND), Observed::Kept);
        assert_eq!(clock.now(&received).micros(), SERVER + 104 * SECOND);
        // It was the shortest of the last few, and those are over: the slow ones are all there is.
        for at in 0..8 {
            let (sent, received) =
                (reading("a", (300 + at) * SECOND, 0), reading("a", (304 + at) * SECOND, 0));
            clock.observe(&sent, &received, SERVER + (204 + at) * SECOND);
        }
        assert_eq!(clock.now(&reading("a", 400 * SECOND, 0)).micros(), SERVER + 302 * SECOND);
    }

    #[test]
    fn readings_of_two_boots_or_backwards_are_no_exchange() {
        let mut clock = told(0);
        let before = clock.state();
        let (a, b) = (reading("a", 200 * SECOND, 0), reading("b", 200 * SECOND, 0));
        assert_eq!(clock.observe(&a, &b, SERVER + HOUR), Observed::Refused);
        assert_eq!(clock.observe(&a, &reading("a", 199 * SECOND, 0), SERVER + HOUR), Observed::Refused);
        assert_eq!(clock.observe(&a, &a, -1), Observed::Refused);
        assert_eq!(clock.observe(&a, &a, i64::MAX), Observed::Refused);
        assert_eq!(clock.state(), before);
    }

    #[test]
    fn no_reading_leads_out_of_time_or_below_zero() {
        for wall in [i64::MIN, -1, i64::MAX] {
            let now = ServerClock::new().now(&reading("a", 0, wall));
            assert!((Instant::MIN..=Instant::MAX).contains(&now));
        }
        let span = Span::clamped(Instant::MIN, Instant::from_micros(SERVER - HOUR));
        assert_eq!(told(0).evidence(span, &reading("a", 101 * SECOND, SERVER)).monotonic_nanos, 0);
    }
}

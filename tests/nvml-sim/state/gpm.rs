//! GPM: a sample is an instant of a board or of a GPU instance, and a metric the average between two of them.

use std::collections::BTreeMap;

use crate::scenario::{Board, Span};

use super::{Answer, Call, Code};

/// Where and when a sample was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Taken {
    board: String,
    gi: Option<u32>,
    at: i64,
}

/// The samples that have room, and those of them that were taken.
pub(super) struct Samples {
    made: usize,
    all: BTreeMap<usize, Option<Taken>>,
}

const BASE: usize = 0x8000_0000;
const STEP: usize = 0x40;
/// The architecture that GPM came with: Hopper.
const FIRST_ARCHITECTURE: u32 = 9;

impl Samples {
    pub(super) const fn new() -> Samples {
        Samples { made: 0, all: BTreeMap::new() }
    }
}

/// What two samples tell.
pub(crate) struct Measured<'a> {
    board: &'a Board,
    gi: Option<u32>,
    span: Span,
}

impl<'a> Call<'a> {
    pub(crate) fn has_gpm(&self, board: &Board) -> Answer<bool> {
        let kind = self.kind(board)?;
        Ok(board.gpm.unwrap_or(kind.architecture >= FIRST_ARCHITECTURE))
    }

    pub(crate) fn make_sample(&mut self) -> usize {
        let samples = &mut self.world.samples;
        samples.made += 1;
        let number = BASE + samples.made * STEP;
        samples.all.insert(number, None);
        number
    }

    pub(crate) fn free_sample(&mut self, sample: usize) -> Answer {
        self.world.samples.all.remove(&sample).map(|_| ()).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Takes a sample of a board, or of a GPU instance of it.
    pub(crate) fn take_sample(&mut self, board: &Board, gi: Option<u32>, sample: usize) -> Answer {
        if !self.has_gpm(board)? {
            return Err(Code::NOT_SUPPORTED);
        }
        let taken = Taken { board: board.uuid.clone(), gi, at: self.now };
        let room = self.world.samples.all.get_mut(&sample).ok_or(Code::INVALID_ARGUMENT)?;
        *room = Some(taken);
        Ok(())
    }

    /// What lies between two samples of one source, in the order of time.
    pub(crate) fn measured(&self, earlier: usize, later: usize) -> Answer<Measured<'a>> {
        let taken = |sample| self.world.samples.all.get(&sample)?.as_ref();
        let (Some(one), Some(other)) = (taken(earlier), taken(later)) else {
            return Err(Code::INVALID_ARGUMENT);
        };
        if one.board != other.board || one.gi != other.gi || one.at >= other.at {
            return Err(Code::INVALID_ARGUMENT);
        }
        let (_, board) = self.scenario.board(&one.board).ok_or(Code::INVALID_ARGUMENT)?;
        self.check_board(board)?;
        Ok(Measured { board, gi: one.gi, span: Span { from: one.at, until: other.at } })
    }
}

impl Measured<'_> {
    /// The average of a metric over the time between.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a test are far below 2^53")]
    pub(crate) fn average(&self, metric: u32) -> Answer<f64> {
        let mut told = self.board.activity.iter();
        let activity = told.find(|one| one.metric == metric && one.gi == self.gi);
        let activity = activity.ok_or(Code::NOT_SUPPORTED)?;
        if let Some(code) = activity.code {
            return Err(Code(code));
        }
        let pieces = activity.value.as_ref().map(|value| value.pieces(self.span)).unwrap_or_default();
        let sum: f64 = pieces.into_iter().map(|(us, value)| us as f64 * value.copied().unwrap_or(0.0)).sum();
        Ok(sum / (self.span.until - self.span.from) as f64)
    }
}

//! The journal: streams, their marks, imports and the batches as they were signed.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::backend::{Partitioned, lock_clause, make_room};
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::{Name, ScopeId};
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_HOUR};
use crate::domain::usage::{Source, SourceRank};

/// Longest span of one batch. Bounds how far back a batch that meets an hour can begin.
pub const BATCH_SPAN_US_MAX: i64 = 26 * MICROS_PER_HOUR;

/// A stream as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Its id.
    pub id: Uuid,
    /// The scope that it speaks for.
    pub scope: ScopeId,
    /// Who sends it.
    pub source: Source,
    /// The import's number within its source; 0 for agents.
    pub import_number: i64,
    /// Every number up to it is durable.
    pub mark: i64,
    /// SHA-256 of an import's rows without its coverage; none for agents.
    pub rows_hash: Option<Vec<u8>>,
}

const STREAM_COLUMNS: &str = "stream_id, scope_id, rank, sender, import_number, mark, rows_hash";

fn stream_of(row: &super::unit::Row) -> Result<Stream, StoreError> {
    let corrupt = |reason: String| StoreError::corrupt("a stream", reason);
    Ok(Stream {
        id: Uuid::parse_str(&row.get::<String>(0)?).map_err(|error| corrupt(error.to_string()))?,
        scope: ScopeId::from_stored(row.get(1)?),
        source: Source {
            rank: SourceRank::parse(&row.get::<String>(2)?).map_err(|error| corrupt(error.to_string()))?,
            sender: super::fleet::name_of(&row.get::<String>(3)?)?,
        },
        import_number: row.get(4)?,
        mark: row.get(5)?,
        rows_hash: row.get(6)?,
    })
}

/// A stream by its id.
///
/// # Errors
/// [`StoreError`].
pub async fn find_stream(
    _scope: &PlatformScope,
    tx: &ReadTx,
    id: Uuid,
) -> Result<Option<Stream>, StoreError> {
    let sql = format!("SELECT {STREAM_COLUMNS} FROM usage_stream WHERE stream_id = $1");
    tx.one(&sql, vec![id.to_string().into()]).await?.as_ref().map(stream_of).transpose()
}

/// Streams, locked until the transaction ends, in the order of their ids: one order for all writers.
///
/// # Errors
/// [`StoreError`].
pub async fn lock_streams(
    _scope: &PlatformScope,
    tx: &WriteTx,
    ids: &BTreeSet<Uuid>,
) -> Result<BTreeMap<Uuid, Stream>, StoreError> {
    let marks: Vec<String> = (1..=ids.len()).map(|number| format!("${number}")).collect();
    let lock = lock_clause(tx.dialect());
    let sql = format!(
        "SELECT {STREAM_COLUMNS} FROM usage_stream WHERE stream_id IN ({}) ORDER BY stream_id{lock}",
        marks.join(", ")
    );
    let values = ids.iter().map(|id| id.to_string().into()).collect();
    let rows = tx.all(&sql, values).await?;
    rows.iter().map(|row| stream_of(row).map(|stream| (stream.id, stream))).collect()
}

/// Opens streams, but those that another process just did.
///
/// # Errors
/// [`StoreError`].
pub async fn open_streams(
    _scope: &PlatformScope,
    tx: &WriteTx,
    streams: &[Stream],
    now: Instant,
) -> Result<(), StoreError> {
    let rows = streams
        .iter()
        .map(|stream| {
            vec![
                stream.id.to_string().into(),
                stream.scope.stored().into(),
                stream.source.rank.word().into(),
                stream.source.sender.as_str().into(),
                stream.import_number.into(),
                0_i64.into(),
                now.micros().into(),
            ]
        })
        .collect();
    let columns = ["stream_id", "scope_id", "rank", "sender", "import_number", "mark", "opened_us"];
    tx.insert("usage_stream", &columns, rows, "ON CONFLICT (stream_id) DO NOTHING").await.map(|_| ())
}

/// Where a stream stands after what was just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The stream as it was.
    pub stream: Stream,
    /// Its mark now.
    pub mark: i64,
    /// Until when its sender spoke.
    pub edge: Instant,
    /// By how many microseconds its sender's wall clock is behind, where it said so.
    pub offset_micros: Option<i64>,
}

/// Moves the marks of streams that are there. The caller holds their locks.
///
/// # Errors
/// [`StoreError`].
pub async fn advance_streams(
    _scope: &PlatformScope,
    tx: &WriteTx,
    advances: &[Advance],
    now: Instant,
) -> Result<(), StoreError> {
    let rows = advances
        .iter()
        .map(|each| {
            vec![
                each.stream.id.to_string().into(),
                each.stream.scope.stored().into(),
                each.stream.source.rank.word().into(),
                each.stream.source.sender.as_str().into(),
                each.stream.import_number.into(),
                each.mark.into(),
                now.micros().into(),
                now.micros().into(),
                each.edge.micros().into(),
                each.offset_micros.into(),
            ]
        })
        .collect();
    let columns = [
        "stream_id",
        "scope_id",
        "rank",
        "sender",
        "import_number",
        "mark",
        "opened_us",
        "seen_us",
        "edge_us",
        "offset_us",
    ];
    // They are there and locked: what conflicts is what is to be changed.
    let again = "ON CONFLICT (stream_id) DO UPDATE SET mark = excluded.mark, seen_us = excluded.seen_us, \
                 edge_us = CASE WHEN usage_stream.edge_us > excluded.edge_us THEN usage_stream.edge_us \
                 ELSE excluded.edge_us END, offset_us = COALESCE(excluded.offset_us, usage_stream.offset_us)";
    tx.insert("usage_stream", &columns, rows, again).await.map(|_| ())
}

/// Numbers of a stream that will never come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGap {
    /// The scope that the stream speaks for.
    pub scope: ScopeId,
    /// The stream.
    pub stream: Uuid,
    /// The first number and the last.
    pub sequences: (i64, i64),
    /// The span that they would have been about.
    pub span: Span,
    /// Why, for people.
    pub reason: String,
    /// What its sender signed.
    pub signature: String,
}

/// Records numbers that will never come. The caller holds the stream's lock and moves the mark.
///
/// # Errors
/// [`StoreError`].
pub async fn append_gap(
    _scope: &PlatformScope,
    tx: &WriteTx,
    gap: &NewGap,
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_gap (scope_id, stream_id, from_sequence, to_sequence, received_us, from_us, to_us, \
               reason, signature) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let values = vec![
        gap.scope.stored().into(),
        gap.stream.to_string().into(),
        gap.sequences.0.into(),
        gap.sequences.1.into(),
        now.micros().into(),
        gap.span.start().micros().into(),
        gap.span.end().micros().into(),
        gap.reason.as_str().into(),
        gap.signature.as_str().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Opens a stream, unless another process just did.
///
/// # Errors
/// [`StoreError`].
pub async fn open_stream(
    _scope: &PlatformScope,
    tx: &WriteTx,
    stream: &Stream,
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_stream (stream_id, scope_id, rank, sender, import_number, mark, opened_us, rows_hash) \
               VALUES ($1, $2, $3, $4, $5, 0, $6, $7) ON CONFLICT (stream_id) DO NOTHING";
    let values = vec![
        stream.id.to_string().into(),
        stream.scope.stored().into(),
        stream.source.rank.word().into(),
        stream.source.sender.as_str().into(),
        stream.import_number.into(),
        now.micros().into(),
        stream.rows_hash.clone().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// All streams that speak for a scope.
///
/// # Errors
/// [`StoreError`].
pub async fn streams(_scope: &PlatformScope, tx: &ReadTx, scope: ScopeId) -> Result<Vec<Stream>, StoreError> {
    let sql = format!("SELECT {STREAM_COLUMNS} FROM usage_stream WHERE scope_id = $1 ORDER BY stream_id");
    tx.all(&sql, vec![scope.stored().into()]).await?.iter().map(stream_of).collect()
}

/// Begins an import: the next number of its source.
///
/// # Errors
/// [`StoreError`].
pub async fn begin_import(
    _scope: &PlatformScope,
    tx: &WriteTx,
    source: &Name,
    imported_by: &str,
    now: Instant,
) -> Result<i64, StoreError> {
    let sql = "SELECT COALESCE(MAX(number), 0) + 1 FROM usage_import WHERE source = $1";
    let row = tx.one(sql, vec![source.as_str().into()]).await?;
    let number: i64 = row.map_or(Ok(1), |row| row.get(0))?;
    // Two that begin at once meet on the primary key, and the loser is told so.
    let sql = "INSERT INTO usage_import (source, number, imported_by, started_us, rows_taken, rows_refused) \
               VALUES ($1, $2, $3, $4, 0, 0)";
    let values =
        vec![source.as_str().into(), number.into(), imported_by.to_owned().into(), now.micros().into()];
    tx.run(sql, values).await?;
    Ok(number)
}

/// Notes how an import ended.
///
/// # Errors
/// [`StoreError`].
pub async fn finish_import(
    _scope: &PlatformScope,
    tx: &WriteTx,
    source: &Name,
    number: i64,
    (taken, refused): (i64, i64),
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE usage_import SET finished_us = $3, rows_taken = $4, rows_refused = $5 \
               WHERE source = $1 AND number = $2";
    let values =
        vec![source.as_str().into(), number.into(), now.micros().into(), taken.into(), refused.into()];
    tx.run(sql, values).await.map(|_| ())
}

/// A batch on its way into the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBatch {
    /// The scope that it speaks for.
    pub scope: ScopeId,
    /// Its stream.
    pub stream: Uuid,
    /// Its number.
    pub sequence: i64,
    /// When it was received.
    pub received: Instant,
    /// The span that was signed.
    pub span: Span,
    /// The bytes as signed.
    pub body: Vec<u8>,
    /// Their SHA-256.
    pub body_hash: [u8; 32],
    /// The signature.
    pub signature: String,
    /// Rows that were taken.
    pub row_count: i64,
    /// What was not taken, as JSON; none: everything was.
    pub refused: Option<String>,
    /// Why nothing could be read; none: it could.
    pub set_aside: Option<String>,
}

/// Appends batches. The caller holds their streams' locks and moves the marks in the same transaction.
///
/// # Errors
/// [`StoreError`].
pub async fn append_all(
    _scope: &PlatformScope,
    tx: &WriteTx,
    batches: Vec<NewBatch>,
) -> Result<(), StoreError> {
    make_room(tx.connection(), Partitioned::UsageBatch, batches.iter().map(|each| each.received.micros()))
        .await?;
    let rows = batches
        .into_iter()
        .map(|batch| {
            vec![
                batch.scope.stored().into(),
                batch.stream.to_string().into(),
                batch.sequence.into(),
                batch.received.micros().into(),
                batch.span.start().micros().into(),
                batch.span.end().micros().into(),
                batch.body.into(),
                batch.body_hash.to_vec().into(),
                batch.signature.into(),
                batch.row_count.into(),
                batch.refused.into(),
                batch.set_aside.into(),
            ]
        })
        .collect();
    let columns = [
        "scope_id",
        "stream_id",
        "sequence",
        "received_us",
        "from_us",
        "to_us",
        "body",
        "body_hash",
        "signature",
        "row_count",
        "refused",
        "set_aside",
    ];
    tx.insert("usage_batch", &columns, rows, "").await.map(|_| ())
}

/// A batch that is kept, as far as it takes to tell a repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its SHA-256.
    pub body_hash: Vec<u8>,
    /// Its stream's sender.
    pub source: Source,
    /// Its stream's mark.
    pub mark: i64,
}

/// Which of these batches are kept, by stream and number.
///
/// # Errors
/// [`StoreError`].
pub async fn kept(
    _scope: &PlatformScope,
    tx: &ReadTx,
    wanted: &BTreeSet<(ScopeId, Uuid, i64)>,
) -> Result<BTreeMap<(Uuid, i64), Kept>, StoreError> {
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let (mut values, mut keys) = (Vec::new(), Vec::new());
    for (scope, stream, sequence) in wanted {
        let at = values.len();
        // PostgreSQL takes what has no type for text.
        keys.push(format!("(CAST(${} AS BIGINT), ${}, CAST(${} AS BIGINT))", at + 1, at + 2, at + 3));
        values.extend([scope.stored().into(), stream.to_string().into(), (*sequence).into()]);
    }
    // One scan of these keys: a query for each, even in one statement, is planned for each partition of the journal.
    // A join, since SQLite looks at every batch for a list of keys.
    let sql = format!(
        "WITH wanted (scope_id, stream_id, sequence) AS (VALUES {}) \
         SELECT s.stream_id, b.sequence, b.body_hash, s.rank, s.sender, s.mark FROM wanted w \
         JOIN usage_batch b \
         ON b.scope_id = w.scope_id AND b.stream_id = w.stream_id AND b.sequence = w.sequence \
         JOIN usage_stream s ON s.stream_id = b.stream_id",
        keys.join(", ")
    );
    let corrupt = |error: &dyn std::fmt::Display| StoreError::corrupt("a stream", error.to_string());
    for row in tx.all(&sql, values).await? {
        let stream = Uuid::parse_str(&row.get::<String>(0)?).map_err(|error| corrupt(&error))?;
        let rank = SourceRank::parse(&row.get::<String>(3)?).map_err(|error| corrupt(&error))?;
        let sender = super::fleet::name_of(&row.get::<String>(4)?)?;
        let source = Source { rank, sender };
        found.insert((stream, row.get(1)?), Kept { body_hash: row.get(2)?, source, mark: row.get(5)? });
    }
    Ok(found)
}

/// Batches of a stream that were set aside or of which something was refused: number, why set aside, what was
/// refused (JSON).
///
/// # Errors
/// [`StoreError`].
pub async fn troubles(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    stream: Uuid,
) -> Result<Vec<(i64, Option<String>, Option<String>)>, StoreError> {
    let sql = "SELECT sequence, set_aside, refused FROM usage_batch WHERE scope_id = $1 AND stream_id = $2 \
               AND (set_aside IS NOT NULL OR refused IS NOT NULL) ORDER BY sequence";
    let rows = tx.all(sql, vec![scope.stored().into(), stream.to_string().into()]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).collect()
}

/// A batch as the fold reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBatch {
    /// Its stream.
    pub stream: Uuid,
    /// Its number.
    pub sequence: i64,
    /// The span that was signed.
    pub span: Span,
    /// The bytes as signed.
    pub body: Vec<u8>,
    /// Their SHA-256.
    pub body_hash: Vec<u8>,
    /// What acceptance refused, as JSON.
    pub refused: Option<String>,
}

/// The readable batches of a scope that meet `span`, in the order of their keys.
///
/// # Errors
/// [`StoreError`].
pub async fn batches_meeting(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    span: Span,
) -> Result<Vec<StoredBatch>, StoreError> {
    // The bounds on from_us are for the index. A span of no length asks for the batches that begin or go on at it.
    let sql = "SELECT stream_id, sequence, from_us, to_us, body, body_hash, refused FROM usage_batch \
               WHERE scope_id = $1 AND from_us >= $2 AND from_us <= $3 \
               AND ((from_us < $3 AND to_us > $4) OR from_us = $4 OR ($3 = $4 AND to_us > $4)) \
               AND set_aside IS NULL \
               ORDER BY stream_id, sequence";
    let (start, end) = (span.start().micros(), span.end().micros());
    let values = vec![scope.stored().into(), (start - BATCH_SPAN_US_MAX).into(), end.into(), start.into()];
    tx.all(sql, values).await?.iter().map(batch_of).collect()
}

/// Where in a node's journal, by time, a batch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPlace {
    /// Its first instant.
    pub from_us: i64,
    /// Its stream.
    pub stream: String,
    /// Its number.
    pub sequence: i64,
}

/// The readable batches of a scope that meet `span`, from one on, at most so many, in the order of their first instants;
/// and whether each is an import's.
///
/// # Errors
/// [`StoreError`].
pub async fn batches_after(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    span: Span,
    from: Option<&BatchPlace>,
    limit: i64,
) -> Result<Vec<(StoredBatch, bool)>, StoreError> {
    let sql = "SELECT b.stream_id, b.sequence, b.from_us, b.to_us, b.body, b.body_hash, b.refused, s.import_number \
               FROM usage_batch b JOIN usage_stream s ON s.stream_id = b.stream_id \
               WHERE b.scope_id = $1 AND b.from_us >= $2 AND b.from_us < $3 AND b.to_us > $4 \
               AND (b.from_us, b.stream_id, b.sequence) >= ($5, $6, $7) AND b.set_aside IS NULL \
               ORDER BY b.from_us, b.stream_id, b.sequence LIMIT $8";
    let (start, end) = (span.start().micros(), span.end().micros());
    let (from_us, stream, sequence) = match from {
        Some(place) => (place.from_us, place.stream.as_str(), place.sequence),
        None => (i64::MIN, "", 0),
    };
    let values = vec![
        scope.stored().into(),
        start.saturating_sub(BATCH_SPAN_US_MAX).into(),
        end.into(),
        start.into(),
        from_us.into(),
        stream.into(),
        sequence.into(),
        limit.into(),
    ];
    tx.all(sql, values).await?.iter().map(|row| Ok((batch_of(row)?, row.get::<i64>(7)? > 0))).collect()
}

fn batch_of(row: &super::unit::Row) -> Result<StoredBatch, StoreError> {
    let stream: String = row.get(0)?;
    Ok(StoredBatch {
        stream: Uuid::parse_str(&stream).map_err(|error| StoreError::corrupt("a stream", error))?,
        sequence: row.get(1)?,
        span: Span::clamped(Instant::from_micros(row.get(2)?), Instant::from_micros(row.get(3)?)),
        body: row.get(4)?,
        body_hash: row.get(5)?,
        refused: row.get(6)?,
    })
}

/// How many batches and rows the journal holds.
///
/// # Errors
/// [`StoreError`].
pub async fn size(_scope: &PlatformScope, tx: &ReadTx) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(row_count), 0) AS BIGINT) FROM usage_batch";
    match tx.one(sql, vec![]).await? {
        Some(row) => Ok((row.get(0)?, row.get(1)?)),
        None => Ok((0, 0)),
    }
}

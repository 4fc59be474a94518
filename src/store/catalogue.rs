//! The operator's catalogue files, as they were loaded.

use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::units::Instant;

/// A file that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// 1 for the first, then the next number.
    pub revision: i64,
    /// The file's text.
    pub content: String,
    /// SHA-256 of what it says.
    pub content_hash: Vec<u8>,
    /// When it was loaded.
    pub loaded: Instant,
    /// Who loaded it.
    pub loaded_by: String,
}

/// The file that holds: the newest.
///
/// # Errors
/// [`StoreError`].
pub async fn current(_scope: &PlatformScope, tx: &ReadTx) -> Result<Option<StoredFile>, StoreError> {
    let sql = "SELECT revision, content, content_hash, loaded_us, loaded_by FROM catalogue_file \
               ORDER BY revision DESC LIMIT 1";
    let Some(row) = tx.one(sql, vec![]).await? else {
        return Ok(None);
    };
    Ok(Some(StoredFile {
        revision: row.get(0)?,
        content: row.get(1)?,
        content_hash: row.get(2)?,
        loaded: Instant::from_micros(row.get(3)?),
        loaded_by: row.get(4)?,
    }))
}

/// Adds a file. The caller marks what it changes.
///
/// # Errors
/// [`StoreError::Conflict`] when its revision is there.
pub async fn add(_scope: &PlatformScope, tx: &WriteTx, file: &StoredFile) -> Result<(), StoreError> {
    let sql = "INSERT INTO catalogue_file (revision, content, content_hash, loaded_us, loaded_by) \
               VALUES ($1, $2, $3, $4, $5)";
    let values = vec![
        file.revision.into(),
        file.content.clone().into(),
        file.content_hash.clone().into(),
        file.loaded.micros().into(),
        file.loaded_by.clone().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

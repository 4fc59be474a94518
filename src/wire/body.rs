//! A batch's body: compressed bytes with limits at each step, and their hash.
//!
//! The bytes are fixed before the first try and never re-encoded; what is stored is what was signed.

use std::io::Read;

use sha2::{Digest, Sha256};

/// Largest compressed body in bytes.
pub const PACKED_BYTES_MAX: usize = 1 << 20;
/// Largest unpacked body in bytes.
pub const UNPACKED_BYTES_MAX: usize = 8 << 20;
/// Most rows in one batch.
pub const ROWS_MAX: usize = 5_000;

/// Compression level: the senders' cheapest, which already saves nine tenths.
const LEVEL: i32 = 1;

/// Why a body cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// More than [`PACKED_BYTES_MAX`].
    #[error("the body has {bytes} bytes; at most {PACKED_BYTES_MAX} are taken")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Unpacks to more than [`UNPACKED_BYTES_MAX`].
    #[error("the body unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    UnpacksTooLarge,
    /// Not a zstd frame, or a damaged one.
    #[error("the body is not a zstd frame")]
    NotZstd(#[source] std::io::Error),
}

/// Compresses a message.
///
/// # Errors
/// [`BodyError::TooLarge`] and [`BodyError::UnpacksTooLarge`] when it would not be taken; the sender splits the
/// batch.
pub fn pack(message: &[u8]) -> Result<Vec<u8>, BodyError> {
    if message.len() > UNPACKED_BYTES_MAX {
        return Err(BodyError::UnpacksTooLarge);
    }
    let packed = zstd::bulk::compress(message, LEVEL).map_err(BodyError::NotZstd)?;
    if packed.len() > PACKED_BYTES_MAX {
        Err(BodyError::TooLarge { bytes: packed.len() })
    } else {
        Ok(packed)
    }
}

/// Unpacks a body, reading no more than [`UNPACKED_BYTES_MAX`] whatever its header claims.
///
/// # Errors
/// [`BodyError`].
pub fn unpack(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    if body.len() > PACKED_BYTES_MAX {
        return Err(BodyError::TooLarge { bytes: body.len() });
    }
    let decoder = zstd::stream::read::Decoder::new(body).map_err(BodyError::NotZstd)?;
    let mut message = Vec::with_capacity(body.len().saturating_mul(8).min(UNPACKED_BYTES_MAX));
    let limit = u64::try_from(UNPACKED_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut message).map_err(BodyError::NotZstd)?;
    if message.len() > UNPACKED_BYTES_MAX { Err(BodyError::UnpacksTooLarge) } else { Ok(message) }
}

/// SHA-256 of a body's bytes.
#[must_use]
pub fn hash(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// Bytes as lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_unpacks_to_what_was_packed() {
        let message = br#"{"v":"usage_v1"}"#.repeat(100);
        assert_eq!(unpack(&pack(&message).unwrap()).unwrap(), message);
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let bomb = zstd::bulk::compress(&vec![b' '; 64 << 20], 19).unwrap();
        assert!(bomb.len() < 32 << 10, "{}", bomb.len());
        assert!(matches!(unpack(&bomb), Err(BodyError::UnpacksTooLarge)));
    }

    #[test]
    fn noise_and_torn_frames_are_refused() {
        assert!(matches!(unpack(b"not zstd at all"), Err(BodyError::NotZstd(_))));
        let whole = pack(&b"x".repeat(10_000)).unwrap();
        assert!(matches!(unpack(&whole[..whole.len() - 3]), Err(BodyError::NotZstd(_))));
        assert!(matches!(unpack(&vec![0; PACKED_BYTES_MAX + 1]), Err(BodyError::TooLarge { .. })));
    }
}

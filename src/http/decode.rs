//! A body's bytes as they come: decompressed in small steps with a limit on each, under a deadline.
//!
//! The framework's own decompression inflates each chunk whole before any limit is compared: 32 KiB become a gigabyte of
//! memory. Here at most one step is in memory, and what exceeds the limit is never made.

use std::io::Write;
use std::pin::Pin;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::web::Bytes;
use flate2::write::GzDecoder;
use futures_util::StreamExt;
use tokio::time::Sleep;
use zstd::stream::raw::{DParameter, Decoder, Operation};

use super::problem::{Kind, Problem};

/// What comes out of one step at most.
const STEP: usize = 64 << 10;
/// What goes into a gzip step: deflate makes of one byte about a thousand at most.
const GZIP_STEP: usize = 64;
/// A body that is on its way gains a second for each so many bytes.
const BYTES_A_SECOND: u64 = 16 << 10;

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// Reads `Content-Encoding`: one encoding or none, never one in another.
    pub(super) fn parse(header: Option<&str>) -> Result<Self, Problem> {
        match header.map(str::trim) {
            None | Some("" | "identity") => Ok(Self::Identity),
            Some("gzip") => Ok(Self::Gzip),
            Some("zstd") => Ok(Self::Zstd),
            Some(_) => {
                let detail = "Content-Encoding is none of identity, gzip and zstd; one at a time is taken";
                Err(Problem::new(Kind::UnsupportedMediaType, detail))
            }
        }
    }
}

/// How much is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes on the wire.
    pub(super) packed: u64,
    /// Bytes after decompression.
    pub(super) unpacked: u64,
    /// The largest window of a zstd frame, as a power of two: memory that a frame may ask for.
    pub(super) window_log: u32,
    /// How long the body may take to come, before it gains by what came.
    pub(super) deadline: Duration,
}

enum Inflate {
    Identity,
    Gzip(Box<GzDecoder<Vec<u8>>>),
    Zstd { decoder: Box<Decoder<'static>>, is_over: bool },
}

/// A body that is being read.
pub(super) struct BodyReader {
    payload: Payload,
    inflate: Inflate,
    /// Packed bytes that came and are not inflated yet.
    waiting: Bytes,
    limits: Limits,
    packed: u64,
    unpacked: u64,
    deadline: Pin<Box<Sleep>>,
}

/// Why a zstd stream cannot be read on: what it wants of memory is more than is given, or it is broken.
fn bad_zstd(error: &std::io::Error, limit: u64) -> Problem {
    if error.to_string().contains("too much memory") { too_large(limit, "unpacked") } else { bad("zstd") }
}

fn bad(encoding: &str) -> Problem {
    Problem::new(Kind::Malformed, format!("the body is not one whole {encoding} stream"))
}

impl BodyReader {
    pub(super) fn new(payload: Payload, encoding: Encoding, limits: Limits) -> Result<Self, Problem> {
        let inflate = match encoding {
            Encoding::Identity => Inflate::Identity,
            Encoding::Gzip => Inflate::Gzip(Box::new(GzDecoder::new(Vec::new()))),
            Encoding::Zstd => {
                let mut decoder = Decoder::new().map_err(|_| bad("zstd"))?;
                decoder
                    .set_parameter(DParameter::WindowLogMax(limits.window_log))
                    .map_err(|_| bad("zstd"))?;
                Inflate::Zstd { decoder: Box::new(decoder), is_over: false }
            }
        };
        let deadline = Box::pin(tokio::time::sleep(limits.deadline));
        Ok(Self { payload, inflate, waiting: Bytes::new(), limits, packed: 0, unpacked: 0, deadline })
    }

    /// The next bytes of the body, at most [`STEP`] of them where they were packed; none at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            if !self.waiting.is_empty() {
                let step = self.inflate_step()?;
                self.unpacked = self.unpacked.saturating_add(length(&step));
                if self.unpacked > self.limits.unpacked {
                    return Err(too_large(self.limits.unpacked, "unpacked"));
                }
                if !step.is_empty() {
                    return Ok(Some(step));
                }
                continue;
            }
            let Some(chunk) = self.chunk().await? else {
                return self.finish().map(|rest| (!rest.is_empty()).then_some(rest));
            };
            self.waiting = chunk;
        }
    }

    /// The whole body.
    pub(super) async fn whole(&mut self) -> Result<Vec<u8>, Problem> {
        let mut body: Vec<u8> = Vec::new();
        let most = usize::try_from(self.limits.unpacked).unwrap_or(usize::MAX);
        while let Some(bytes) = self.next().await? {
            let needed = body.len().saturating_add(bytes.len());
            if needed > body.capacity() {
                // Twice as much each time, as a vector would by itself, and never more than is taken.
                body.reserve_exact(
                    needed.max(body.len().saturating_mul(2).min(most)).saturating_sub(body.len()),
                );
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        let chunk = tokio::select! {
            biased;
            chunk = self.payload.next() => chunk,
            () = &mut self.deadline => {
                return Err(Problem::new(Kind::BodyTimeout, "the body did not come in time"));
            }
        };
        let Some(chunk) = chunk else { return Ok(None) };
        let chunk = chunk.map_err(|_| Problem::new(Kind::Malformed, "the body ended before its end"))?;
        let before = self.packed;
        self.packed = self.packed.saturating_add(length(&chunk));
        if self.packed > self.limits.packed {
            return Err(too_large(self.limits.packed, "as sent"));
        }
        let gained = (self.packed / BYTES_A_SECOND).saturating_sub(before / BYTES_A_SECOND);
        if gained > 0 {
            let later = self.deadline.deadline() + Duration::from_secs(gained);
            self.deadline.as_mut().reset(later);
        }
        Ok(Some(chunk))
    }

    fn inflate_step(&mut self) -> Result<Bytes, Problem> {
        match &mut self.inflate {
            Inflate::Identity => Ok(std::mem::take(&mut self.waiting)),
            Inflate::Gzip(decoder) => {
                let step = self.waiting.split_to(self.waiting.len().min(GZIP_STEP));
                decoder.write_all(&step).map_err(|_| bad("gzip"))?;
                Ok(std::mem::take(decoder.get_mut()).into())
            }
            Inflate::Zstd { decoder, is_over } => {
                if *is_over {
                    return Err(bad("zstd"));
                }
                let mut out = vec![0; STEP];
                let limit = self.limits.unpacked;
                let status = decoder
                    .run_on_buffers(&self.waiting, &mut out)
                    .map_err(|error| bad_zstd(&error, limit))?;
                let _inflated = self.waiting.split_to(status.bytes_read);
                *is_over = status.remaining == 0;
                out.truncate(status.bytes_written);
                // What the decoder holds back comes with the next call, which needs something to read.
                if status.bytes_read == 0 && status.bytes_written == 0 && !*is_over {
                    return Err(bad("zstd"));
                }
                Ok(out.into())
            }
        }
    }

    /// What is left when nothing more comes; an error where the packed stream is not whole.
    fn finish(&mut self) -> Result<Bytes, Problem> {
        match &mut self.inflate {
            Inflate::Identity => Ok(Bytes::new()),
            Inflate::Gzip(decoder) => {
                decoder.try_finish().map_err(|_| bad("gzip"))?;
                let rest: Bytes = std::mem::take(decoder.get_mut()).into();
                self.unpacked = self.unpacked.saturating_add(length(&rest));
                if self.unpacked > self.limits.unpacked {
                    return Err(too_large(self.limits.unpacked, "unpacked"));
                }
                Ok(rest)
            }
            Inflate::Zstd { is_over, decoder } => {
                if *is_over {
                    return Ok(Bytes::new());
                }
                // All input is read, and a full step may be held back.
                let mut out = vec![0; STEP];
                let status = decoder.run_on_buffers(&[], &mut out).map_err(|_| bad("zstd"))?;
                if status.bytes_written == 0 {
                    return Err(bad("zstd"));
                }
                *is_over = status.remaining == 0;
                out.truncate(status.bytes_written);
                self.unpacked = self.unpacked.saturating_add(length(&out));
                if self.unpacked > self.limits.unpacked {
                    return Err(too_large(self.limits.unpacked, "unpacked"));
                }
                Ok(out.into())
            }
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A body that is larger than is taken.
pub(super) fn too_large(limit: u64, how: &str) -> Problem {
    Problem::new(Kind::TooLarge, format!("the body has more than {limit} bytes {how}"))
}

//! The signature of a batch: a compact EdDSA JWS over the body's hash, the stream, the number and the span.
//!
//! Number and span are read from here and never from the body, so that a body that cannot be decoded still
//! takes its number. Source: DESIGN §4.

use ed25519_dalek::{SigningKey, VerifyingKey};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::body::hex;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// What the signature vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchClaims {
    /// SHA-256 of the body's bytes.
    pub body_hash: [u8; 32],
    /// Who signed: an agent's id, or the installation for an import.
    pub issuer: String,
    /// On whose behalf, where that is another: who imported.
    pub subject: Option<String>,
    /// The node or pool.
    pub scope: ScopeName,
    /// The stream.
    pub stream: Uuid,
    /// The batch's number in the stream, from 1.
    pub sequence: i64,
    /// The span that the batch is about.
    pub span: Span,
}

/// The claims as they stand in the token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    bh: String,
    iss: String,
    jti: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    stream: String,
    seq: i64,
    from: i64,
    to: i64,
}

/// Why a signature is not believed.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// A public key is not 32 bytes of a usable point.
    #[error("the public key is not a usable Ed25519 point")]
    WeakKey,
    /// The token cannot be made.
    #[error("the batch cannot be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
    /// The token is damaged, of another algorithm, or not signed by this key.
    #[error("the signature does not hold")]
    Verify(#[source] jsonwebtoken::errors::Error),
    /// A claim is missing or malformed.
    #[error("the claim `{claim}` is missing or malformed")]
    Claim {
        /// Which claim.
        claim: &'static str,
    },
    /// The body is not the one that was signed.
    #[error("the body's hash is not the signed one")]
    OtherBody,
}

/// A key that signs batches.
#[derive(Clone)]
pub struct BatchSigner {
    key: EncodingKey,
    verifying: VerifyingKey,
}

impl std::fmt::Debug for BatchSigner {
    /// Never shows the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BatchSigner({})", self.key_id())
    }
}

impl BatchSigner {
    /// A signer from a 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        // RFC 8410: a fixed PKCS #8 header for Ed25519, followed by the seed.
        const PKCS8_HEADER: [u8; 16] =
            [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
        let document = [PKCS8_HEADER.as_slice(), seed.as_slice()].concat();
        Self {
            key: EncodingKey::from_ed_der(&document),
            verifying: SigningKey::from_bytes(seed).verifying_key(),
        }
    }

    /// The public half.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.verifying.to_bytes()
    }

    /// The key's id: the first half of its public key's hash.
    #[must_use]
    pub fn key_id(&self) -> String {
        key_id(&self.public_key())
    }

    /// Signs a batch.
    ///
    /// # Errors
    /// [`SignatureError::Sign`].
    pub fn sign(&self, claims: &BatchClaims) -> Result<String, SignatureError> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.key_id());
        let scope = |kind: ScopeKind| (claims.scope.kind == kind).then(|| claims.scope.name.to_string());
        let token = Token {
            bh: hex(&claims.body_hash),
            iss: claims.issuer.clone(),
            jti: Uuid::new_v5(&claims.stream, &claims.sequence.to_be_bytes()).to_string(),
            sub: claims.subject.clone(),
            node: scope(ScopeKind::Node),
            pool: scope(ScopeKind::Pool),
            stream: claims.stream.to_string(),
            seq: claims.sequence,
            from: claims.span.start().micros(),
            to: claims.span.end().micros(),
        };
        jsonwebtoken::encode(&header, &token, &self.key).map_err(SignatureError::Sign)
    }
}

/// The id of a public key.
#[must_use]
pub fn key_id(public_key: &[u8; 32]) -> String {
    super::body::hash(public_key).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A public key that was checked to be a usable point.
#[derive(Clone)]
pub struct BatchVerifier {
    key: DecodingKey,
    public_key: [u8; 32],
}

impl std::fmt::Debug for BatchVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BatchVerifier")
    }
}

impl BatchVerifier {
    /// Takes exactly 32 bytes and refuses weak points, for which forged signatures would hold.
    ///
    /// # Errors
    /// [`SignatureError::WeakKey`].
    pub fn new(public_key: &[u8]) -> Result<Self, SignatureError> {
        let bytes: [u8; 32] = public_key.try_into().map_err(|_| SignatureError::WeakKey)?;
        let point = VerifyingKey::from_bytes(&bytes).map_err(|_| SignatureError::WeakKey)?;
        if point.is_weak() {
            return Err(SignatureError::WeakKey);
        }
        Ok(Self { key: DecodingKey::from_ed_der(&bytes), public_key: bytes })
    }

    /// The key.
    #[must_use]
    pub const fn public_key(&self) -> &[u8; 32] {
        &self.public_key
    }

    /// Checks the token and that it signs exactly this body.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn verify(&self, token: &str, body: &[u8]) -> Result<BatchClaims, SignatureError> {
        let mut validation = Validation::new(Algorithm::EdDSA);
        // A kept batch is checked again after years, so its own token does not expire; a request's does.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let token = jsonwebtoken::decode::<Token>(token, &self.key, &validation)
            .map_err(SignatureError::Verify)?
            .claims;
        let claims = token.read()?;
        if claims.body_hash == super::body::hash(body) { Ok(claims) } else { Err(SignatureError::OtherBody) }
    }
}

impl Token {
    fn read(self) -> Result<BatchClaims, SignatureError> {
        let malformed = |claim| SignatureError::Claim { claim };
        let (kind, name) = match (self.node, self.pool) {
            (Some(node), None) => (ScopeKind::Node, node),
            (None, Some(pool)) => (ScopeKind::Pool, pool),
            (Some(_), Some(_)) | (None, None) => return Err(malformed("node")),
        };
        let name = Name::parse(&name).map_err(|_| malformed("node"))?;
        let (from, to) = (Instant::from_micros(self.from), Instant::from_micros(self.to));
        if from < Instant::MIN || to > Instant::MAX {
            return Err(malformed("from"));
        }
        if self.seq < 1 {
            return Err(malformed("seq"));
        }
        Ok(BatchClaims {
            body_hash: unhex(&self.bh).ok_or(malformed("bh"))?,
            issuer: self.iss,
            subject: self.sub,
            scope: ScopeName { kind, name },
            stream: Uuid::parse_str(&self.stream).map_err(|_| malformed("stream"))?,
            sequence: self.seq,
            span: Span::new(from, to).map_err(|_| malformed("to"))?,
        })
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if !text.is_ascii() {
        return None;
    }
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes: Vec<u8> = pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect::<Option<_>>()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(body: &[u8]) -> BatchClaims {
        BatchClaims {
            body_hash: super::super::body::hash(body),
            issuer: "installation".into(),
            subject: Some("ana".into()),
            scope: ScopeName { kind: ScopeKind::Node, name: Name::fixed("node-1") },
            stream: Uuid::from_u128(7),
            sequence: 3,
            span: Span::clamped(Instant::from_micros(0), Instant::from_micros(60_000_000)),
        }
    }

    #[test]
    fn what_was_signed_is_what_is_read() {
        let signer = BatchSigner::from_seed(&[7; 32]);
        let token = signer.sign(&claims(b"body")).unwrap();
        let verifier = BatchVerifier::new(&signer.public_key()).unwrap();
        assert_eq!(verifier.verify(&token, b"body").unwrap(), claims(b"body"));
    }

    /// Kept tokens are checked again after years: neither the claims nor their encoding may move.
    #[test]
    fn a_token_reads_as_it_was_released() {
        let token = BatchSigner::from_seed(&[7; 32]).sign(&claims(b"body")).unwrap();
        let header = jsonwebtoken::decode_header(&token).unwrap();
        assert_eq!(
            (header.alg, header.kid.as_deref()),
            (Algorithm::EdDSA, Some("fe812c12f3ab4ce6ac5db69ac352f906"))
        );
        let payload: serde_json::Value = jsonwebtoken::dangerous::insecure_decode(&token).unwrap().claims;
        assert_eq!(
            payload,
            serde_json::json!({
                "bh": "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5",
                "iss": "installation",
                "jti": "5d15d71e-4880-5ce1-a398-1ceda66f927a",
                "sub": "ana",
                "node": "node-1",
                "stream": "00000000-0000-0000-0000-000000000007",
                "seq": 3,
                "from": 0,
                "to": 60_000_000,
            })
        );
    }

    #[test]
    fn another_body_key_or_algorithm_is_refused() {
        let signer = BatchSigner::from_seed(&[7; 32]);
        let token = signer.sign(&claims(b"body")).unwrap();
        let verifier = BatchVerifier::new(&signer.public_key()).unwrap();
        assert!(matches!(verifier.verify(&token, b"other"), Err(SignatureError::OtherBody)));
        let other = BatchVerifier::new(&BatchSigner::from_seed(&[8; 32]).public_key()).unwrap();
        assert!(matches!(other.verify(&token, b"body"), Err(SignatureError::Verify(_))));
        let payload = token.split('.').nth(1).unwrap();
        let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
        assert!(verifier.verify(&unsigned, b"body").is_err());
    }

    #[test]
    fn weak_and_short_keys_are_refused() {
        for weak in [vec![0; 32], [&[1][..], &[0; 31][..]].concat(), vec![7; 31], vec![], vec![7; 33]] {
            assert!(matches!(BatchVerifier::new(&weak), Err(SignatureError::WeakKey)), "{weak:?}");
        }
    }
}

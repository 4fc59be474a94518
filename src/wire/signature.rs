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

/// Longest time in seconds between a request's `iat` and its `exp`.
pub const REQUEST_SECONDS_MAX: i64 = 60;

/// What an agent's signature on a request vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestClaims {
    /// SHA-256 of the body's bytes.
    pub body_hash: [u8; 32],
    /// The agent's id.
    pub issuer: String,
    /// The node for which it speaks.
    pub node: Name,
    /// The installation that is asked: [`audience`] of its public key.
    pub audience: String,
    /// When it was signed, in seconds since 1970 UTC by the service's clock.
    pub issued: i64,
    /// From when on it holds no longer; at most [`REQUEST_SECONDS_MAX`] later.
    pub expires: i64,
    /// The method.
    pub method: String,
    /// The path.
    pub path: String,
    /// Where in a stream its body stands; none for what is no batch and no skip.
    pub place: Option<StreamPlace>,
    /// Why the stream was begun, with the first number of one that follows another.
    pub reason: Option<String>,
}

/// Where in a stream a body stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPlace {
    /// The stream.
    pub stream: Uuid,
    /// The number, from 1; of a skip the last.
    pub sequence: i64,
    /// The span that it is about.
    pub span: Span,
}

impl RequestClaims {
    /// As the claims of a batch; none where the request is of no stream.
    #[must_use]
    pub fn batch(&self) -> Option<BatchClaims> {
        let place = self.place.as_ref()?;
        Some(BatchClaims {
            body_hash: self.body_hash,
            issuer: self.issuer.clone(),
            subject: None,
            scope: ScopeName { kind: ScopeKind::Node, name: self.node.clone() },
            stream: place.stream,
            sequence: place.sequence,
            span: place.span,
        })
    }
}

/// How an installation is named in requests to it, so that what was signed for one is no use at another.
#[must_use]
pub fn audience(public_key: &[u8; 32]) -> String {
    format!("fatia:{}", key_id(public_key))
}

/// The claims as they stand in the token.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    bh: String,
    iss: String,
    jti: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aud: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    htm: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    htu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
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
        let scope = |kind: ScopeKind| (claims.scope.kind == kind).then(|| claims.scope.name.to_string());
        let token = Token {
            bh: hex(&claims.body_hash),
            iss: claims.issuer.clone(),
            jti: Uuid::new_v5(&claims.stream, &claims.sequence.to_be_bytes()).to_string(),
            sub: claims.subject.clone(),
            node: scope(ScopeKind::Node),
            pool: scope(ScopeKind::Pool),
            stream: Some(claims.stream.to_string()),
            seq: Some(claims.sequence),
            from: Some(claims.span.start().micros()),
            to: Some(claims.span.end().micros()),
            ..Token::default()
        };
        self.encode(&token)
    }

    /// Signs a request. The token holds a batch's claims too where the request brings one, so that it can be kept with
    /// the batch as evidence.
    ///
    /// # Errors
    /// [`SignatureError::Sign`].
    pub fn sign_request(&self, claims: &RequestClaims) -> Result<String, SignatureError> {
        let place = claims.place.as_ref();
        let within =
            |place: &StreamPlace| Uuid::new_v5(&place.stream, &place.sequence.to_be_bytes()).to_string();
        let other = || Uuid::new_v5(&Uuid::NAMESPACE_OID, &claims.body_hash).to_string();
        let token = Token {
            bh: hex(&claims.body_hash),
            iss: claims.issuer.clone(),
            jti: place.map_or_else(other, within),
            node: Some(claims.node.to_string()),
            stream: place.map(|place| place.stream.to_string()),
            seq: place.map(|place| place.sequence),
            from: place.map(|place| place.span.start().micros()),
            to: place.map(|place| place.span.end().micros()),
            aud: Some(claims.audience.clone()),
            iat: Some(claims.issued),
            nbf: Some(claims.issued),
            exp: Some(claims.expires),
            htm: Some(claims.method.clone()),
            htu: Some(claims.path.clone()),
            why: claims.reason.clone(),
            ..Token::default()
        };
        self.encode(&token)
    }

    fn encode(&self, token: &Token) -> Result<String, SignatureError> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.key_id());
        jsonwebtoken::encode(&header, token, &self.key).map_err(SignatureError::Sign)
    }
}

/// The id of a public key.
#[must_use]
pub fn key_id(public_key: &[u8; 32]) -> String {
    super::body::hash(public_key).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Which key a token says that it is signed with. It is not believed, but looked up.
#[must_use]
pub fn key_of(token: &str) -> Option<String> {
    let kid = jsonwebtoken::decode_header(token).ok()?.kid?;
    let is_key_id = kid.len() == 32 && kid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_key_id.then_some(kid)
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
        let claims = self.decode(token)?.read()?;
        if claims.body_hash == super::body::hash(body) { Ok(claims) } else { Err(SignatureError::OtherBody) }
    }

    /// Checks a request's token. Its times, audience, method, path and body are the caller's to compare: it knows what
    /// they ought to be.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn verify_request(&self, token: &str) -> Result<RequestClaims, SignatureError> {
        self.decode(token)?.read_request()
    }

    fn decode(&self, token: &str) -> Result<Token, SignatureError> {
        let mut validation = Validation::new(Algorithm::EdDSA);
        // A kept batch is checked again after years, so its token does not expire here; a request's times are compared by
        // its receiver, whose clock is not read here.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let token = jsonwebtoken::decode::<Token>(token, &self.key, &validation);
        Ok(token.map_err(SignatureError::Verify)?.claims)
    }
}

const fn malformed(claim: &'static str) -> SignatureError {
    SignatureError::Claim { claim }
}

impl Token {
    fn read(self) -> Result<BatchClaims, SignatureError> {
        let place = self.place()?.ok_or(malformed("stream"))?;
        let (kind, name) = match (self.node, self.pool) {
            (Some(node), None) => (ScopeKind::Node, node),
            (None, Some(pool)) => (ScopeKind::Pool, pool),
            (Some(_), Some(_)) | (None, None) => return Err(malformed("node")),
        };
        let name = Name::parse(&name).map_err(|_| malformed("node"))?;
        Ok(BatchClaims {
            body_hash: unhex(&self.bh).ok_or(malformed("bh"))?,
            issuer: self.iss,
            subject: self.sub,
            scope: ScopeName { kind, name },
            stream: place.stream,
            sequence: place.sequence,
            span: place.span,
        })
    }

    fn place(&self) -> Result<Option<StreamPlace>, SignatureError> {
        let (stream, sequence, from, to) = match (&self.stream, self.seq, self.from, self.to) {
            (Some(stream), Some(sequence), Some(from), Some(to)) => (stream, sequence, from, to),
            (None, None, None, None) => return Ok(None),
            _ => return Err(malformed("stream")),
        };
        let (from, to) = (Instant::from_micros(from), Instant::from_micros(to));
        if from < Instant::MIN || to > Instant::MAX {
            return Err(malformed("from"));
        }
        if sequence < 1 {
            return Err(malformed("seq"));
        }
        let stream = Uuid::parse_str(stream).map_err(|_| malformed("stream"))?;
        let span = Span::new(from, to).map_err(|_| malformed("to"))?;
        Ok(Some(StreamPlace { stream, sequence, span }))
    }

    fn read_request(self) -> Result<RequestClaims, SignatureError> {
        let place = self.place()?;
        let (Some(issued), Some(begins), Some(expires)) = (self.iat, self.nbf, self.exp) else {
            return Err(malformed("exp"));
        };
        let lasts = expires.saturating_sub(issued.min(begins));
        if begins < issued || !(0..=REQUEST_SECONDS_MAX).contains(&lasts) {
            return Err(malformed("exp"));
        }
        Ok(RequestClaims {
            body_hash: unhex(&self.bh).ok_or(malformed("bh"))?,
            issuer: self.iss,
            node: self.node.and_then(|name| Name::parse(&name).ok()).ok_or(malformed("node"))?,
            audience: self.aud.ok_or(malformed("aud"))?,
            issued,
            expires,
            method: self.htm.ok_or(malformed("htm"))?,
            path: self.htu.ok_or(malformed("htu"))?,
            place,
            reason: self.why.map(|text| text.chars().filter(|c| !c.is_control()).take(100).collect()),
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

    fn request(body: &[u8]) -> RequestClaims {
        RequestClaims {
            body_hash: super::super::body::hash(body),
            issuer: "7d444840-9dc0-11d1-b245-5ffdce74fad2".into(),
            node: Name::fixed("node-1"),
            audience: audience(&[7; 32]),
            issued: 1_780_000_000,
            expires: 1_780_000_060,
            method: "POST".into(),
            path: "/api/v1/usage/batches".into(),
            place: Some(StreamPlace {
                stream: Uuid::from_u128(7),
                sequence: 3,
                span: Span::clamped(Instant::from_micros(0), Instant::from_micros(60_000_000)),
            }),
            reason: None,
        }
    }

    #[test]
    fn a_request_reads_back_and_serves_as_the_batchs_evidence() {
        let signer = BatchSigner::from_seed(&[7; 32]);
        let verifier = BatchVerifier::new(&signer.public_key()).unwrap();
        let claims = request(b"body");
        let token = signer.sign_request(&claims).unwrap();
        assert_eq!(key_of(&token), Some(signer.key_id()));
        assert_eq!(verifier.verify_request(&token).unwrap(), claims);
        assert_eq!(verifier.verify(&token, b"body").unwrap(), claims.batch().unwrap());
        let plain = RequestClaims { place: None, reason: Some("rollback".into()), ..claims };
        let token = signer.sign_request(&plain).unwrap();
        assert_eq!(verifier.verify_request(&token).unwrap(), plain);
        assert!(verifier.verify(&token, b"body").is_err(), "it is no batch's");
    }

    #[test]
    fn a_request_that_holds_for_longer_than_a_minute_is_refused() {
        let signer = BatchSigner::from_seed(&[7; 32]);
        let verifier = BatchVerifier::new(&signer.public_key()).unwrap();
        for expires in [1_780_000_061, 1_779_999_999, i64::MAX] {
            let token = signer.sign_request(&RequestClaims { expires, ..request(b"body") }).unwrap();
            assert!(verifier.verify_request(&token).is_err(), "{expires}");
        }
        // A batch's token is no request's.
        assert!(verifier.verify_request(&signer.sign(&claims(b"body")).unwrap()).is_err());
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

//! The text of a bearer token: `fatia_<id>_<secret><check>`.
//!
//! The prefix lets scanners find a leaked token, the check lets them (and us, without asking a database) tell one from
//! a text that only looks like it. The id is public; the secret has 256 random bits, so a plain hash of it is kept.

use sha2::{Digest, Sha256};

use super::body::hex;

const PREFIX: &str = "fatia_";
const ID_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 64;
const CHECK_DIGITS: usize = 8;

/// What a bearer presents, as far as it may be kept: the id and the hash of the secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Presented {
    /// The public id: 16 hexadecimal digits.
    pub id: String,
    /// SHA-256 of the secret.
    pub secret_hash: [u8; 32],
}

/// A new token: its text, shown once, and what is kept of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Minted {
    /// The whole text. Secret.
    pub text: String,
    /// What is kept.
    pub presented: Presented,
}

impl std::fmt::Debug for Minted {
    /// Never shows the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Minted({})", self.presented.id)
    }
}

/// Makes a token of random bytes: eight for the id, the rest for the secret.
#[must_use]
pub fn mint(random: &[u8; 40]) -> Minted {
    let digits = hex(random);
    let (id, secret) = digits.split_at(ID_DIGITS);
    let text = format!("{PREFIX}{id}_{secret}{}", check(id, secret));
    Minted { text, presented: Presented { id: id.to_owned(), secret_hash: Sha256::digest(secret).into() } }
}

/// Reads a token's text; none where it is no token of ours.
#[must_use]
pub fn read(text: &str) -> Option<Presented> {
    let (id, rest) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if id.len() != ID_DIGITS || rest.len() != SECRET_DIGITS + CHECK_DIGITS || !is_hex(id) || !is_hex(rest) {
        return None;
    }
    let (secret, checked) = rest.split_at(SECRET_DIGITS);
    let presented = Presented { id: id.to_owned(), secret_hash: Sha256::digest(secret).into() };
    (check(id, secret) == checked).then_some(presented)
}

/// The first digits of a hash over id and secret.
fn check(id: &str, secret: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(format!("{id}_{secret}")).into();
    hex(&digest).chars().take(CHECK_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_a_slip_is_not() {
        let minted = mint(&[7; 40]);
        assert_eq!(minted.text.len(), 6 + 16 + 1 + 64 + 8);
        assert_eq!(read(&minted.text), Some(minted.presented.clone()));
        assert!(!format!("{minted:?}").contains(&minted.text[24..40]), "the secret is not shown");
        for at in 6..minted.text.len() {
            let mut slipped = minted.text.clone().into_bytes();
            slipped[at] = if slipped[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(read(&String::from_utf8(slipped).unwrap()), None, "digit {at}");
        }
        for text in ["", "fatia_", "fatia__", "Bearer x", &minted.text[1..], &minted.text.to_uppercase()] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

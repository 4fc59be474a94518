//! Names and numbers that identify things.
//!
//! Two kinds: *natural keys* (names, UUIDs), which appear in bodies, sort orders and reports; and row
//! numbers of the store, which never do (DESIGN §4).

use std::fmt;
use std::sync::Arc;

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// A text as a name: trimmed, not empty, at most 256 bytes, without control characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing left after trimming.
    #[error("is empty")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    /// Holds a control character, or one that changes the direction of text.
    #[error("holds a control character")]
    Control,
}

impl Name {
    /// Reads a name; white space around it is cut.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let steers = |c: char| {
            c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        };
        if text.chars().any(steers) {
            return Err(NameError::Control);
        }
        Ok(Self(Arc::from(text)))
    }

    /// A name that is written in this program, such as a reserved word.
    #[must_use]
    pub fn fixed(text: &'static str) -> Self {
        Self(Arc::from(text))
    }

    /// Where the text is kept: equal for clones of one name. To find it quickly, never to order or tell it by.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<u8>().addr()
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The row number of a tenant; 0 is the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(i64);

impl TenantId {
    /// The platform: parts without holder, `rounding`, and what no rule maps.
    pub const PLATFORM: Self = Self(0);

    /// A tenant's number as stored.
    #[must_use]
    pub const fn from_stored(number: i64) -> Self {
        Self(number)
    }

    /// The number as stored.
    #[must_use]
    pub const fn stored(self) -> i64 {
        self.0
    }
}

/// The row number of a scope: a node or a pool, the unit that batches speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(i64);

impl ScopeId {
    /// A scope's number as stored.
    #[must_use]
    pub const fn from_stored(number: i64) -> Self {
        Self(number)
    }

    /// The number as stored.
    #[must_use]
    pub const fn stored(self) -> i64 {
        self.0
    }
}

/// What a batch speaks for: exactly one node or one pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeName {
    /// Node or pool.
    pub kind: ScopeKind,
    /// Its name.
    pub name: Name,
}

/// A node, or a pool of devices without ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScopeKind {
    /// One host.
    Node,
    /// The in-service devices of one model on a node or cluster.
    Pool,
}

impl ScopeKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Node, Self::Pool];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pool => "pool",
        }
    }

    /// Reads a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Work is leased by bucket: a stable hash of the node's (or the tenant's) name, 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u8);

impl Bucket {
    /// How many there are.
    pub const COUNT: i64 = 256;

    /// The bucket of a name. FNV-1a folded to eight bits: stable over versions and machines.
    #[must_use]
    pub fn of(name: &Name) -> Self {
        let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash.to_be_bytes().into_iter().fold(0, |folded, byte| folded ^ byte))
    }

    /// A bucket's number as stored.
    #[must_use]
    pub fn from_stored(number: i64) -> Option<Self> {
        u8::try_from(number).ok().map(Self)
    }

    /// The bucket of a tenant.
    #[must_use]
    pub fn of_tenant(tenant: TenantId) -> Self {
        let bytes = tenant.0.to_be_bytes();
        Self(bytes.into_iter().fold(0, |folded, byte| folded ^ byte))
    }

    /// The number as stored.
    #[must_use]
    pub fn stored(self) -> i64 {
        i64::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_trimmed_and_limited() {
        assert_eq!(Name::parse("  a b ").unwrap().as_str(), "a b");
        assert_eq!(Name::parse(" \t "), Err(NameError::Empty));
        assert_eq!(Name::parse("a\nb"), Err(NameError::Control));
        assert_eq!(Name::parse("a\u{202e}b"), Err(NameError::Control));
        assert_eq!(Name::parse(&"x".repeat(257)), Err(NameError::TooLong));
        assert!(Name::parse(&"x".repeat(256)).is_ok());
    }

    #[test]
    fn buckets_do_not_move_between_versions() {
        assert_eq!(Bucket::of(&Name::fixed("node-1")).stored(), Bucket::of(&Name::fixed("node-1")).stored());
        let mut used = std::collections::BTreeSet::new();
        for node in 0..4_096 {
            used.insert(Bucket::of(&Name::parse(&format!("node-{node:04}")).unwrap()));
        }
        assert!(used.len() > 250, "buckets are spread: {}", used.len());
    }
}

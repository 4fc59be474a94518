//! From a request's token to its caller, and how many requests it may make.
//!
//! Always true here: a token that was revoked anywhere is refused within [`KEPT_US`]; what was presented is kept as a hash
//! only; both caches are bounded.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::problem::{Kind, Problem};
use super::settings::Settings;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::services::access::{Identity, identify};
use crate::services::agents::{AgentIdentity, identify_key};
use crate::services::ctx::Platform;
use crate::services::error::ServiceError;
use crate::wire::signature::{self, RequestClaims};
use crate::wire::token::{self, Minted, Presented};

/// How long an answer about a token is believed.
const KEPT_US: i64 = 3 * MICROS_PER_SECOND;
/// Answers that are kept at once.
const KEPT_MAX: usize = 10_000;

/// What is known of tokens.
pub(super) struct Tokens {
    /// The process's own token, which is in no database.
    local: Presented,
    operator: Arc<Identity>,
    kept: Mutex<HashMap<Presented, Kept>>,
}

struct Kept {
    identity: Option<Arc<Identity>>,
    asked: Instant,
}

impl Tokens {
    pub(super) fn new(local: &Minted, actor: &str) -> Self {
        Self {
            local: local.presented.clone(),
            operator: Arc::new(Identity::operator(actor)),
            kept: Mutex::default(),
        }
    }

    /// Who presents this `Authorization` header; none where there is no such header. What is not known already is
    /// counted first, so that nobody makes the database work by guessing.
    pub(super) async fn identity(
        &self,
        platform: &Platform,
        header: Option<&str>,
        lookup: &impl Fn() -> Result<(), Problem>,
        count: &impl Fn() -> Result<(), Problem>,
    ) -> Result<Option<Arc<Identity>>, Problem> {
        let Some(header) = header else { return Ok(None) };
        let refused = || Problem::new(Kind::Unauthorized, "the token is unknown, expired or revoked");
        let scheme_ends = header.find(' ').unwrap_or(header.len());
        let (scheme, rest) = header.split_at(scheme_ends);
        if !scheme.eq_ignore_ascii_case("bearer") {
            count()?;
            return Err(Problem::new(Kind::Unauthorized, "Authorization is to be: Bearer TOKEN"));
        }
        let Some(presented) = token::read(rest.trim()) else {
            count()?;
            return Err(refused());
        };
        // The hash of a secret of 256 bits tells nothing by how long it takes to compare.
        if presented == self.local {
            return Ok(Some(Arc::clone(&self.operator)));
        }
        let now = platform.now();
        let identity = match self.find(&presented, now) {
            Some(known) => known,
            None => {
                lookup()?;
                self.ask(platform, presented, now).await?
            }
        };
        match identity {
            Some(identity) if identity.expires.is_none_or(|expires| now < expires) => Ok(Some(identity)),
            Some(_) | None => {
                count()?;
                Err(refused())
            }
        }
    }

    fn find(&self, presented: &Presented, now: Instant) -> Option<Option<Arc<Identity>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let there = kept.get(presented)?;
        // A clock that was set back makes an answer old as well.
        (0..KEPT_US).contains(&now.micros_since(there.asked)).then(|| there.identity.clone())
    }

    async fn ask(
        &self,
        platform: &Platform,
        presented: Presented,
        asked: Instant,
    ) -> Result<Option<Arc<Identity>>, ServiceError> {
        let identity = identify(platform, &presented).await?.map(Arc::new);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, each| (0..KEPT_US).contains(&asked.micros_since(each.asked)));
        }
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(presented, Kept { identity: identity.clone(), asked });
        Ok(identity)
    }

    /// Forgets all answers: a token was revoked here.
    pub(super) fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What is known of agents' keys.
#[derive(Default)]
pub(super) struct AgentKeys {
    kept: Mutex<HashMap<String, KeptKey>>,
}

struct KeptKey {
    agent: Option<Arc<AgentIdentity>>,
    asked: Instant,
}

/// By how much an agent's estimate of the service's time may be off.
const LEEWAY_SECONDS: i64 = 5;

impl AgentKeys {
    /// Who signed a request of this method and path, and what. What it signed of the body is compared when that is read.
    pub(super) async fn signer(
        &self,
        platform: &Platform,
        token: &str,
        asked: (&str, &str),
        lookup: &impl Fn() -> Result<(), Problem>,
        count: &impl Fn() -> Result<(), Problem>,
    ) -> Result<(Arc<AgentIdentity>, RequestClaims), Problem> {
        let refused =
            || Problem::new(Kind::Unauthorized, "the key is unknown or revoked, or did not sign this");
        let bad = |why: &str| Err(Problem::new(Kind::Unauthorized, format!("the signature is {why}")));
        let Some(key) = signature::key_of(token) else {
            count()?;
            return Err(refused());
        };
        let Some(agent) = self.holder(platform, &key, lookup).await? else {
            count()?;
            return Err(refused());
        };
        let Ok(claims) = agent.key.verify_request(token) else {
            count()?;
            return Err(refused());
        };
        if claims.issuer != agent.id {
            return bad("another agent's than its key");
        }
        if claims.audience != signature::audience(&platform.installation.public_key) {
            return bad("for another installation");
        }
        if (claims.method.as_str(), claims.path.as_str()) != asked {
            return bad("for another request");
        }
        let now = platform.now().micros() / MICROS_PER_SECOND;
        if claims.issued > now.saturating_add(LEEWAY_SECONDS)
            || claims.expires < now.saturating_sub(LEEWAY_SECONDS)
        {
            let off = claims.issued.saturating_sub(now);
            let detail = format!("the signature is {off} s off the service's time, which the answer tells");
            return Err(Problem::new(Kind::ClockSkew, detail));
        }
        Ok((agent, claims))
    }

    /// Whose key it is, if it still holds.
    pub(super) async fn holder(
        &self,
        platform: &Platform,
        key: &str,
        lookup: &impl Fn() -> Result<(), Problem>,
    ) -> Result<Option<Arc<AgentIdentity>>, Problem> {
        let now = platform.now();
        {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let there = kept.get(key).filter(|there| (0..KEPT_US).contains(&now.micros_since(there.asked)));
            if let Some(there) = there {
                return Ok(there.agent.clone());
            }
        }
        lookup()?;
        let agent = identify_key(platform, key).await?.map(Arc::new);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, each| (0..KEPT_US).contains(&now.micros_since(each.asked)));
        }
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(key.to_owned(), KeptKey { agent: agent.clone(), asked: now });
        Ok(agent)
    }

    /// Forgets all answers: an agent was revoked here.
    pub(super) fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The signed token of an agent's request; none where the header holds something else.
pub(super) fn agent_token(header: Option<&str>) -> Option<&str> {
    let (scheme, rest) = header?.split_once(' ')?;
    let text = rest.trim();
    // A bearer token of ours has no dot.
    let is_signed =
        scheme.eq_ignore_ascii_case("bearer") && text.bytes().filter(|byte| *byte == b'.').count() == 2;
    is_signed.then_some(text)
}

/// How often tokens and addresses may ask.
pub(super) struct Limits {
    tokens: Option<DefaultKeyedRateLimiter<String>>,
    addresses: Option<DefaultKeyedRateLimiter<IpAddr>>,
    /// Looks into the database for a token that is not known already. Behind a proxy all tokens come from one address,
    /// so many more are let through than bad ones.
    lookups: Option<DefaultKeyedRateLimiter<IpAddr>>,
}

/// How many good tokens an address may bring where one bad one is let through.
const LOOKUPS_A_REFUSAL: u32 = 50;

impl Limits {
    pub(super) fn new(settings: &Settings) -> Self {
        let quota = |rate: u32, burst: u32| {
            let (rate, burst) = (NonZeroU32::new(rate)?, NonZeroU32::new(burst.max(1))?);
            Some(Quota::per_second(rate).allow_burst(burst))
        };
        Self {
            tokens: quota(settings.token_rate, settings.token_burst).map(RateLimiter::keyed),
            addresses: quota(settings.address_rate, settings.address_burst).map(RateLimiter::keyed),
            lookups: quota(
                settings.address_rate.saturating_mul(LOOKUPS_A_REFUSAL),
                settings.address_burst.saturating_mul(LOOKUPS_A_REFUSAL),
            )
            .map(RateLimiter::keyed),
        }
    }

    /// Counts a request of a token.
    pub(super) fn token(&self, id: &str) -> Result<(), Problem> {
        check(self.tokens.as_ref(), &id.to_owned(), "this token")
    }

    /// Counts a request without a valid token.
    pub(super) fn address(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        match address {
            Some(address) => check(self.addresses.as_ref(), &network(address), "this address"),
            None => Ok(()),
        }
    }

    /// Counts a look into the database for a token.
    pub(super) fn lookup(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        match address {
            Some(address) => check(self.lookups.as_ref(), &network(address), "this address"),
            None => Ok(()),
        }
    }

    /// Forgets who did not ask for a while, so that the tables do not grow with each address there ever was.
    pub(super) fn forget_idle(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.retain_recent();
        }
        for addresses in [&self.addresses, &self.lookups].into_iter().flatten() {
            addresses.retain_recent();
        }
    }
}

/// A host on IPv6 has a network of 2^64 addresses to ask from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn check<K: std::hash::Hash + Eq + Clone>(
    limiter: Option<&DefaultKeyedRateLimiter<K>>,
    key: &K,
    who: &str,
) -> Result<(), Problem> {
    let Some(limiter) = limiter else { return Ok(()) };
    let Err(wait) = limiter.check_key(key) else { return Ok(()) };
    let wait = wait.wait_time_from(limiter.clock().now()).max(Duration::from_secs(1));
    let seconds = wait.as_secs().max(1);
    let detail = format!("{who} asks more often than is allowed");
    Err(Problem { retry_after: Some(seconds), ..Problem::new(Kind::TooManyRequests, detail) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_counted_by_its_network_and_a_burst_ends() {
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            tls: None,
            threads: 1,
            connections_max: 1,
            head_seconds: 1,
            body_seconds: 1,
            stop_seconds: 1,
            token_rate: 0,
            token_burst: 0,
            address_rate: 1,
            address_burst: 3,
            import_mib_max: 1,
        };
        let limits = Limits::new(&settings);
        let ask = |text: &str| limits.address(Some(text.parse().unwrap()));
        for _ in 0..3 {
            ask("2001:db8::1").unwrap();
        }
        let refused = ask("2001:db8::2").unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (Kind::TooManyRequests, Some(1)));
        ask("2001:db8:0:1::1").unwrap();
        ask("192.0.2.1").unwrap();
        let open = Limits::new(&Settings { address_rate: 0, ..settings });
        (0..1_000).for_each(|_| open.address(Some("192.0.2.1".parse().unwrap())).unwrap());
    }
}

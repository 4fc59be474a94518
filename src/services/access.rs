//! Tokens, and who a request comes from.
//!
//! Always true here: a caller comes from a verified token and from nothing else; whoever belongs to one tenant is never
//! handed the platform.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::agents::AgentIdentity;
use super::ctx::{Asked, Changed, Platform, Record};
use super::error::{Fault, ServiceError};
use crate::domain::access::{Grants, Permission, Reach, Role};
use crate::domain::ids::{Name, TenantId};
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::tokens::StoredToken;
use crate::store::{Scope, TenantScope, tenants, tokens, unit};
use crate::wire::token::{Minted, Presented};

/// The id of the operator's token, which is no token's in the database.
const OPERATOR: &str = "local";
/// A token's use is noted when the last note is older than this.
const NOTED_EVERY_US: i64 = 600 * MICROS_PER_SECOND;

/// One tenant's view: what it is called, and the scope that sees its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenancy {
    /// The tenant's name.
    pub name: Name,
    /// Its rows.
    pub scope: TenantScope,
}

/// Who a token belongs to, as verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token's id; `local` for the operator of this process.
    pub token: String,
    /// What the token is called.
    pub name: String,
    /// What it may do.
    pub grants: Grants,
    /// Whose rows it sees, where it belongs to a tenant.
    pub tenancy: Option<Tenancy>,
    /// From when on it is no longer taken.
    pub expires: Option<Instant>,
}

impl Identity {
    /// Whether it is the operator of this process.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.token == OPERATOR
    }

    /// The operator of this process, who could open its database as well.
    #[must_use]
    pub fn operator(actor: &str) -> Self {
        Self {
            token: OPERATOR.to_owned(),
            name: actor.to_owned(),
            grants: Grants::of(Role::Admin),
            tenancy: None,
            expires: None,
        }
    }
}

impl Identity {
    /// An agent, by the key that signed.
    #[must_use]
    pub fn agent(agent: &AgentIdentity) -> Self {
        Self {
            token: agent.id.clone(),
            name: format!("agent of {}", agent.home.name.name),
            grants: Grants::of(Role::Agent),
            tenancy: None,
            expires: None,
        }
    }
}

/// Whose rows a caller sees.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// Everybody's.
    All(&'a Platform),
    /// One tenant's.
    Tenant(&'a Platform, &'a Tenancy),
}

impl View<'_> {
    pub(super) fn scope(&self) -> Scope {
        match self {
            Self::All(platform) => Scope::from(&platform.scope()),
            Self::Tenant(_, tenancy) => Scope::from(&tenancy.scope),
        }
    }

    pub(super) const fn platform(&self) -> &Platform {
        match self {
            Self::All(platform) | Self::Tenant(platform, _) => platform,
        }
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    identity: Arc<Identity>,
    platform: Platform,
    agent: Option<Arc<AgentIdentity>>,
}

impl Caller {
    /// Whoever was verified, in one request.
    #[must_use]
    pub fn new(platform: &Platform, identity: Arc<Identity>, mut asked: Asked) -> Self {
        asked.token.clone_from(&identity.token);
        let platform = platform.on_behalf(identity.name.clone(), asked);
        Self { identity, platform, agent: None }
    }

    /// An agent, by the key that signed its request.
    #[must_use]
    pub fn of_agent(platform: &Platform, agent: Arc<AgentIdentity>, asked: Asked) -> Self {
        let caller = Self::new(platform, Arc::new(Identity::agent(&agent)), asked);
        Self { agent: Some(agent), ..caller }
    }

    /// What an agent may do for its own node, and which that is.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`], also for a token of an agent's role: it has no node.
    pub fn own_node(&self, permission: Permission) -> Result<(&Platform, &Arc<AgentIdentity>), ServiceError> {
        self.check(permission)?;
        let agent = self.agent.as_ref();
        agent
            .map(|agent| (&self.platform, agent))
            .ok_or(ServiceError::Forbidden { permission: permission.word() })
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Goes on only with a permission.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`].
    pub fn check(&self, permission: Permission) -> Result<(), ServiceError> {
        if self.identity.grants.may(permission) {
            Ok(())
        } else {
            Err(ServiceError::Forbidden { permission: permission.word() })
        }
    }

    /// The platform, for a permission of a role that sees everybody's rows.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`].
    pub fn platform(&self, permission: Permission) -> Result<&Platform, ServiceError> {
        self.check(permission)?;
        match self.view(permission)? {
            View::All(platform) => Ok(platform),
            View::Tenant(..) => Err(ServiceError::Forbidden { permission: permission.word() }),
        }
    }

    /// Whose rows the caller sees under a permission.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`].
    pub fn view(&self, permission: Permission) -> Result<View<'_>, ServiceError> {
        self.check(permission)?;
        match (self.identity.grants.role().reach(), &self.identity.tenancy) {
            (Reach::All, None) => Ok(View::All(&self.platform)),
            (Reach::OneTenant, Some(tenancy)) => Ok(View::Tenant(&self.platform, tenancy)),
            (Reach::All | Reach::OneTenant | Reach::None, _) => {
                Err(ServiceError::Forbidden { permission: permission.word() })
            }
        }
    }
}

/// Who presents a token; none where it is unknown, expired or revoked. Which of these it is nobody is told.
///
/// # Errors
/// [`ServiceError`] when the store cannot be asked.
pub async fn identify(platform: &Platform, presented: &Presented) -> Result<Option<Identity>, ServiceError> {
    let (id, now) = (presented.id.clone(), platform.now());
    let stored =
        platform.read(move |scope, tx| unit(async move { Ok(tokens::find(scope, tx, &id).await?) })).await?;
    let Some(token) = stored else { return Ok(None) };
    let is_it: bool = token.secret_hash.ct_eq(&presented.secret_hash).into();
    let is_over = token.revoked.is_some() || token.expires.is_some_and(|expires| expires <= now);
    if !is_it || is_over {
        return Ok(None);
    }
    if token.last_used.is_none_or(|last| now.micros_since(last) >= NOTED_EVERY_US) {
        let (noting, id) = (platform.clone(), token.id.clone());
        // Beside the answer: who reads waits for no write, and is answered also where none can be made.
        tokio::spawn(async move {
            let noted = noting.write(move |scope, tx| {
                let id = id.clone();
                unit(async move { Ok(tokens::note_use(scope, tx, &id, now).await?) })
            });
            if let Err(error) = noted.await {
                tracing::warn!("a token's use was not noted: {error}");
            }
        });
    }
    let tenancy = match token.tenant {
        Some((number, name)) => TenantScope::of_verified(number).map(|scope| Tenancy { name, scope }),
        None => None,
    };
    let (grants, expires) = (token.grants, token.expires);
    Ok(Some(Identity { token: token.id, name: token.name.to_string(), grants, tenancy, expires }))
}

/// A token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// What it is called: who or what uses it.
    pub name: Name,
    /// What it is for.
    pub role: Role,
    /// Whose, for a role that belongs to a tenant.
    pub tenant: Option<Name>,
    /// To what the role is narrowed; empty: not at all.
    pub only: BTreeSet<Permission>,
    /// From when on it is no longer taken; none: until it is revoked.
    pub expires: Option<Instant>,
}

/// What is shown of a token; never its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its id.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Its role's word.
    pub role: String,
    /// The tenant to which it belongs.
    pub tenant: Option<String>,
    /// The permissions to which it is narrowed; none: all of its role's.
    pub scopes: Option<Vec<String>>,
    /// When it was made.
    pub created: String,
    /// By whom.
    pub created_by: String,
    /// From when on it is no longer taken.
    pub expires: Option<String>,
    /// When it was revoked.
    pub revoked: Option<String>,
    /// When it was last used, to within ten minutes.
    pub last_used: Option<String>,
}

impl TokenView {
    fn of(token: &StoredToken) -> Self {
        let text = |instant: Option<Instant>| instant.map(|instant| instant.to_string());
        let words = |only: &BTreeSet<Permission>| only.iter().map(|each| each.word().to_owned()).collect();
        Self {
            id: token.id.clone(),
            name: token.name.to_string(),
            role: token.grants.role().word().to_owned(),
            tenant: token.tenant.as_ref().map(|(_, name)| name.to_string()),
            scopes: token.grants.only().map(words),
            created: token.created.to_string(),
            created_by: token.created_by.clone(),
            expires: text(token.expires),
            revoked: text(token.revoked),
            last_used: text(token.last_used),
        }
    }

    fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Makes a token. Its text is the caller's to show, once: it is kept nowhere.
///
/// Nobody makes a token that may more than `maker`, what the asker itself may.
///
/// A request that is repeated with its idempotency key finds the token that was made, and not its text, which is gone.
///
/// # Errors
/// [`ServiceError::Faults`] for a tenant that is not there, missing or too much, a scope that the role does not have,
/// and an end that has passed.
pub async fn make_token(
    platform: &Platform,
    maker: &Grants,
    new: NewToken,
    minted: &Minted,
) -> Result<TokenView, ServiceError> {
    let now = platform.now();
    let mut faults = Vec::new();
    match (new.role.reach(), &new.tenant) {
        (Reach::OneTenant, None) => {
            faults
                .push(Fault::body("/tenant", format!("is missing: role {} belongs to one", new.role.word())));
        }
        (Reach::All | Reach::None, Some(_)) => {
            faults.push(Fault::body("/tenant", format!("is given, and role {} has none", new.role.word())));
        }
        (Reach::All | Reach::OneTenant | Reach::None, _) => {}
    }
    if new.expires.is_some_and(|expires| expires <= now) {
        faults.push(Fault::body("/expires", "has passed"));
    }
    let only = (!new.only.is_empty()).then(|| new.only.clone());
    let grants = match only {
        None => Ok(Grants::of(new.role)),
        Some(only) => Grants::narrowed(new.role, only),
    };
    let grants = match grants {
        Ok(grants) => grants,
        Err(beyond) => {
            let detail = format!("has {}, which role {} may not", beyond.word(), new.role.word());
            faults.push(Fault::body("/scopes", detail));
            Grants::of(new.role)
        }
    };
    // Else a token that was narrowed to making tokens could make one that is not. What agents may, they may by their keys
    // alone, and by no token.
    let beyond = |each: &Permission| *each != Permission::UsageSend && !maker.may(*each);
    if let Some(beyond) = grants.permissions().into_iter().find(beyond) {
        let detail = format!("would have {}, which the token that makes it has not", beyond.word());
        faults.push(Fault::body("/scopes", detail));
    }
    if !faults.is_empty() {
        return Err(ServiceError::Faults(faults));
    }
    let token = StoredToken {
        id: minted.presented.id.clone(),
        secret_hash: minted.presented.secret_hash,
        name: new.name,
        grants,
        tenant: None,
        created: now,
        created_by: platform.actor.clone(),
        expires: new.expires,
        revoked: None,
        last_used: None,
    };
    let work = Arc::new((token, new.tenant));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (mut token, tenant) = (*work).clone();
                if let Some(name) = tenant {
                    let number = tenant_number(&Scope::from(scope), tx, &name).await?;
                    token.tenant = Some((number, name));
                }
                tokens::add(scope, tx, &token).await?;
                let outcome = TokenView::of(&token);
                let record = Record {
                    action: "token.create",
                    subject: token.id.clone(),
                    before: None,
                    after: Some(outcome.json()),
                };
                Ok(Changed { outcome, records: vec![record] })
            })
        })
        .await
}

/// The number of a tenant that a body names.
async fn tenant_number(
    scope: &Scope,
    tx: &crate::store::ReadTx,
    name: &Name,
) -> Result<TenantId, ServiceError> {
    match tenants::find(scope, tx, name).await? {
        Some((number, _)) => Ok(number),
        None => Err(ServiceError::Faults(vec![Fault::body("/tenant", format!("`{name}` is no tenant"))])),
    }
}

/// Revokes a token; one that is revoked already stays as it is.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn revoke_token(platform: &Platform, id: &str) -> Result<TokenView, ServiceError> {
    let work = Arc::new((id.to_owned(), platform.actor.clone(), platform.now()));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (id, actor, now) = &*work;
                let missing = || ServiceError::NotFound { what: "token", name: id.clone() };
                let before = tokens::find(scope, tx, id).await?.ok_or_else(missing)?;
                if before.revoked.is_some() {
                    return Ok(Changed { outcome: TokenView::of(&before), records: vec![] });
                }
                tokens::revoke(scope, tx, id, actor, *now).await?;
                let after = tokens::find(scope, tx, id).await?.ok_or_else(missing)?;
                let outcome = TokenView::of(&after);
                let record = Record {
                    action: "token.revoke",
                    subject: id.clone(),
                    before: Some(json!({ "revoked": null })),
                    after: Some(json!({ "revoked": outcome.revoked })),
                };
                Ok(Changed { outcome, records: vec![record] })
            })
        })
        .await
}

/// One token.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn token(platform: &Platform, id: &str) -> Result<TokenView, ServiceError> {
    let wanted = id.to_owned();
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(tokens::find(scope, tx, &wanted).await?) }))
        .await?;
    found
        .map(|token| TokenView::of(&token))
        .ok_or_else(|| ServiceError::NotFound { what: "token", name: id.to_owned() })
}

/// Tokens after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn token_list(
    platform: &Platform,
    after: String,
    limit: i64,
) -> Result<Vec<TokenView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(tokens::list(scope, tx, &after, limit).await?) }))
        .await?;
    Ok(found.iter().map(TokenView::of).collect())
}

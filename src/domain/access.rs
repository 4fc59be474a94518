//! Who may do what: roles, permissions, and the one table between them.
//!
//! A token has a role, and may be narrowed to some of the role's permissions; it can never be widened. Which rows are
//! seen is not decided here but by the scope (`store::scope`): a role that belongs to a tenant has that tenant's.
//!
//! Always true here: what the table does not grant is refused; a role that sees all rows is never a tenant's.

use std::collections::BTreeSet;

use super::device::UnknownWord;

/// What a credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Runs the platform: everything.
    Admin,
    /// Reads everything that ends up on a bill, and publishes prices.
    Finance,
    /// One tenant's people: their own rows.
    Tenant,
    /// A scheduler or webhook that asks for quotas.
    Enforcer,
    /// A host's agent.
    Agent,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Finance, Self::Tenant, Self::Enforcer, Self::Agent];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Finance => "finance",
            Self::Tenant => "tenant",
            Self::Enforcer => "enforcer",
            Self::Agent => "agent",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the roles.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|each| each.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }

    /// Whose rows it sees.
    #[must_use]
    pub const fn reach(self) -> Reach {
        match self {
            Self::Admin | Self::Finance => Reach::All,
            Self::Tenant => Reach::OneTenant,
            Self::Enforcer | Self::Agent => Reach::None,
        }
    }

    /// Whether the table grants it.
    #[must_use]
    pub fn may(self, permission: Permission) -> bool {
        permission.granted_to().contains(&self)
    }
}

/// Whose rows a role sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everybody's, the platform's too.
    All,
    /// Those of the one tenant that its credential names.
    OneTenant,
    /// Nobody's: it asks questions that are answered without showing rows.
    None,
}

/// Something that can be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// Who one is.
    SelfRead,
    /// Tenants and projects; a tenant sees itself.
    TenantsRead,
    /// Make tenants and projects.
    TenantsWrite,
    /// From evidence to tenants.
    RulesRead,
    /// Change that.
    RulesWrite,
    /// Price books.
    PricesRead,
    /// Publish them.
    PricesWrite,
    /// Boards, MIG profiles, vGPU types.
    CatalogueRead,
    /// Load an operator's rows.
    CatalogueWrite,
    /// Declared states.
    StatesRead,
    /// Declare them.
    StatesWrite,
    /// Nodes, devices, in-service intervals.
    FleetRead,
    /// Open and end in-service intervals.
    FleetWrite,
    /// Imports and what they refused.
    ImportsRead,
    /// Bring a history in.
    ImportsWrite,
    /// Cost reports; a tenant sees its own rows.
    ReportsRead,
    /// Tokens, never their secrets.
    TokensRead,
    /// Make and revoke tokens.
    TokensWrite,
    /// Who changed what.
    AuditRead,
    /// What someone should know.
    FindingsRead,
    /// How far deriving is; whether all levels say the same.
    DerivationRead,
    /// Derive everything again.
    DerivationWrite,
    /// The service's own figures.
    MetricsRead,
    /// Agents and enrolment tokens, never their secrets.
    AgentsRead,
    /// Let nodes be enrolled, and revoke their agents.
    AgentsWrite,
    /// What was reported, as it was; a tenant sees what its own workloads held.
    UsageRead,
    /// Report for one's own node.
    UsageSend,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 27] = [
        Self::SelfRead,
        Self::TenantsRead,
        Self::TenantsWrite,
        Self::RulesRead,
        Self::RulesWrite,
        Self::PricesRead,
        Self::PricesWrite,
        Self::CatalogueRead,
        Self::CatalogueWrite,
        Self::StatesRead,
        Self::StatesWrite,
        Self::FleetRead,
        Self::FleetWrite,
        Self::ImportsRead,
        Self::ImportsWrite,
        Self::ReportsRead,
        Self::TokensRead,
        Self::TokensWrite,
        Self::AuditRead,
        Self::FindingsRead,
        Self::DerivationRead,
        Self::DerivationWrite,
        Self::MetricsRead,
        Self::AgentsRead,
        Self::AgentsWrite,
        Self::UsageRead,
        Self::UsageSend,
    ];

    /// The table.
    #[must_use]
    pub const fn granted_to(self) -> &'static [Role] {
        use Role::{Admin, Agent, Enforcer, Finance, Tenant};
        match self {
            Self::SelfRead => &[Admin, Finance, Tenant, Enforcer, Agent],
            Self::TenantsRead | Self::ReportsRead | Self::UsageRead => &[Admin, Finance, Tenant],
            Self::UsageSend => &[Agent],
            Self::PricesWrite => &[Admin, Finance],
            Self::RulesRead
            | Self::PricesRead
            | Self::CatalogueRead
            | Self::StatesRead
            | Self::FleetRead
            | Self::ImportsRead
            | Self::AuditRead
            | Self::FindingsRead
            | Self::DerivationRead
            | Self::AgentsRead => &[Admin, Finance],
            Self::TenantsWrite
            | Self::RulesWrite
            | Self::CatalogueWrite
            | Self::StatesWrite
            | Self::FleetWrite
            | Self::ImportsWrite
            | Self::TokensRead
            | Self::TokensWrite
            | Self::DerivationWrite
            | Self::AgentsWrite
            | Self::MetricsRead => &[Admin],
        }
    }

    /// The word by which a token is narrowed.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::SelfRead => "self:read",
            Self::TenantsRead => "tenants:read",
            Self::TenantsWrite => "tenants:write",
            Self::RulesRead => "rules:read",
            Self::RulesWrite => "rules:write",
            Self::PricesRead => "prices:read",
            Self::PricesWrite => "prices:write",
            Self::CatalogueRead => "catalogue:read",
            Self::CatalogueWrite => "catalogue:write",
            Self::StatesRead => "states:read",
            Self::StatesWrite => "states:write",
            Self::FleetRead => "fleet:read",
            Self::FleetWrite => "fleet:write",
            Self::ImportsRead => "imports:read",
            Self::ImportsWrite => "imports:write",
            Self::ReportsRead => "reports:read",
            Self::TokensRead => "tokens:read",
            Self::TokensWrite => "tokens:write",
            Self::AuditRead => "audit:read",
            Self::FindingsRead => "findings:read",
            Self::DerivationRead => "derivation:read",
            Self::DerivationWrite => "derivation:write",
            Self::MetricsRead => "metrics:read",
            Self::AgentsRead => "agents:read",
            Self::AgentsWrite => "agents:write",
            Self::UsageRead => "usage:read",
            Self::UsageSend => "usage:send",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the permissions.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|each| each.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// What one credential may do: its role's permissions, or some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    role: Role,
    only: Option<BTreeSet<Permission>>,
}

impl Grants {
    /// Everything that the role may.
    #[must_use]
    pub const fn of(role: Role) -> Self {
        Self { role, only: None }
    }

    /// The role, narrowed to these.
    ///
    /// # Errors
    /// The first permission that the role does not have: to narrow to it would be a token that cannot do what it says.
    pub fn narrowed(role: Role, only: BTreeSet<Permission>) -> Result<Self, Permission> {
        match only.iter().find(|permission| !role.may(**permission)) {
            Some(beyond) => Err(*beyond),
            None => Ok(Self { role, only: Some(only) }),
        }
    }

    /// The role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// To what the role is narrowed; none: not at all.
    #[must_use]
    pub const fn only(&self) -> Option<&BTreeSet<Permission>> {
        self.only.as_ref()
    }

    /// Whether it is granted. Who one is may always be asked.
    #[must_use]
    pub fn may(&self, permission: Permission) -> bool {
        let kept = self.only.as_ref().is_none_or(|only| only.contains(&permission));
        self.role.may(permission) && (kept || permission == Permission::SelfRead)
    }

    /// All that is granted, in order.
    #[must_use]
    pub fn permissions(&self) -> Vec<Permission> {
        Permission::ALL.into_iter().filter(|each| self.may(*each)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as people review it. Whoever changes a grant changes this text too.
    const TABLE: &str = "\
self:read admin finance tenant enforcer agent
tenants:read admin finance tenant
tenants:write admin
rules:read admin finance
rules:write admin
prices:read admin finance
prices:write admin finance
catalogue:read admin finance
catalogue:write admin
states:read admin finance
states:write admin
fleet:read admin finance
fleet:write admin
imports:read admin finance
imports:write admin
reports:read admin finance tenant
tokens:read admin
tokens:write admin
audit:read admin finance
findings:read admin finance
derivation:read admin finance
derivation:write admin
metrics:read admin
agents:read admin finance
agents:write admin
usage:read admin finance tenant
usage:send agent
";

    #[test]
    fn the_table_is_what_was_reviewed() {
        let shown: String = Permission::ALL
            .into_iter()
            .map(|permission| {
                let roles: Vec<&str> =
                    Role::ALL.into_iter().filter(|role| role.may(permission)).map(Role::word).collect();
                format!("{} {}\n", permission.word(), roles.join(" "))
            })
            .collect();
        assert_eq!(shown, TABLE);
    }

    #[test]
    fn words_are_read_back() {
        for permission in Permission::ALL {
            assert_eq!(Permission::parse(permission.word()), Ok(permission));
        }
        for role in Role::ALL {
            assert_eq!(Role::parse(role.word()), Ok(role));
        }
        assert!(Role::parse("root").is_err());
    }

    #[test]
    fn a_narrowed_token_is_never_wider_than_its_role() {
        let only = BTreeSet::from([Permission::ReportsRead]);
        let narrowed = Grants::narrowed(Role::Finance, only).unwrap();
        assert!(narrowed.may(Permission::ReportsRead) && narrowed.may(Permission::SelfRead));
        assert!(!narrowed.may(Permission::PricesWrite) && !narrowed.may(Permission::AuditRead));
        let beyond = Grants::narrowed(Role::Tenant, BTreeSet::from([Permission::AuditRead]));
        assert_eq!(beyond, Err(Permission::AuditRead));
        let nothing = Grants::narrowed(Role::Admin, BTreeSet::new()).unwrap();
        assert_eq!(nothing.permissions(), [Permission::SelfRead]);
    }

    #[test]
    fn only_roles_that_see_all_change_anything() {
        for permission in Permission::ALL.into_iter().filter(|each| each.word().ends_with(":write")) {
            assert!(permission.granted_to().iter().all(|role| role.reach() == Reach::All));
        }
    }
}

//! Whose rows a transaction sees. A scope is the first argument of each repository function.
//!
//! Always true here: a `TenantScope` never holds the platform; a scope cannot be made outside this crate.

use crate::domain::ids::TenantId;

/// One tenant's rows and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantScope {
    tenant: TenantId,
}

impl TenantScope {
    /// The scope of a tenant that a verified credential names; none for the platform.
    pub(crate) fn of_verified(tenant: TenantId) -> Option<Self> {
        (tenant != TenantId::PLATFORM).then_some(Self { tenant })
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }
}

/// All rows. Made only for the operator's own process and its timers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformScope(());

impl PlatformScope {
    /// The scope of whoever may run this process on this database. Its callers are listed in a test.
    pub(crate) fn of_process() -> Self {
        Self(())
    }
}

/// Either scope, as a transaction takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One tenant.
    Tenant(TenantScope),
    /// All.
    Platform(PlatformScope),
}

impl Scope {
    /// The tenant to whose rows a statement has to keep, in words of its own: one database has no row security, and
    /// the other has it beside this.
    pub(in crate::store) fn only(&self) -> Option<i64> {
        match self {
            Self::Tenant(scope) => Some(scope.tenant().stored()),
            Self::Platform(_) => None,
        }
    }
}

impl From<&TenantScope> for Scope {
    fn from(scope: &TenantScope) -> Self {
        Self::Tenant(scope.clone())
    }
}

impl From<&PlatformScope> for Scope {
    fn from(scope: &PlatformScope) -> Self {
        Self::Platform(scope.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_scope_holds_the_platform() {
        assert_eq!(TenantScope::of_verified(TenantId::PLATFORM), None);
        assert!(TenantScope::of_verified(TenantId::from_stored(1)).is_some());
    }
}

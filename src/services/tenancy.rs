//! Tenants, projects, and the rules that map evidence to them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::access::View;
use super::ctx::{Changed, Platform, Record};
use super::derive::mark_all_homes;
use super::error::{Fault, ServiceError};
use crate::domain::ids::{Name, TenantId};
use crate::domain::mapping::{PLATFORM_NAME, Rule};
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::store::installation::Lock;
use crate::store::mapping::StoredRule;
use crate::store::marks::MarkKind;
use crate::store::tenants::{Named, Origin};
use crate::store::{PlatformScope, ReadTx, Scope, WriteTx, installation, mapping, tenants, unit};

/// A tenant or a project, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedView {
    /// Its name.
    pub name: String,
    /// `operator`: made by a person; `import`: made by an import's evidence.
    pub origin: String,
    /// Since when it is known.
    pub created: String,
}

impl NamedView {
    fn of(named: &Named) -> Self {
        Self {
            name: named.name.to_string(),
            origin: named.origin.word().to_owned(),
            created: named.created.to_string(),
        }
    }
}

fn no_tenant(name: &Name) -> ServiceError {
    ServiceError::NotFound { what: "tenant", name: name.to_string() }
}

/// Tenants that the caller sees, after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn tenant_list(view: View<'_>, after: String, limit: i64) -> Result<Vec<NamedView>, ServiceError> {
    let scope = view.scope();
    let found = view
        .platform()
        .store
        .read(scope.clone(), move |tx| {
            unit(async move { Ok::<_, ServiceError>(tenants::list(&scope, tx, &after, limit).await?) })
        })
        .await?;
    Ok(found.iter().map(NamedView::of).collect())
}

/// A tenant that the caller sees.
///
/// # Errors
/// [`ServiceError::NotFound`], also for a tenant that is somebody else's.
pub async fn tenant(view: View<'_>, name: Name) -> Result<NamedView, ServiceError> {
    let scope = view.scope();
    view.platform()
        .store
        .read(scope.clone(), move |tx| {
            unit(async move {
                let (_, found) = tenants::find(&scope, tx, &name).await?.ok_or_else(|| no_tenant(&name))?;
                Ok(NamedView::of(&found))
            })
        })
        .await
}

/// Projects of a tenant that the caller sees, after one, at most so many.
///
/// # Errors
/// [`ServiceError::NotFound`], also for a tenant that is somebody else's.
pub async fn project_list(
    view: View<'_>,
    tenant: Name,
    after: String,
    limit: i64,
) -> Result<Vec<NamedView>, ServiceError> {
    let scope = view.scope();
    view.platform()
        .store
        .read(scope.clone(), move |tx| {
            unit(async move {
                let (number, _) =
                    tenants::find(&scope, tx, &tenant).await?.ok_or_else(|| no_tenant(&tenant))?;
                let found = tenants::projects(&scope, tx, number, &after, limit).await?;
                Ok::<_, ServiceError>(found.iter().map(NamedView::of).collect())
            })
        })
        .await
}

/// A project of a tenant that the caller sees.
///
/// # Errors
/// [`ServiceError::NotFound`], also for a tenant that is somebody else's.
pub async fn project(view: View<'_>, tenant: Name, name: Name) -> Result<NamedView, ServiceError> {
    let scope = view.scope();
    view.platform()
        .store
        .read(scope.clone(), move |tx| {
            unit(async move {
                let (number, _) =
                    tenants::find(&scope, tx, &tenant).await?.ok_or_else(|| no_tenant(&tenant))?;
                let found = tenants::project(&scope, tx, number, &name).await?;
                let missing = || ServiceError::NotFound { what: "project", name: name.to_string() };
                Ok(NamedView::of(&found.ok_or_else(missing)?))
            })
        })
        .await
}

/// Makes a tenant.
///
/// # Errors
/// [`ServiceError::Exists`]; [`ServiceError::Faults`] for the reserved name.
pub async fn make_tenant(platform: &Platform, name: Name) -> Result<NamedView, ServiceError> {
    if name.as_str() == PLATFORM_NAME {
        return Err(ServiceError::Faults(vec![Fault::body("/name", format!("`{name}` is reserved"))]));
    }
    let (work, now) = (Arc::new(name), platform.now());
    platform
        .change(move |scope, tx| {
            let name = Arc::clone(&work);
            unit(async move {
                installation::lock(scope, tx, Lock::Alone).await?;
                let all = Scope::from(scope);
                if tenants::find(&all, tx, &name).await?.is_some() {
                    return Err(ServiceError::Exists { what: "tenant", name: name.to_string() });
                }
                tenants::add_tenant(scope, tx, &name, Origin::Operator, now).await?;
                let (_, made) = tenants::find(&all, tx, &name).await?.ok_or_else(|| no_tenant(&name))?;
                Ok(made_of("tenant.create", name.to_string(), &made))
            })
        })
        .await
}

/// Makes a project of a tenant.
///
/// # Errors
/// [`ServiceError::NotFound`] for the tenant, [`ServiceError::Exists`] for the project.
pub async fn make_project(platform: &Platform, tenant: Name, name: Name) -> Result<NamedView, ServiceError> {
    let (work, now) = (Arc::new((tenant, name)), platform.now());
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (tenant, name) = &*work;
                installation::lock(scope, tx, Lock::Alone).await?;
                let all = Scope::from(scope);
                let (number, _) = tenants::find(&all, tx, tenant).await?.ok_or_else(|| no_tenant(tenant))?;
                if tenants::project(&all, tx, number, name).await?.is_some() {
                    return Err(ServiceError::Exists { what: "project", name: name.to_string() });
                }
                tenants::add_project(scope, tx, number, name, Origin::Operator, now).await?;
                let made = tenants::project(&all, tx, number, name).await?;
                let made = made.ok_or_else(|| no_tenant(tenant))?;
                Ok(made_of("project.create", format!("{tenant}/{name}"), &made))
            })
        })
        .await
}

fn made_of(action: &'static str, subject: String, made: &Named) -> Changed<NamedView> {
    let outcome = NamedView::of(made);
    let after = Some(json!({ "name": outcome.name, "origin": outcome.origin }));
    Changed { outcome, records: vec![Record { action, subject, before: None, after }] }
}

/// A mapping rule, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// Its number.
    pub id: i64,
    /// Rules are tried from the smallest order up; the first that fits decides.
    pub order: i64,
    /// Since when it holds; none: since ever.
    pub effective_from: Option<String>,
    /// Until when; none: until further notice.
    pub effective_to: Option<String>,
    /// What must be seen, all of it.
    pub conditions: Vec<ConditionView>,
    /// Who pays.
    pub tenant: String,
    /// For which project.
    pub project: String,
    /// Which edit this is, from 1.
    pub revision: i64,
    /// When it was edited last; none: before edits were noted.
    pub changed: Option<String>,
    /// By whom.
    pub changed_by: String,
}

/// One condition, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionView {
    /// The evidence's field.
    pub field: String,
    /// `equal` or `prefix`.
    pub comparison: String,
    /// With what.
    pub value: String,
}

impl RuleView {
    fn of(stored: &StoredRule) -> Self {
        let rule = &stored.rule;
        let edge = |instant: Instant, open: Instant| (instant != open).then(|| instant.to_string());
        Self {
            id: stored.id,
            order: rule.order,
            effective_from: edge(rule.effective.start(), Instant::MIN),
            effective_to: edge(rule.effective.end(), Instant::MAX),
            conditions: rule
                .conditions
                .iter()
                .map(|each| ConditionView {
                    field: each.field.word().to_owned(),
                    comparison: each.comparison.word().to_owned(),
                    value: each.value.to_string(),
                })
                .collect(),
            tenant: rule.tenant.to_string(),
            project: rule.project.to_string(),
            revision: stored.revision,
            changed: (stored.changed.micros() != 0).then(|| stored.changed.to_string()),
            changed_by: stored.changed_by.clone(),
        }
    }

    /// What tells this edit from any other of any rule.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}-{}-{}", self.id, self.revision, self.changed.as_deref().unwrap_or("0"))
    }

    fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

fn no_rule(id: i64) -> ServiceError {
    ServiceError::NotFound { what: "mapping rule", name: id.to_string() }
}

/// Rules in the order in which they are tried, after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn rule_list(
    platform: &Platform,
    after: (i64, i64),
    limit: i64,
) -> Result<Vec<RuleView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(mapping::list(scope, tx, after, limit).await?) }))
        .await?;
    Ok(found.iter().map(RuleView::of).collect())
}

/// One rule.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn rule(platform: &Platform, id: i64) -> Result<RuleView, ServiceError> {
    let found =
        platform.read(move |scope, tx| unit(async move { Ok(mapping::find(scope, tx, id).await?) })).await?;
    found.map(|found| RuleView::of(&found)).ok_or_else(|| no_rule(id))
}

/// What is to be done with a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleEdit {
    /// Add one.
    Add(Rule),
    /// Put one in place of what it says.
    Replace {
        /// Which.
        id: i64,
        /// What it says then.
        rule: Rule,
        /// The version that the editor has seen, where it says so.
        seen: Option<String>,
    },
    /// Remove it.
    Remove {
        /// Which.
        id: i64,
        /// The version that the editor has seen, where it says so.
        seen: Option<String>,
    },
}

/// Edits the rules. The hours in which other rules now hold are marked, so that open months are divided anew.
/// Returns the rule as it is now; as it was, for one that was removed.
///
/// # Errors
/// [`ServiceError::NotFound`], [`ServiceError::ChangedMeanwhile`]; [`ServiceError::Faults`] for a tenant or project that
/// is not there.
pub async fn edit_rule(platform: &Platform, edit: RuleEdit) -> Result<RuleView, ServiceError> {
    let work = Arc::new((edit, platform.actor.clone(), platform.now(), platform.zone()));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (edit, actor, now, zone) = &*work;
                // Of two that edit at once, the second sees the first; and no hour is asked for meanwhile.
                installation::lock(scope, tx, Lock::Alone).await?;
                let (changed, spans) = apply(scope, tx, edit, (actor, *now)).await?;
                for span in spans {
                    mark_all_homes(scope, tx, *zone, MarkKind::Part, span).await?;
                }
                Ok(changed)
            })
        })
        .await
}

async fn apply(
    scope: &PlatformScope,
    tx: &WriteTx,
    edit: &RuleEdit,
    by: (&str, Instant),
) -> Result<(Changed<RuleView>, Vec<Span>), ServiceError> {
    let (before, id, spans) = match edit {
        RuleEdit::Add(rule) => {
            let tenant = payer(scope, tx, rule).await?;
            (None, mapping::add(scope, tx, rule, tenant, by).await?, vec![rule.effective])
        }
        RuleEdit::Replace { id, rule, seen } => {
            let before = seen_rule(scope, tx, *id, seen.as_deref()).await?;
            if before.rule == *rule {
                let outcome = RuleView::of(&before);
                return Ok((Changed { outcome, records: vec![] }, vec![]));
            }
            let tenant = payer(scope, tx, rule).await?;
            mapping::replace(scope, tx, *id, rule, tenant, by).await?;
            let spans = vec![before.rule.effective, rule.effective];
            (Some(before), *id, spans)
        }
        RuleEdit::Remove { id, seen } => {
            let before = seen_rule(scope, tx, *id, seen.as_deref()).await?;
            mapping::remove(scope, tx, *id).await?;
            let spans = vec![before.rule.effective];
            (Some(before), *id, spans)
        }
    };
    let after = mapping::find(scope, tx, id).await?;
    let action = match edit {
        RuleEdit::Add(_) => "mapping_rule.create",
        RuleEdit::Replace { .. } => "mapping_rule.replace",
        RuleEdit::Remove { .. } => "mapping_rule.remove",
    };
    let (before, after) = (before.as_ref().map(RuleView::of), after.as_ref().map(RuleView::of));
    let json = |view: &Option<RuleView>| view.as_ref().map(RuleView::json);
    let record = Record { action, subject: id.to_string(), before: json(&before), after: json(&after) };
    let outcome = after.or(before).ok_or_else(|| no_rule(id))?;
    Ok((Changed { outcome, records: vec![record] }, spans))
}

async fn seen_rule(
    scope: &PlatformScope,
    tx: &ReadTx,
    id: i64,
    seen: Option<&str>,
) -> Result<StoredRule, ServiceError> {
    let there = mapping::find(scope, tx, id).await?.ok_or_else(|| no_rule(id))?;
    if seen.is_some_and(|seen| seen != RuleView::of(&there).version()) {
        return Err(ServiceError::ChangedMeanwhile { what: "mapping rule", name: id.to_string() });
    }
    Ok(there)
}

/// The tenant that a rule names, which must be there with the project: a slip would make a cost centre of its own.
async fn payer(scope: &PlatformScope, tx: &ReadTx, rule: &Rule) -> Result<TenantId, ServiceError> {
    let all = Scope::from(scope);
    let Some((number, _)) = tenants::find(&all, tx, &rule.tenant).await? else {
        let detail = format!("`{}` is no tenant", rule.tenant);
        return Err(ServiceError::Faults(vec![Fault::body("/tenant", detail)]));
    };
    if tenants::project(&all, tx, number, &rule.project).await?.is_none() {
        let detail = format!("`{}` is no project of tenant `{}`", rule.project, rule.tenant);
        return Err(ServiceError::Faults(vec![Fault::body("/project", detail)]));
    }
    Ok(number)
}

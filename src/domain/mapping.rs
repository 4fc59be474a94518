//! Mapping rules: from evidence to tenant and project, ordered and effective-dated.

use super::device::UnknownWord;
use super::ids::Name;
use super::period::Span;
use super::units::Instant;
use super::usage::{Evidence, EvidenceField};

/// The project of evidence that no rule maps.
pub const UNMAPPED_PROJECT: &str = "unmapped";
/// The project of an imported row that declares a tenant and no project.
pub const DEFAULT_PROJECT: &str = "default";
/// How reports show the platform where a tenant's name stands; no tenant may bear it.
pub const PLATFORM_NAME: &str = "platform";

/// How a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Comparison {
    /// The field is exactly the value.
    Equal,
    /// The field begins with the value.
    Prefix,
}

impl Comparison {
    /// All comparisons.
    pub const ALL: [Self; 2] = [Self::Equal, Self::Prefix];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Prefix => "prefix",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the comparisons.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|each| each.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// One condition of a rule; a field that was not seen meets none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which field.
    pub field: EvidenceField,
    /// How it is compared.
    pub comparison: Comparison,
    /// With what.
    pub value: Name,
}

impl Condition {
    fn is_met(&self, evidence: &Evidence) -> bool {
        evidence.get(self.field).is_some_and(|seen| match self.comparison {
            Comparison::Equal => *seen == self.value,
            Comparison::Prefix => seen.as_str().starts_with(self.value.as_str()),
        })
    }
}

/// A rule: evidence that meets all conditions belongs to this tenant and project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Rules are tried from the smallest order up; the first that fits decides.
    pub order: i64,
    /// When the rule holds.
    pub effective: Span,
    /// What must be seen; none means that everything fits.
    pub conditions: Vec<Condition>,
    /// Who pays.
    pub tenant: Name,
    /// For which project.
    pub project: Name,
}

/// Who pays for a holding. No tenant: the platform, because no rule maps the evidence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The tenant's name; `None` is the platform.
    pub tenant: Option<Name>,
    /// The project's name.
    pub project: Name,
}

/// The rules of an installation, in order, with the built-in import rule behind them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MappingRules {
    rules: Vec<Rule>,
}

impl MappingRules {
    /// Puts rules in their order. Two of one order keep the order of their text, so the result is one.
    #[must_use]
    pub fn new(mut rules: Vec<Rule>) -> Self {
        rules.sort_by_key(|rule| {
            let conditions: Vec<(EvidenceField, Comparison, Name)> =
                rule.conditions.iter().map(|c| (c.field, c.comparison, c.value.clone())).collect();
            (rule.order, rule.effective, conditions, rule.tenant.clone(), rule.project.clone())
        });
        Self { rules }
    }

    /// Who pays for what this evidence held at `at`.
    ///
    /// The built-in import rule comes last: a declared tenant and project are taken by their names.
    #[must_use]
    pub fn owner(&self, evidence: &Evidence, at: Instant) -> Owner {
        let fits =
            |rule: &&Rule| rule.effective.contains(at) && rule.conditions.iter().all(|c| c.is_met(evidence));
        if let Some(rule) = self.rules.iter().find(fits) {
            return Owner { tenant: Some(rule.tenant.clone()), project: rule.project.clone() };
        }
        match evidence.get(EvidenceField::Tenant) {
            Some(tenant) => Owner {
                tenant: Some(tenant.clone()),
                project: evidence
                    .get(EvidenceField::Project)
                    .cloned()
                    .unwrap_or_else(|| Name::fixed(DEFAULT_PROJECT)),
            },
            None => Owner { tenant: None, project: Name::fixed(UNMAPPED_PROJECT) },
        }
    }

    /// The instants strictly inside `within` at which some rule begins or ends to hold.
    #[must_use]
    pub fn edges(&self, within: Span) -> Vec<Instant> {
        let mut edges: Vec<Instant> = self
            .rules
            .iter()
            .flat_map(|rule| [rule.effective.start(), rule.effective.end()])
            .filter(|edge| within.start() < *edge && *edge < within.end())
            .collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(fields: &[(EvidenceField, &'static str)]) -> Evidence {
        fields.iter().map(|(field, value)| (*field, Name::fixed(value))).collect()
    }

    fn rule(
        order: i64,
        field: EvidenceField,
        comparison: Comparison,
        value: &'static str,
        tenant: &'static str,
    ) -> Rule {
        Rule {
            order,
            effective: Span::ALWAYS,
            conditions: vec![Condition { field, comparison, value: Name::fixed(value) }],
            tenant: Name::fixed(tenant),
            project: Name::fixed("p"),
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = MappingRules::new(vec![
            rule(20, EvidenceField::Namespace, Comparison::Prefix, "team-", "wide"),
            rule(10, EvidenceField::Namespace, Comparison::Equal, "team-a", "narrow"),
        ]);
        let owner =
            |ns: &'static str| rules.owner(&evidence(&[(EvidenceField::Namespace, ns)]), Instant::MIN);
        assert_eq!(owner("team-a").tenant, Some(Name::fixed("narrow")));
        assert_eq!(owner("team-b").tenant, Some(Name::fixed("wide")));
        assert_eq!(owner("other"), Owner { tenant: None, project: Name::fixed(UNMAPPED_PROJECT) });
    }

    #[test]
    fn a_declared_tenant_is_taken_by_the_built_in_rule_and_yields_to_an_ordered_one() {
        let declared = evidence(&[(EvidenceField::Tenant, "acme"), (EvidenceField::Workload, "w")]);
        let none = MappingRules::default();
        let want = Owner { tenant: Some(Name::fixed("acme")), project: Name::fixed(DEFAULT_PROJECT) };
        assert_eq!(none.owner(&declared, Instant::MIN), want);
        let rules =
            MappingRules::new(vec![rule(1, EvidenceField::Workload, Comparison::Equal, "w", "other")]);
        assert_eq!(rules.owner(&declared, Instant::MIN).tenant, Some(Name::fixed("other")));
    }

    #[test]
    fn a_rule_holds_from_and_until_its_instants() {
        let mut moved = rule(1, EvidenceField::User, Comparison::Equal, "ana", "lab");
        let (from, to) = (Instant::from_micros(10), Instant::from_micros(20));
        moved.effective = Span::new(from, to).unwrap();
        let rules = MappingRules::new(vec![moved]);
        let at = |micros: i64| {
            rules.owner(&evidence(&[(EvidenceField::User, "ana")]), Instant::from_micros(micros)).tenant
        };
        assert_eq!(
            (at(9), at(10), at(19), at(20)),
            (None, Some(Name::fixed("lab")), Some(Name::fixed("lab")), None)
        );
        assert_eq!(rules.edges(Span::ALWAYS), vec![from, to]);
        assert_eq!(rules.edges(Span::new(from, to).unwrap()), vec![]);
    }
}

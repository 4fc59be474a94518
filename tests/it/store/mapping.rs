//! Mapping rules over the store: evidence changes hands at the instant that a rule names, and none is lost.

use std::collections::BTreeSet;

use fatia::domain::mapping::{Comparison, Condition, Rule};
use fatia::domain::period::Span;
use fatia::domain::usage::EvidenceField;
use fatia::services::derive::mark_services;
use fatia::store::marks::MarkKind;
use fatia::store::{StoreError, mapping, tenants, unit};

use crate::support::platform::{TestPlatform, at, name, on_both_databases, span, write};

/// Adds a rule as an operator would, and derives what it changes.
async fn add(
    platform: &TestPlatform,
    order: i64,
    effective: Span,
    (field, value): (EvidenceField, &str),
    owner: &str,
) {
    let (tenant, project) = owner.split_once('/').expect("a tenant and a project");
    let rule = Rule {
        order,
        effective,
        conditions: vec![Condition { field, comparison: Comparison::Equal, value: name(value) }],
        tenant: name(tenant),
        project: name(project),
    };
    let now = platform.now();
    write(platform, move |scope, tx| {
        let rule = rule.clone();
        unit(async move {
            let wanted = BTreeSet::from([(rule.tenant.clone(), rule.project.clone())]);
            tenants::ensure(scope, tx, &wanted, tenants::Origin::Operator, now).await?;
            let numbers = tenants::numbers(scope, tx).await?;
            mapping::add(scope, tx, &rule, numbers[&rule.tenant], ("ana", at("06-10T12:00"))).await?;
            Ok::<_, StoreError>(())
        })
    })
    .await
    .expect("a rule can be added");
    mark_services(platform, MarkKind::Part, effective).await.expect("what it changes can be marked");
    platform.derive().await;
    platform.assert_well().await;
}

async fn held_three_hours(platform: &TestPlatform) {
    platform
        .import(
            "n1 g1 A10 06-09T09:00 06-09T12:00\nn1 g2 A10 06-09T09:00 06-09T12:00",
            "w1 acme/a n1 g1 dedicated 06-09T09:00 06-09T12:00\nw2 - n1 g2 mps:500000 06-09T09:00 06-09T12:00",
        )
        .await;
    platform.derive().await;
}

on_both_databases! {
    async fn a_rule_that_begins_inside_an_hour_takes_over_at_that_instant(platform: &TestPlatform) {
        held_three_hours(platform).await;
        let before = platform.shown("tenant project state").await;
        assert_eq!(
            before,
            [
                "acme a used 3.000000 - unpriced 3.000000",
                "platform none idle 1.500000 - unpriced 1.500000",
                "platform unmapped used 1.500000 - unpriced 1.500000",
            ]
        );
        let w1 = (EvidenceField::Workload, "w1");
        add(platform, 10, span("06-09T10:30 06-09T11:15"), w1, "lab/x").await;
        assert_eq!(
            platform.shown("tenant project state").await,
            [
                "acme a used 2.250000 - unpriced 2.250000",
                "lab x used 0.750000 - unpriced 0.750000",
                "platform none idle 1.500000 - unpriced 1.500000",
                "platform unmapped used 1.500000 - unpriced 1.500000",
            ]
        );
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels, "parts alone come out as they do from the journal");
    }

    async fn rules_leave_no_time_out_and_give_none_twice(platform: &TestPlatform) {
        held_three_hours(platform).await;
        let total = platform.costs("06", "model").await.expect("it reconciles").total;
        add(platform, 20, Span::ALWAYS, (EvidenceField::Workload, "w2"), "wide/y").await;
        // The smaller order decides, for as long as it holds; a third of a minute makes floors.
        add(platform, 10, span("06-09T10:00:20 06-09T10:59:59"), (EvidenceField::Workload, "w2"), "lab/x")
            .await;
        add(platform, 30, Span::ALWAYS, (EvidenceField::Tenant, "acme"), "acme/b").await;
        assert_eq!(platform.costs("06", "model").await.expect("it reconciles").total, total);
        assert_eq!(
            platform.shown("tenant project state").await,
            [
                "acme b used 3.000000 - unpriced 3.000000",
                "lab x used 0.497083 - unpriced 0.497083",
                "platform none idle 1.500000 - unpriced 1.500000",
                "platform none rounding 0.000001 - unpriced 0.000001",
                "wide y used 1.002916 - unpriced 1.002916",
            ]
        );
    }

    async fn segments_do_not_know_who_pays(platform: &TestPlatform) {
        held_three_hours(platform).await;
        let folded = "SELECT hour_us, batches_hash, covered_ns FROM node_hour ORDER BY hour_us";
        let before = platform.raw().await.rows::<(i64, Vec<u8>, i64)>(folded).await;
        add(platform, 10, Span::ALWAYS, (EvidenceField::Workload, "w1"), "lab/x").await;
        assert_eq!(platform.raw().await.rows::<(i64, Vec<u8>, i64)>(folded).await, before);
        assert_eq!(platform.shown("tenant").await[0], "lab 3.000000 - unpriced 3.000000");
    }
}

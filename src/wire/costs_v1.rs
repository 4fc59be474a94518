//! A cost report as a document: JSON in a fixed order of fields, or CSV. All figures are decimal strings.
//!
//! Always true here: equal reports have equal bytes; no cell of a CSV is taken for a formula.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::domain::allocation::PartState;
use crate::domain::report::{CostReport, Dimension, Figures, Summary};
use crate::domain::units::Instant;

/// A report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// A month, or the first day and the day after the last.
    pub period: String,
    /// The first instant.
    pub from: String,
    /// The first instant past the end.
    pub to: String,
    /// The billing zone.
    pub zone: String,
    /// The book currency.
    pub currency: String,
    /// Whether all of it is made up; said only where it is.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub demo: bool,
    /// What the groups are keyed by.
    pub group_by: Vec<String>,
    /// The groups.
    pub groups: Vec<Line>,
    /// The totals by state.
    pub totals: Vec<Line>,
    /// The total over all states.
    pub total: Sum,
    /// Both sides of the identity; none in a tenant's own report, which is a part of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reconciliation: Option<Sides>,
    /// Until when everything is counted.
    pub as_of: String,
}

/// Hours, money and energy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// GPU-hours, priced and unpriced.
    pub gpu_hours: String,
    /// Of these, GPU-hours without a price.
    pub unpriced_gpu_hours: String,
    /// What the priced hours cost, exactly; none where no hour has a price.
    pub cost: Option<String>,
    /// GPU-hours whose energy was counted.
    pub metered_gpu_hours: String,
    /// The energy of the metered hours; none where there are none.
    pub energy_joules: Option<String>,
}

impl Sum {
    fn of(figures: &Figures) -> Self {
        Self {
            gpu_hours: figures.gpu_hours.to_string(),
            unpriced_gpu_hours: figures.unpriced_gpu_hours.to_string(),
            cost: figures.cost().map(|cost| cost.to_string()),
            metered_gpu_hours: figures.metered_gpu_hours.to_string(),
            energy_joules: figures.energy().map(joules),
        }
    }
}

/// A group, or the total of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Dimensions with their values, in the report's order.
    pub values: Vec<(String, String)>,
    /// What the time was.
    pub state: String,
    /// How much.
    pub sum: Sum,
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(None)?;
        for (dimension, value) in &self.values {
            map.serialize_entry(dimension, value)?;
        }
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("gpu_hours", &self.sum.gpu_hours)?;
        map.serialize_entry("unpriced_gpu_hours", &self.sum.unpriced_gpu_hours)?;
        map.serialize_entry("cost", &self.sum.cost)?;
        map.serialize_entry("metered_gpu_hours", &self.sum.metered_gpu_hours)?;
        map.serialize_entry("energy_joules", &self.sum.energy_joules)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Line {
    /// Dimensions come back by their words; [`Costs::ordered`] puts them into the report's order.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut fields: BTreeMap<String, Option<String>> = BTreeMap::deserialize(input)?;
        let mut take = |name: &str| fields.remove(name).flatten();
        let mut needed = |name: &'static str| take(name).ok_or_else(|| D::Error::missing_field(name));
        let (state, gpu_hours) = (needed("state")?, needed("gpu_hours")?);
        let (unpriced_gpu_hours, metered_gpu_hours) =
            (needed("unpriced_gpu_hours")?, needed("metered_gpu_hours")?);
        let (cost, energy_joules) = (take("cost"), take("energy_joules"));
        let values = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let sum = Sum { gpu_hours, unpriced_gpu_hours, cost, metered_gpu_hours, energy_joules };
        Ok(Self { values, state, sum })
    }
}

/// Both sides of the identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    /// From the in-service intervals.
    pub in_service_gpu_hours: String,
    /// From the parts.
    pub parts_gpu_hours: String,
    /// Parts minus in-service.
    pub difference: String,
}

/// What a report is about, beside its figures.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// The days.
    pub period: crate::domain::report::ReportPeriod,
    /// The billing zone.
    pub zone: crate::domain::period::BillingZone,
    /// The book currency.
    pub currency: crate::domain::money::Currency,
    /// Until when everything is counted.
    pub as_of: Instant,
    /// Whether all of it is made up.
    pub is_demo: bool,
}

impl Costs {
    /// A whole report.
    #[must_use]
    pub fn of_report(report: &CostReport, is_demo: bool) -> Self {
        let frame = Frame {
            period: report.period,
            zone: report.zone,
            currency: report.currency,
            as_of: report.as_of,
            is_demo,
        };
        let sides = &report.reconciliation;
        let summary = Summary {
            dimensions: report.dimensions.clone(),
            groups: report.groups.clone(),
            totals: report.totals.clone(),
            total: report.total,
        };
        Self {
            reconciliation: Some(Sides {
                in_service_gpu_hours: sides.in_service_gpu_hours.to_string(),
                parts_gpu_hours: sides.parts_gpu_hours.to_string(),
                difference: sides.difference.to_string(),
            }),
            ..Self::of_summary(frame, &summary)
        }
    }

    /// A part of a report that stands by itself.
    #[must_use]
    pub fn of_summary(frame: Frame, summary: &Summary) -> Self {
        let span = frame.period.span(frame.zone);
        let line = |values: Vec<(String, String)>, state: PartState, figures: &Figures| Line {
            values,
            state: state.word().to_owned(),
            sum: Sum::of(figures),
        };
        let keys = || summary.dimensions.iter().filter(|each| **each != Dimension::State);
        let groups = summary.groups.iter().map(|group| {
            let pairs = summary.dimensions.iter().zip(&group.values);
            let shown = pairs.filter(|(key, _)| **key != Dimension::State);
            let values = shown.map(|(key, value)| (key.word().to_owned(), value.clone())).collect();
            line(values, group.state, &group.figures)
        });
        let totals = summary.totals.iter().map(|(state, figures)| line(vec![], *state, figures));
        Self {
            period: frame.period.to_string(),
            from: span.start().to_string(),
            to: span.end().to_string(),
            zone: frame.zone.name().to_owned(),
            currency: frame.currency.to_string(),
            demo: frame.is_demo,
            group_by: keys().map(|key| key.word().to_owned()).collect(),
            groups: groups.collect(),
            totals: totals.collect(),
            total: Sum::of(&summary.total),
            reconciliation: None,
            as_of: frame.as_of.to_string(),
        }
    }

    /// The same with the values of each group in the report's order, as they are before a way over JSON.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        for group in &mut self.groups {
            let place = |name: &str| self.group_by.iter().position(|key| key == name);
            group.values.sort_by_key(|(name, _)| place(name));
        }
        self
    }

    /// As CSV: one line a group. Text that a spreadsheet would take for a formula gets an apostrophe before it. Each line
    /// of what is made up says so in a column of its own.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut out = csv::Writer::from_writer(Vec::new());
        let mut header: Vec<&str> = self.group_by.iter().map(String::as_str).collect();
        header.extend([
            "state",
            "gpu_hours",
            "unpriced_gpu_hours",
            "cost",
            "metered_gpu_hours",
            "energy_joules",
        ]);
        header.extend(self.demo.then_some("demo"));
        let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<String>>()];
        for group in &self.groups {
            let mut row: Vec<String> = group.values.iter().map(|(_, value)| no_formula(value)).collect();
            row.extend([
                group.state.clone(),
                group.sum.gpu_hours.clone(),
                group.sum.unpriced_gpu_hours.clone(),
                group.sum.cost.clone().unwrap_or_default(),
                group.sum.metered_gpu_hours.clone(),
                group.sum.energy_joules.clone().unwrap_or_default(),
            ]);
            row.extend(self.demo.then(|| true.to_string()));
            rows.push(row);
        }
        for row in rows {
            // A writer into memory does not fail, and all rows have the header's width.
            let _in_memory = out.write_record(row);
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

fn no_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']) {
        format!("'{text}")
    } else {
        text.to_owned()
    }
}

/// Joules with exactly three decimals.
fn joules(millijoules: i64) -> String {
    format!("{}.{:03}", millijoules.div_euclid(1_000), millijoules.rem_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula() {
        assert_eq!(no_formula("=cmd()"), "'=cmd()");
        assert_eq!(no_formula("team-a"), "team-a");
    }

    #[test]
    fn a_document_is_read_back() {
        let sum = Sum {
            gpu_hours: "1.500000".to_owned(),
            unpriced_gpu_hours: "0.000000".to_owned(),
            cost: Some("3".to_owned()),
            metered_gpu_hours: "0.000000".to_owned(),
            energy_joules: None,
        };
        let values = vec![("tenant".to_owned(), "acme".to_owned()), ("mode".to_owned(), "mig".to_owned())];
        let line = Line { values, state: "used".to_owned(), sum: sum.clone() };
        let costs = Costs {
            period: "2026-06".to_owned(),
            from: String::new(),
            to: String::new(),
            zone: "UTC".to_owned(),
            currency: "USD".to_owned(),
            demo: false,
            group_by: vec!["tenant".to_owned(), "mode".to_owned()],
            groups: vec![line],
            totals: vec![],
            total: sum,
            reconciliation: None,
            as_of: String::new(),
        };
        let text = serde_json::to_string(&costs).unwrap();
        assert!(
            text.contains(r#"{"tenant":"acme","mode":"mig","state":"used","gpu_hours":"1.500000""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap().ordered(), costs);
    }
}

//! `fatia report costs`: one report as tables for people, as JSON or as CSV.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::args::{CostsArguments, Format};
use super::{Ending, show, tell};
use crate::domain::allocation::PartState;
use crate::domain::money::Amount;
use crate::domain::report::{CostReport, Dimension, Figures};
use crate::services::ctx::Platform;
use crate::services::error::ServiceError;
use crate::services::reports;

pub(super) async fn run(platform: &Platform, arguments: &CostsArguments) -> Result<Ending, ServiceError> {
    let reports::Costs { report, pending } =
        reports::costs(platform, arguments.period, distinct(&arguments.group_by)).await?;
    let text = match arguments.format {
        Format::Text => as_text(&report),
        Format::Json => as_json(&report).map_err(ServiceError::Encode)?,
        Format::Csv => as_csv(&report),
    };
    if pending > 0 {
        tell(&format!("{pending} marks still wait for a worker: figures may change when they are derived"));
    }
    show(&text)?;
    Ok(Ending::Done)
}

/// The dimensions in the order asked, each once.
fn distinct(asked: &[Dimension]) -> Vec<Dimension> {
    let mut distinct = Vec::new();
    for dimension in asked {
        if !distinct.contains(dimension) {
            distinct.push(*dimension);
        }
    }
    distinct
}

/// A report as one JSON document: fields in a fixed order, numbers as strings.
fn as_json(report: &CostReport) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Document(report)).map(|text| text + "\n")
}

struct Document<'a>(&'a CostReport);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let groups: Vec<Line<'_>> = report
            .groups
            .iter()
            .map(|group| Line {
                dimensions: &report.dimensions,
                values: &group.values,
                state: group.state,
                figures: &group.figures,
            })
            .collect();
        let totals: Vec<Line<'_>> = report
            .totals
            .iter()
            .map(|(state, figures)| Line { dimensions: &[], values: &[], state: *state, figures })
            .collect();
        let mut map = out.serialize_map(None)?;
        map.serialize_entry("period", &report.period.to_string())?;
        map.serialize_entry("zone", report.zone.name())?;
        map.serialize_entry("currency", &report.currency.to_string())?;
        map.serialize_entry("groups", &groups)?;
        map.serialize_entry("totals", &totals)?;
        map.serialize_entry("reconciliation", &Sides(report))?;
        map.serialize_entry("as_of", &report.as_of.to_string())?;
        map.end()
    }
}

/// A group, or the total of a state.
struct Line<'a> {
    dimensions: &'a [Dimension],
    values: &'a [String],
    state: PartState,
    figures: &'a Figures,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(None)?;
        for (dimension, value) in self.dimensions.iter().zip(self.values) {
            if *dimension != Dimension::State {
                map.serialize_entry(dimension.word(), value)?;
            }
        }
        map.serialize_entry("state", self.state.word())?;
        map.serialize_entry("gpu_hours", &self.figures.gpu_hours.to_string())?;
        map.serialize_entry("unpriced_gpu_hours", &self.figures.unpriced_gpu_hours.to_string())?;
        map.serialize_entry("cost", &self.figures.cost().map(|cost| cost.to_string()))?;
        map.serialize_entry("metered_gpu_hours", &self.figures.metered_gpu_hours.to_string())?;
        map.serialize_entry("energy_joules", &self.figures.energy().map(joules))?;
        map.end()
    }
}

struct Sides<'a>(&'a CostReport);

impl Serialize for Sides<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let sides = &self.0.reconciliation;
        let mut map = out.serialize_map(None)?;
        map.serialize_entry("in_service_gpu_hours", &sides.in_service_gpu_hours.to_string())?;
        map.serialize_entry("parts_gpu_hours", &sides.parts_gpu_hours.to_string())?;
        map.serialize_entry("difference", &sides.difference.to_string())?;
        map.end()
    }
}

/// One line a group. Text that a spreadsheet would take for a formula gets an apostrophe before it.
fn as_csv(report: &CostReport) -> String {
    let keys: Vec<Dimension> =
        report.dimensions.iter().copied().filter(|each| *each != Dimension::State).collect();
    let mut out = csv::Writer::from_writer(Vec::new());
    let mut header: Vec<&str> = keys.iter().map(|key| key.word()).collect();
    header.extend(["state", "gpu_hours", "unpriced_gpu_hours", "cost", "metered_gpu_hours", "energy_joules"]);
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<String>>()];
    for group in &report.groups {
        let pairs = report.dimensions.iter().zip(&group.values);
        let mut row: Vec<String> =
            pairs.filter(|(key, _)| **key != Dimension::State).map(|(_, value)| no_formula(value)).collect();
        row.push(group.state.word().to_owned());
        row.extend([group.figures.gpu_hours.to_string(), group.figures.unpriced_gpu_hours.to_string()]);
        row.push(group.figures.cost().map(|cost| cost.to_string()).unwrap_or_default());
        row.push(group.figures.metered_gpu_hours.to_string());
        row.push(group.figures.energy().map(joules).unwrap_or_default());
        rows.push(row);
    }
    for row in rows {
        // A writer into memory does not fail, and all rows have the header's width.
        let _in_memory = out.write_record(row);
    }
    String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
}

fn no_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']) {
        format!("'{text}")
    } else {
        text.to_owned()
    }
}

/// Tables for people: the groups, the totals by state, and both sides of the identity.
fn as_text(report: &CostReport) -> String {
    let mut text = format!("Costs of {}, days of {}, in {}\n\n", report.period, report.zone, report.currency);
    let keys: Vec<Dimension> =
        report.dimensions.iter().copied().filter(|each| *each != Dimension::State).collect();
    let mut header: Vec<String> = keys.iter().map(|key| key.word().to_owned()).collect();
    header.push("state".to_owned());
    let mut groups = table(report, header);
    for group in &report.groups {
        let pairs = report.dimensions.iter().zip(&group.values);
        let mut row: Vec<String> =
            pairs.filter(|(key, _)| **key != Dimension::State).map(|(_, value)| value.clone()).collect();
        row.push(group.state.word().to_owned());
        row.extend(figures(&group.figures));
        groups.add_row(row);
    }
    let mut row = vec![String::new(); keys.len().saturating_sub(1)];
    if keys.is_empty() {
        row.push("total".to_owned());
    } else {
        row.insert(0, "total".to_owned());
        row.push(String::new());
    }
    row.extend(figures(&report.total));
    groups.add_row(row);
    align(&mut groups, keys.len() + 1);
    text.push_str(&groups.trim_fmt());
    let mut totals = table(report, vec!["total".to_owned()]);
    for (state, each) in &report.totals {
        let is_named =
            matches!(state, PartState::Used | PartState::Idle | PartState::Stranded | PartState::Unknown);
        if is_named || each.gpu_hours.micro() != 0 {
            let mut row = vec![state.word().to_owned()];
            row.extend(figures(each));
            totals.add_row(row);
        }
    }
    align(&mut totals, 1);
    let sides = &report.reconciliation;
    text.push_str(&format!("\n\n{}\n\n", totals.trim_fmt()));
    if let Some(energy) = report.total.energy() {
        text.push_str(&format!(
            "energy          {} kWh in {} GPU-hours that were metered\n",
            kilowatt_hours(energy),
            report.total.metered_gpu_hours
        ));
    }
    text.push_str(&format!(
        "unpriced        {} GPU-hours without a price\n",
        report.total.unpriced_gpu_hours
    ));
    text.push_str(&format!(
        "reconciliation  in service {} = parts {} GPU-hours, difference {}\n",
        sides.in_service_gpu_hours, sides.parts_gpu_hours, sides.difference
    ));
    text.push_str(&format!("as of           {}\n", report.as_of));
    text.push_str("Costs are shown to the cent; --format json has them exactly.\n");
    text
}

fn table(report: &CostReport, mut header: Vec<String>) -> Table {
    header.extend(["GPU-hours".to_owned(), "unpriced".to_owned(), format!("cost {}", report.currency)]);
    let mut table = Table::new();
    // Never folded to a terminal's width: a figure cut in two is misread.
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

/// The last three columns are numbers, aligned at their decimal points.
fn align(table: &mut Table, first_number: usize) {
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn figures(figures: &Figures) -> [String; 3] {
    let unpriced = figures.unpriced_gpu_hours;
    [
        figures.gpu_hours.to_string(),
        if unpriced.micro() == 0 { String::new() } else { unpriced.to_string() },
        figures.cost().map(to_the_cent).unwrap_or_else(|| "unpriced".to_owned()),
    ]
}

/// Joules with exactly three decimals.
fn joules(millijoules: i64) -> String {
    format!("{}.{:03}", millijoules.div_euclid(1_000), millijoules.rem_euclid(1_000))
}

/// For people's eyes: three decimals of a kWh, cut.
fn kilowatt_hours(millijoules: i64) -> String {
    let watt_hours = millijoules.div_euclid(3_600_000);
    format!("{}.{:03}", watt_hours.div_euclid(1_000), watt_hours.rem_euclid(1_000))
}

/// An amount for people's eyes, rounded half to even; sums are taken of exact amounts and never of these.
fn to_the_cent(amount: Amount) -> String {
    const PER_CENT: i128 = 1_000_000_000_000;
    let (mut cents, rest) = (amount.scaled().div_euclid(PER_CENT), amount.scaled().rem_euclid(PER_CENT));
    let half = PER_CENT / 2;
    if rest > half || (rest == half && cents.rem_euclid(2) == 1) {
        cents += 1;
    }
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::money::UnitPrice;
    use crate::domain::units::Quantity;

    #[test]
    fn cents_are_rounded_half_to_even() {
        let check = |micro: i64, price: &str, want: &str| {
            let amount = Amount::of(Quantity::from_micro(micro), UnitPrice::parse(price).unwrap());
            assert_eq!(to_the_cent(amount), want);
        };
        check(1_000_000, "0.005", "0.00");
        check(1_000_000, "0.015", "0.02");
        check(1_000_000, "0.0151", "0.02");
        check(-1_000_000, "0.015", "-0.02");
        check(-1_000_000, "0.005", "0.00");
        check(1_500_000, "2.5", "3.75");
    }

    #[test]
    fn no_cell_is_a_formula() {
        assert_eq!(no_formula("=cmd()"), "'=cmd()");
        assert_eq!(no_formula("team-a"), "team-a");
    }
}

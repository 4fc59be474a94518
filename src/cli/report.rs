//! `fatia report costs`: one report as tables for people, as JSON or as CSV.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::args::{CostsArguments, Format};
use super::{DEMO, Ending, Target, show, tell};
use crate::domain::money::Amount;
use crate::domain::report::{Dimension, ReportPeriod};
use crate::services::error::ServiceError;
use crate::services::reports;
use crate::wire::costs_v1::{Costs, Line, Sum};

pub(super) async fn run(target: &Target<'_>, arguments: &CostsArguments) -> Result<Ending, ServiceError> {
    let dimensions = distinct(&arguments.group_by);
    let (costs, pending) = match target {
        Target::Here(platform, _) => {
            let period = ReportPeriod::of_month(arguments.period);
            let reports::Costs { report, pending } = reports::costs(platform, period, dimensions).await?;
            (Costs::of_report(&report, platform.installation.is_demo), pending)
        }
        Target::Server(server) => server.costs(arguments.period, &dimensions).await?,
    };
    let text = match arguments.format {
        Format::Text => as_text(&costs),
        Format::Json => serde_json::to_string_pretty(&costs).map_err(ServiceError::Encode)? + "\n",
        Format::Csv => costs.to_csv(),
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

/// Tables for people: the groups, the totals by state, and both sides of the identity.
fn as_text(report: &Costs) -> String {
    let mut text = if report.demo { format!("{DEMO}\n") } else { String::new() };
    let (period, zone, currency) = (&report.period, &report.zone, &report.currency);
    text.push_str(&format!("Costs of {period}, days of {zone}, in {currency}\n\n"));
    let keys = &report.group_by;
    let mut header = keys.clone();
    header.push("state".to_owned());
    let mut groups = table(report, header);
    for Line { values, state, sum } in &report.groups {
        let mut row: Vec<String> = values.iter().map(|(_, value)| value.clone()).collect();
        row.push(state.clone());
        row.extend(figures(sum));
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
    for Line { state, sum, .. } in &report.totals {
        let is_named = matches!(state.as_str(), "used" | "idle" | "stranded" | "unknown");
        if is_named || !is_zero(&sum.gpu_hours) {
            let mut row = vec![state.clone()];
            row.extend(figures(sum));
            totals.add_row(row);
        }
    }
    align(&mut totals, 1);
    text.push_str(&format!("\n\n{}\n\n", totals.trim_fmt()));
    if let Some(joules) = &report.total.energy_joules {
        text.push_str(&format!(
            "energy          {} kWh in {} GPU-hours that were metered\n",
            kilowatt_hours(joules),
            report.total.metered_gpu_hours
        ));
    }
    text.push_str(&format!(
        "unpriced        {} GPU-hours without a price\n",
        report.total.unpriced_gpu_hours
    ));
    if let Some(sides) = &report.reconciliation {
        text.push_str(&format!(
            "reconciliation  in service {} = parts {} GPU-hours, difference {}\n",
            sides.in_service_gpu_hours, sides.parts_gpu_hours, sides.difference
        ));
    }
    text.push_str(&format!("as of           {}\n", report.as_of));
    text.push_str("Costs are shown to the cent; --format json has them exactly.\n");
    text
}

fn table(report: &Costs, mut header: Vec<String>) -> Table {
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

fn figures(sum: &Sum) -> [String; 3] {
    let unpriced = &sum.unpriced_gpu_hours;
    let cost = sum.cost.as_deref().map(|cost| match Amount::parse(cost) {
        Ok(amount) => to_the_cent(amount),
        Err(_) => cost.to_owned(),
    });
    [
        sum.gpu_hours.clone(),
        if is_zero(unpriced) { String::new() } else { unpriced.clone() },
        cost.unwrap_or_else(|| "unpriced".to_owned()),
    ]
}

/// Whether a decimal is nothing.
fn is_zero(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0' | b'.'))
}

/// Joules as kWh for people's eyes: three decimals, cut.
fn kilowatt_hours(joules: &str) -> String {
    let whole = joules.split('.').next().unwrap_or_default();
    let watt_hours = whole.parse::<i64>().unwrap_or_default().div_euclid(3_600);
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
}

//! The levels `node_day`, `tenant_day` and `tenant_month`, and the sums that reports read from them.
//!
//! Always true here: a level is recomputed whole and replaced; a month's sums are replaced in the transaction that
//! replaces those of one of its days; a report reads the highest level that has the dimensions and days asked, and the
//! one below for days whose tenant sums are behind.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::node_hour::OPEN_REVISION;
use super::{PlatformScope, ReadTx, Scope, StoreError, WriteTx};
use crate::domain::allocation::PartState;
use crate::domain::cost::{DaySums, Sum};
use crate::domain::ids::{Name, ScopeId, TenantId};
use crate::domain::period::{Day, Month};
use crate::domain::report::{Dimension, SumRow};
use crate::domain::units::Quantity;

/// One row of `node_day`, as its key columns and its quantity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeDayRow {
    /// Who pays.
    pub tenant: TenantId,
    /// project, workload, mode, model, sku, state, cost item, charge item; empty: none.
    pub words: [String; 8],
    /// How much.
    pub sum: Sum,
}

const WORDS: [&str; 8] = ["project", "workload", "mode", "model", "sku", "state", "cost_item", "charge_item"];
/// What is summed, in the order of [`sum_of`].
const SUMS: [&str; 3] = ["quantity", "metered", "energy_mj"];

/// The three sums that stand from `at` on in a row.
fn sum_of(row: &super::unit::Row, at: usize) -> Result<Sum, StoreError> {
    Ok(Sum {
        quantity: Quantity::from_micro(row.get(at)?),
        metered: Quantity::from_micro(row.get(at + 1)?),
        millijoules: row.get(at + 2)?,
    })
}

/// The sums of a group. PostgreSQL sums BIGINT to NUMERIC; the cast fails on overflow, as SQLite's own sum does.
fn summed(prefix: &str) -> String {
    SUMS.map(|column| format!("CAST(SUM({prefix}{column}) AS BIGINT)")).join(", ")
}

/// The rows of a day's sums; the tenants' numbers are looked up.
///
/// # Errors
/// [`StoreError::Corrupt`] when a sum names a tenant that does not exist.
pub fn node_day_rows(
    sums: &DaySums,
    tenants: &BTreeMap<Name, TenantId>,
) -> Result<Vec<NodeDayRow>, StoreError> {
    let mut rows = Vec::with_capacity(sums.len());
    for (key, sum) in sums.iter() {
        let tenant = match &key.tenant {
            None => TenantId::PLATFORM,
            Some(name) => *tenants
                .get(name)
                .ok_or_else(|| StoreError::corrupt("a sum", format!("no tenant is named `{name}`")))?,
        };
        let text = |name: &Option<Name>| name.as_ref().map(ToString::to_string).unwrap_or_default();
        let words = [
            text(&key.project),
            text(&key.workload),
            key.mode.map(|mode| mode.word().to_owned()).unwrap_or_default(),
            key.model.to_string(),
            key.sku.to_string(),
            key.state.word().to_owned(),
            key.cost_item.as_ref().map(ToString::to_string).unwrap_or_default(),
            key.charge_item.as_ref().map(ToString::to_string).unwrap_or_default(),
        ];
        rows.push(NodeDayRow { tenant, words, sum });
    }
    rows.sort_unstable();
    Ok(rows)
}

/// The rows of a scope's day as stored, in order.
///
/// # Errors
/// [`StoreError`].
pub async fn node_day(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    day: Day,
) -> Result<Vec<NodeDayRow>, StoreError> {
    let sql = format!(
        "SELECT tenant_id, {}, {} FROM node_day WHERE scope_id = $1 AND day = $2 AND revision = 0",
        WORDS.join(", "),
        SUMS.join(", ")
    );
    let rows = tx.all(&sql, vec![scope.stored().into(), day.stored().into()]).await?;
    let mut rows = rows
        .iter()
        .map(|row| {
            let mut words: [String; 8] = Default::default();
            for (at, word) in words.iter_mut().enumerate() {
                *word = row.get(at + 1)?;
            }
            let tenant = TenantId::from_stored(row.get(0)?);
            Ok(NodeDayRow { tenant, words, sum: sum_of(row, 9)? })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    rows.sort_unstable();
    Ok(rows)
}

/// Puts the rows of a scope's day in place of those that are there.
///
/// # Errors
/// [`StoreError`].
pub async fn replace_node_day(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    day: Day,
    rows: &[NodeDayRow],
) -> Result<(), StoreError> {
    let sql = "DELETE FROM node_day WHERE scope_id = $1 AND day = $2 AND revision = 0";
    tx.run(sql, vec![scope.stored().into(), day.stored().into()]).await?;
    let values = rows
        .iter()
        .map(|row| {
            let mut values = vec![
                scope.stored().into(),
                day.stored().into(),
                OPEN_REVISION.into(),
                row.tenant.stored().into(),
            ];
            values.extend(row.words.iter().map(|word| word.as_str().into()));
            values.extend([
                row.sum.quantity.micro().into(),
                row.sum.metered.micro().into(),
                row.sum.millijoules.into(),
            ]);
            values
        })
        .collect();
    let mut columns = vec!["scope_id", "day", "revision", "tenant_id"];
    columns.extend(WORDS);
    columns.extend(SUMS);
    tx.insert("node_day", &columns, values, "").await.map(|_| ())
}

/// Sums a tenant's day over all scopes, and puts the result in place of what is there.
///
/// # Errors
/// [`StoreError`].
pub async fn replace_tenant_day(
    _scope: &PlatformScope,
    tx: &WriteTx,
    day: Day,
    tenant: TenantId,
) -> Result<(), StoreError> {
    let values = || vec![day.stored().into(), tenant.stored().into()];
    tx.run("DELETE FROM tenant_day WHERE day = $1 AND tenant_id = $2 AND revision = 0", values()).await?;
    let keys = "project, mode, model, sku, state, cost_item, charge_item";
    let sql = format!(
        "INSERT INTO tenant_day (day, tenant_id, revision, {keys}, {}) \
         SELECT day, tenant_id, revision, {keys}, {} FROM node_day \
         WHERE day = $1 AND tenant_id = $2 AND revision = 0 GROUP BY day, tenant_id, revision, {keys}",
        SUMS.join(", "),
        summed("")
    );
    tx.run(&sql, values()).await.map(|_| ())
}

/// Sums a tenant's month over its days, and puts the result in place of what is there. Whoever replaces a day's sums
/// calls this before the transaction ends.
///
/// # Errors
/// [`StoreError`].
pub async fn replace_tenant_month(
    _scope: &PlatformScope,
    tx: &WriteTx,
    month: Month,
    tenant: TenantId,
) -> Result<(), StoreError> {
    let values = || vec![month.first_day().stored().into(), tenant.stored().into()];
    let sql = "DELETE FROM tenant_month WHERE first_day = $1 AND tenant_id = $2 AND revision = 0";
    tx.run(sql, values()).await?;
    let keys = "project, mode, model, sku, state, cost_item, charge_item";
    // Day by day, as the key of `tenant_day` begins: between two days lie the rows of all tenants.
    let days: Vec<String> =
        (month.first_day().stored()..month.end_day().stored()).map(|day| day.to_string()).collect();
    let sql = format!(
        "INSERT INTO tenant_month (first_day, tenant_id, revision, {keys}, {}) \
         SELECT CAST($1 AS BIGINT), tenant_id, revision, {keys}, {} FROM tenant_day \
         WHERE day IN ({}) AND tenant_id = $2 AND revision = 0 GROUP BY tenant_id, revision, {keys}",
        SUMS.join(", "),
        summed(""),
        days.join(", ")
    );
    tx.run(&sql, values()).await.map(|_| ())
}

/// Which level a report reads for which days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    NodeDay,
    TenantDay,
    TenantMonth,
}

impl Level {
    /// The table, and its column that is a day.
    const fn table(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeDay => ("node_day", "l.day"),
            Self::TenantDay => ("tenant_day", "l.day"),
            Self::TenantMonth => ("tenant_month", "l.first_day"),
        }
    }
}

/// Days of one month that may be behind, so that its sums are read and theirs taken out again: beyond, reading the days
/// costs less. On a fleet that reports all the time the day at hand is behind for some seconds of every five minutes.
const BEHIND_MAX: usize = 7;

/// The tenants' levels that have the sums of these days, in their order: the months', where a month is asked for whole
/// and few of its days are behind.
fn by_month(days: std::ops::Range<Day>, stale: &BTreeSet<Day>) -> Vec<(Level, std::ops::Range<Day>)> {
    let mut parts: Vec<(Level, std::ops::Range<Day>)> = Vec::new();
    let mut from = days.start;
    while from < days.end {
        let month = Month::of(from).days();
        let part = from..month.end.min(days.end);
        let level = if part == month && stale.range(month).count() <= BEHIND_MAX {
            Level::TenantMonth
        } else {
            Level::TenantDay
        };
        from = part.end;
        match parts.last_mut() {
            Some((last, before)) if *last == level => before.end = part.end,
            Some(_) | None => parts.push((level, part)),
        }
    }
    parts
}

/// Sums of a period by dimensions, state and cost item.
///
/// `stale` are days whose tenant sums are behind: for these the node sums are read. A tenant's scope reads its own rows.
///
/// # Errors
/// [`StoreError`].
pub async fn sums(
    scope: &Scope,
    tx: &ReadTx,
    days: std::ops::Range<Day>,
    stale: &BTreeSet<Day>,
    dimensions: &[Dimension],
    names: &Names,
) -> Result<Vec<SumRow>, StoreError> {
    if dimensions.iter().any(|dimension| dimension.needs_node_level()) {
        return read_sums(scope, tx, Level::NodeDay, days, dimensions, (None, names)).await;
    }
    let parts = if dimensions.contains(&Dimension::Day) {
        vec![(Level::TenantDay, days)]
    } else {
        by_month(days, stale)
    };
    let mut rows = Vec::new();
    let mut taken_out = Vec::new();
    for (level, days) in parts {
        let (without, behind) = match level {
            Level::TenantMonth => (None, stale.range(days.clone()).copied().collect()),
            Level::TenantDay | Level::NodeDay => (Some(stale), Vec::new()),
        };
        rows.extend(read_sums(scope, tx, level, days, dimensions, (without, names)).await?);
        // A month is the sum of its days, also of those that are behind: these are taken out as they are in it.
        for day in behind {
            let day = day..day.next();
            taken_out.extend(read_sums(scope, tx, Level::TenantDay, day, dimensions, (None, names)).await?);
        }
    }
    let mut rows = if taken_out.is_empty() { rows } else { less(rows, taken_out)? };
    for day in stale {
        let day = *day..day.next();
        rows.extend(read_sums(scope, tx, Level::NodeDay, day, dimensions, (None, names)).await?);
    }
    Ok(rows)
}

/// Sums without some that are among them. What nothing is left of goes.
fn less(rows: Vec<SumRow>, taken_out: Vec<SumRow>) -> Result<Vec<SumRow>, StoreError> {
    type Key = (Vec<String>, &'static str, Option<String>);
    let key = |row: &SumRow| -> Key { (row.values.clone(), row.state.word(), row.cost_item.clone()) };
    let mut by_key: HashMap<Key, SumRow> = HashMap::with_capacity(rows.len());
    let joined = |a: Sum, b: Sum| a.plus(b).map_err(|error| StoreError::corrupt("a sum", error));
    let mut add = |row: SumRow| match by_key.entry(key(&row)) {
        Entry::Vacant(entry) => {
            entry.insert(row);
            Ok(())
        }
        Entry::Occupied(mut entry) => {
            let there = entry.get_mut();
            there.sum = joined(there.sum, row.sum)?;
            Ok::<_, StoreError>(())
        }
    };
    for row in rows {
        add(row)?;
    }
    let mut touched = Vec::with_capacity(taken_out.len());
    for row in taken_out {
        touched.push(key(&row));
        let Sum { quantity, metered, millijoules } = row.sum;
        let sum = Sum {
            quantity: Quantity::from_micro(-quantity.micro()),
            metered: Quantity::from_micro(-metered.micro()),
            millijoules: -millijoules,
        };
        add(SumRow { sum, ..row })?;
    }
    for key in touched {
        if by_key.get(&key).is_some_and(|row| row.sum == Sum::default()) {
            by_key.remove(&key);
        }
    }
    Ok(by_key.into_values().collect())
}

/// Sums of one report, at most: each takes about two KiB until it is written out.
pub const SUMS_MAX: usize = 200_000;

/// Columns by which sums are grouped, from those with the most values to those with the fewest. SQLite groups by
/// sorting: where the first column tells rows apart, the others need not be compared.
const BY_DISTINCTION: [&str; 9] = [
    "l.workload",
    "l.project",
    "l.scope_id",
    "l.tenant_id",
    "l.day",
    "l.model",
    "l.mode",
    "l.cost_item",
    "l.state",
];

async fn read_sums(
    scope: &Scope,
    tx: &ReadTx,
    level: Level,
    days: std::ops::Range<Day>,
    dimensions: &[Dimension],
    (without, names): (Option<&BTreeSet<Day>>, &Names),
) -> Result<Vec<SumRow>, StoreError> {
    let (table, dated) = level.table();
    // Sums are taken by number and joined to names afterwards: the names are few, the rows are many.
    let column = |dimension: Dimension| match dimension {
        Dimension::Tenant => "l.tenant_id",
        Dimension::Project => "l.project",
        Dimension::Mode => "l.mode",
        Dimension::Model => "l.model",
        Dimension::Node => "l.scope_id",
        Dimension::Workload => "l.workload",
        Dimension::Day => "l.day",
        Dimension::State => "l.state",
    };
    let keys: Vec<&str> = dimensions.iter().map(|dimension| column(*dimension)).collect();
    let is_key = |column: &&str| keys.contains(column) || matches!(*column, "l.state" | "l.cost_item");
    let grouped: Vec<&str> = BY_DISTINCTION.into_iter().filter(is_key).collect();
    let mut values = vec![days.start.stored().into(), days.end.stored().into()];
    let mut except = String::new();
    for day in without.into_iter().flatten().filter(|day| days.contains(day)) {
        values.push(day.stored().into());
        except.push_str(&format!(" AND {dated} <> ${}", values.len()));
    }
    if let Some(tenant) = scope.only() {
        values.push(tenant.into());
        except.push_str(&format!(" AND l.tenant_id = ${}", values.len()));
    }
    let mut selected: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    selected.extend(["l.state".to_owned(), "l.cost_item".to_owned(), summed("l.")]);
    let sql = format!(
        "SELECT {} FROM {table} l WHERE {dated} >= $1 AND {dated} < $2 AND l.revision = 0{except} GROUP BY {} LIMIT {}",
        selected.join(", "),
        grouped.join(", "),
        SUMS_MAX + 1
    );
    let rows = tx.all(&sql, values).await?;
    if rows.len() > SUMS_MAX {
        return Err(StoreError::TooMany { what: "groups in the report", most: SUMS_MAX });
    }
    let mut sums = Vec::with_capacity(rows.len());
    for row in rows {
        let mut shown = Vec::with_capacity(dimensions.len());
        for (at, dimension) in dimensions.iter().enumerate() {
            shown.push(names.show(&row, at, *dimension)?);
        }
        let state: String = row.get(dimensions.len())?;
        let item: String = row.get(dimensions.len() + 1)?;
        sums.push(SumRow {
            values: shown,
            state: PartState::parse(&state).map_err(|error| StoreError::corrupt("a sum", error))?,
            cost_item: (!item.is_empty()).then_some(item),
            sum: sum_of(&row, dimensions.len() + 2)?,
        });
    }
    Ok(sums)
}

/// The word that reports show where a field holds nothing.
const NONE: &str = "none";

/// Natural names of the numbers that sums are keyed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    tenants: BTreeMap<i64, String>,
    scopes: BTreeMap<i64, String>,
}

impl Names {
    /// The names that these dimensions show.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read(
        _scope: &PlatformScope,
        tx: &ReadTx,
        dimensions: &[Dimension],
    ) -> Result<Self, StoreError> {
        let mut names = Self { tenants: BTreeMap::new(), scopes: BTreeMap::new() };
        if dimensions.contains(&Dimension::Tenant) {
            for row in tx.all("SELECT tenant_id, name FROM tenant", vec![]).await? {
                names.tenants.insert(row.get(0)?, row.get(1)?);
            }
        }
        if dimensions.contains(&Dimension::Node) {
            for row in tx.all("SELECT scope_id, name FROM scope", vec![]).await? {
                names.scopes.insert(row.get(0)?, row.get(1)?);
            }
        }
        Ok(names)
    }

    fn show(&self, row: &super::unit::Row, at: usize, dimension: Dimension) -> Result<String, StoreError> {
        let known = |names: &BTreeMap<i64, String>| {
            let number: i64 = row.get(at)?;
            names
                .get(&number)
                .cloned()
                .ok_or_else(|| StoreError::corrupt("a sum", format!("no name for {number}")))
        };
        match dimension {
            Dimension::Tenant => known(&self.tenants),
            Dimension::Node => known(&self.scopes),
            Dimension::Day => Day::from_stored(row.get(at)?)
                .map(|day| day.to_string())
                .map_err(|e| StoreError::corrupt("a sum", e)),
            Dimension::Project
            | Dimension::Mode
            | Dimension::Model
            | Dimension::Workload
            | Dimension::State => {
                let word: String = row.get(at)?;
                Ok(if word.is_empty() { NONE.to_owned() } else { word })
            }
        }
    }
}

/// The days for which sums of a scope are stored, in order.
///
/// # Errors
/// [`StoreError`].
pub async fn summed_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
) -> Result<Vec<Day>, StoreError> {
    let sql = "SELECT DISTINCT day FROM node_day WHERE scope_id = $1 AND revision = 0 ORDER BY day";
    let rows = tx.all(sql, vec![scope.stored().into()]).await?;
    rows.iter()
        .map(|row| Day::from_stored(row.get(0)?).map_err(|error| StoreError::corrupt("a sum", error)))
        .collect()
}

/// The days and tenants for which some level has sums; for a month's, its first day.
///
/// # Errors
/// [`StoreError`].
pub async fn tenant_days(_scope: &PlatformScope, tx: &ReadTx) -> Result<Vec<(Day, TenantId)>, StoreError> {
    let sql = "SELECT day, tenant_id FROM node_day WHERE revision = 0 UNION \
               SELECT day, tenant_id FROM tenant_day WHERE revision = 0 UNION \
               SELECT first_day, tenant_id FROM tenant_month WHERE revision = 0 ORDER BY day, tenant_id";
    let rows = tx.all(sql, vec![]).await?;
    rows.iter()
        .map(|row| {
            let day = Day::from_stored(row.get(0)?).map_err(|error| StoreError::corrupt("a sum", error))?;
            Ok((day, TenantId::from_stored(row.get(1)?)))
        })
        .collect()
}

/// Rows of `tenant_day` that are not the sum of their `node_day` rows: by how much, and what.
///
/// # Errors
/// [`StoreError`].
pub async fn unequal_tenant_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<Vec<(Day, TenantId, Quantity)>, StoreError> {
    let keys = "day, tenant_id, project, mode, model, sku, state, cost_item, charge_item";
    let (sums, negated) = (SUMS.join(", "), SUMS.map(|column| format!("-{column}")).join(", "));
    let sql = format!(
        "SELECT day, tenant_id, CAST(SUM(quantity) AS BIGINT) FROM (\
         SELECT {keys}, {sums} FROM tenant_day WHERE revision = 0 UNION ALL \
         SELECT {keys}, {negated} FROM node_day WHERE revision = 0) both_levels \
         GROUP BY {keys} HAVING SUM(quantity) <> 0 OR SUM(metered) <> 0 OR SUM(energy_mj) <> 0 ORDER BY {keys}"
    );
    let rows = tx.all(&sql, vec![]).await?;
    rows.iter()
        .map(|row| {
            let day = Day::from_stored(row.get(0)?).map_err(|error| StoreError::corrupt("a sum", error))?;
            Ok((day, TenantId::from_stored(row.get(1)?), Quantity::from_micro(row.get(2)?)))
        })
        .collect()
}

/// Months and tenants whose sums are not those of their days: by how much.
///
/// # Errors
/// [`StoreError`].
pub async fn unequal_tenant_months(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<Vec<(Month, TenantId, Quantity)>, StoreError> {
    let mut unequal = Vec::new();
    let keys = "tenant_id, project, mode, model, sku, state, cost_item, charge_item";
    let (sums, negated) = (SUMS.join(", "), SUMS.map(|column| format!("-{column}")).join(", "));
    let sql = "SELECT first_day FROM tenant_month WHERE revision = 0 UNION \
               SELECT day FROM tenant_day WHERE revision = 0";
    let mut months = BTreeSet::new();
    for row in tx.all(sql, vec![]).await? {
        months.insert(Month::of(
            Day::from_stored(row.get(0)?).map_err(|error| StoreError::corrupt("a sum", error))?,
        ));
    }
    // A month at a time: which days it has, the calendar knows and SQL does not.
    for month in months {
        let sql = format!(
            "SELECT tenant_id, CAST(SUM(quantity) AS BIGINT) FROM (\
             SELECT {keys}, {sums} FROM tenant_month WHERE first_day >= $1 AND first_day < $2 AND revision = 0 \
             UNION ALL \
             SELECT {keys}, {negated} FROM tenant_day WHERE day >= $1 AND day < $2 AND revision = 0) both_levels \
             GROUP BY {keys} HAVING SUM(quantity) <> 0 OR SUM(metered) <> 0 OR SUM(energy_mj) <> 0 ORDER BY {keys}"
        );
        let values = vec![month.first_day().stored().into(), month.end_day().stored().into()];
        for row in tx.all(&sql, values).await? {
            unequal.push((month, TenantId::from_stored(row.get(0)?), Quantity::from_micro(row.get(1)?)));
        }
    }
    Ok(unequal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_month_is_read_as_one_unless_many_days_of_it_are_behind() {
        let check = |from: &str, to: &str, behind: &[&str], want: &[&str]| {
            let day = |text: &str| Day::parse(text).unwrap();
            let stale = behind.iter().map(|text| day(text)).collect();
            let got = by_month(day(from)..day(to), &stale);
            let got: Vec<String> =
                got.iter().map(|(level, days)| format!("{level:?} {} {}", days.start, days.end)).collect();
            assert_eq!(got, want, "{from} {to} {behind:?}");
        };
        check("2026-06-01", "2026-07-01", &[], &["TenantMonth 2026-06-01 2026-07-01"]);
        check("2026-06-01", "2026-06-30", &[], &["TenantDay 2026-06-01 2026-06-30"]);
        check("2026-06-02", "2026-07-01", &[], &["TenantDay 2026-06-02 2026-07-01"]);
        let june = ["2026-06-01 2026-07-01"]
            .map(|days| (format!("TenantMonth {days}"), format!("TenantDay {days}")));
        let days: Vec<String> = (1..=8).map(|day| format!("2026-06-{day:02}")).collect();
        let days: Vec<&str> = days.iter().map(String::as_str).collect();
        check("2026-06-01", "2026-07-01", &days[..7], &[&june[0].0]);
        check("2026-06-01", "2026-07-01", &days, &[&june[0].1]);
        check("2026-02-01", "2026-04-01", &["2026-04-01"], &["TenantMonth 2026-02-01 2026-04-01"]);
        check(
            "2026-01-31",
            "2026-05-02",
            &["2026-03-15"],
            &[
                "TenantDay 2026-01-31 2026-02-01",
                "TenantMonth 2026-02-01 2026-05-01",
                "TenantDay 2026-05-01 2026-05-02",
            ],
        );
        check("2026-06-01", "2026-06-01", &[], &[]);
    }
}

//! The one row that says what this installation is.

use super::backend::{lock_clause, share_clause};
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::money::Currency;
use crate::domain::period::BillingZone;
use crate::domain::units::Instant;

/// What an installation is.
#[derive(Clone)]
pub struct Installation {
    /// Where days begin.
    pub zone: BillingZone,
    /// The version of the time-zone database with which it was last opened.
    pub zone_database: String,
    /// The book currency.
    pub currency: Currency,
    /// The seed of the key that signs imports. Secret.
    pub signing_seed: [u8; 32],
    /// The key's public half.
    pub public_key: [u8; 32],
    /// When the first batch was accepted; from then on zone and currency are fixed.
    pub fixed: Option<Instant>,
    /// By which rules its levels were derived.
    pub derivation: i64,
    /// Whether all that it holds is made up.
    pub is_demo: bool,
}

impl std::fmt::Debug for Installation {
    /// Never shows the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Installation({}, {})", self.zone, self.currency)
    }
}

/// The installation, if there is one yet.
///
/// # Errors
/// [`StoreError`].
pub async fn find(_scope: &PlatformScope, tx: &ReadTx) -> Result<Option<Installation>, StoreError> {
    let sql = "SELECT zone, zone_database, currency, signing_seed, public_key, fixed_us, derivation, demo \
               FROM installation";
    let Some(row) = tx.one(sql, vec![]).await? else {
        return Ok(None);
    };
    let corrupt = |reason: String| StoreError::corrupt("the installation", reason);
    let key =
        |bytes: Vec<u8>| <[u8; 32]>::try_from(bytes).map_err(|_| corrupt("a key is not 32 bytes".to_owned()));
    Ok(Some(Installation {
        zone: BillingZone::parse(&row.get::<String>(0)?).map_err(|error| corrupt(error.to_string()))?,
        zone_database: row.get(1)?,
        currency: Currency::parse(&row.get::<String>(2)?).map_err(|error| corrupt(error.to_string()))?,
        signing_seed: key(row.get(3)?)?,
        public_key: key(row.get(4)?)?,
        fixed: row.get::<Option<i64>>(5)?.map(Instant::from_micros),
        derivation: row.get(6)?,
        is_demo: row.get::<i64>(7)? != 0,
    }))
}

/// Makes the installation, unless another process just did.
///
/// # Errors
/// [`StoreError`].
pub async fn create(
    _scope: &PlatformScope,
    tx: &WriteTx,
    new: &Installation,
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO installation (installation_id, zone, zone_database, currency, signing_seed, public_key, \
               created_us, fixed_us, derivation) VALUES (1, $1, $2, $3, $4, $5, $6, NULL, $7) ON CONFLICT (installation_id) DO NOTHING";
    let values = vec![
        new.zone.name().into(),
        new.zone_database.clone().into(),
        new.currency.to_string().into(),
        new.signing_seed.to_vec().into(),
        new.public_key.to_vec().into(),
        now.micros().into(),
        new.derivation.into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Notes by which rules the levels are derived from now on. The caller marks what they change.
///
/// # Errors
/// [`StoreError`].
pub async fn set_derivation(_scope: &PlatformScope, tx: &WriteTx, derivation: i64) -> Result<(), StoreError> {
    tx.run("UPDATE installation SET derivation = $1", vec![derivation.into()]).await.map(|_| ())
}

/// Says that all of an installation is made up. The caller has seen that there is nothing in it.
///
/// # Errors
/// [`StoreError`].
pub async fn set_demo(_scope: &PlatformScope, tx: &WriteTx) -> Result<(), StoreError> {
    tx.run("UPDATE installation SET demo = 1", vec![]).await.map(|_| ())
}

/// Sets zone and currency while they may still change. Where the zone changes, what was derived by the old one
/// (in-service time that nobody has reported on) is taken away and will be asked for again.
///
/// # Errors
/// [`StoreError`].
pub async fn set_billing(
    scope: &PlatformScope,
    tx: &WriteTx,
    zone: BillingZone,
    currency: Currency,
) -> Result<(), StoreError> {
    let Some(there) = find(scope, tx).await?.filter(|there| there.fixed.is_none()) else { return Ok(()) };
    if there.zone != zone {
        for derived in
            ["node_hour", "node_day", "tenant_day", "tenant_month", "dirty_node", "dirty_tenant_day"]
        {
            tx.run(&format!("DELETE FROM {derived}"), vec![]).await?;
        }
        tx.run("UPDATE device_service SET edge_us = from_us, counted_to_us = from_us", vec![]).await?;
    }
    let sql = "UPDATE installation SET zone = $1, currency = $2, zone_database = $3 WHERE fixed_us IS NULL";
    let values = vec![
        zone.name().into(),
        currency.to_string().into(),
        BillingZone::database_version().to_owned().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// How the installation is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// To change prices or the fleet: nobody else may hold it.
    Alone,
    /// To ask for hours by what prices and the fleet are: others may do so too.
    Shared,
}

/// Locks the installation until the transaction ends. Of two that change prices or the fleet at once, each sees
/// what the other did; and no hour is asked for while they read which hours there are.
///
/// # Errors
/// [`StoreError`].
pub async fn lock(_scope: &PlatformScope, tx: &WriteTx, lock: Lock) -> Result<(), StoreError> {
    let clause = match lock {
        Lock::Alone => lock_clause(tx.dialect()),
        Lock::Shared => share_clause(tx.dialect()),
    };
    tx.one(&format!("SELECT installation_id FROM installation{clause}"), vec![]).await.map(|_| ())
}

/// Fixes zone and currency, which the first accepted batch does.
///
/// # Errors
/// [`StoreError`].
pub async fn fix(_scope: &PlatformScope, tx: &WriteTx, now: Instant) -> Result<(), StoreError> {
    let sql = "UPDATE installation SET fixed_us = $1 WHERE fixed_us IS NULL";
    tx.run(sql, vec![now.micros().into()]).await.map(|_| ())
}

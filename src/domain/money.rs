//! Exact money: unit prices in 10⁻⁸, amounts in 10⁻¹⁴ of the currency unit.
//!
//! Always true here: quantity (10⁻⁶) × unit price (10⁻⁸) is an amount (10⁻¹⁴) without rounding.
//! Source: DESIGN §2.

use std::fmt;

use super::units::{OutOfRange, Quantity};

/// Decimal digits of a unit price.
const PRICE_DIGITS: u32 = 8;
/// Decimal digits of an amount.
const AMOUNT_DIGITS: u32 = 14;

/// An ISO 4217 currency code: three capital letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

/// A text is not a currency code, a price or an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// Not three capital letters.
    #[error("`{text}` is not a currency code of three capital letters, such as EUR")]
    NotACurrency {
        /// The text as given.
        text: String,
    },
    /// Not a plain decimal number.
    #[error("`{text}` is not a plain decimal number, such as 2.75")]
    NotADecimal {
        /// The text as given.
        text: String,
    },
    /// More decimals than the scale holds; nothing is rounded in silence.
    #[error("`{text}` has more than {digits} decimals")]
    TooFine {
        /// The text as given.
        text: String,
        /// Decimals that the scale holds.
        digits: u32,
    },
    /// The number does not fit.
    #[error("`{text}` is too large")]
    TooLarge {
        /// The text as given.
        text: String,
    },
    /// A price below zero.
    #[error("`{text}` is negative; a price is zero or more")]
    Negative {
        /// The text as given.
        text: String,
    },
}

impl Currency {
    /// Reads a code.
    ///
    /// # Errors
    /// [`MoneyError::NotACurrency`] when it is not three capital letters.
    pub fn parse(text: &str) -> Result<Self, MoneyError> {
        match text.as_bytes() {
            [a, b, c] if [a, b, c].iter().all(|letter| letter.is_ascii_uppercase()) => Ok(Self([*a, *b, *c])),
            _ => Err(MoneyError::NotACurrency { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{}", char::from(byte))?;
        }
        Ok(())
    }
}

/// The price of one unit, in 10⁻⁸ of the currency unit; zero or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitPrice(i64);

impl UnitPrice {
    /// Reads a plain decimal with at most eight decimals.
    ///
    /// # Errors
    /// [`MoneyError`] when it is no decimal, too fine, too large or negative.
    pub fn parse(text: &str) -> Result<Self, MoneyError> {
        let scaled = parse_decimal(text, PRICE_DIGITS)?;
        if scaled < 0 {
            return Err(MoneyError::Negative { text: text.to_owned() });
        }
        i64::try_from(scaled).map(Self).map_err(|_| MoneyError::TooLarge { text: text.to_owned() })
    }

    /// A price from 10⁻⁸ of the currency unit, as stored.
    #[must_use]
    pub const fn from_scaled(scaled: i64) -> Self {
        Self(scaled)
    }

    /// The price in 10⁻⁸ of the currency unit.
    #[must_use]
    pub const fn scaled(self) -> i64 {
        self.0
    }
}

impl fmt::Display for UnitPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, i128::from(self.0), PRICE_DIGITS)
    }
}

/// An amount of money in 10⁻¹⁴ of the currency unit; may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(i128);

impl Amount {
    /// No money.
    pub const ZERO: Self = Self(0);

    /// Quantity × unit price, exactly. The product of two 64-bit numbers always fits.
    #[must_use]
    pub fn of(quantity: Quantity, price: UnitPrice) -> Self {
        Self(i128::from(quantity.micro()).saturating_mul(i128::from(price.0)))
    }

    /// Reads a plain decimal as it is written.
    ///
    /// # Errors
    /// [`MoneyError`] when it is no plain decimal, or has more than 14 decimals.
    pub fn parse(text: &str) -> Result<Self, MoneyError> {
        parse_decimal(text, AMOUNT_DIGITS).map(Self)
    }

    /// The amount in 10⁻¹⁴ of the currency unit.
    #[must_use]
    pub const fn scaled(self) -> i128 {
        self.0
    }

    /// The sum.
    ///
    /// # Errors
    /// [`OutOfRange`] past 1.7·10²⁴ currency units.
    pub fn plus(self, other: Self) -> Result<Self, OutOfRange> {
        self.0.checked_add(other.0).map(Self).ok_or(OutOfRange::of("a sum of amounts"))
    }
}

impl fmt::Display for Amount {
    /// The exact decimal without trailing zeros: `12.5`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0, AMOUNT_DIGITS)
    }
}

fn parse_decimal(text: &str, digits: u32) -> Result<i128, MoneyError> {
    let not_a_decimal = || MoneyError::NotADecimal { text: text.to_owned() };
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || rest.ends_with('.') {
        return Err(not_a_decimal());
    }
    let fraction = fraction.trim_end_matches('0');
    let width = usize::try_from(digits).unwrap_or(usize::MAX);
    if fraction.len() > width {
        return Err(MoneyError::TooFine { text: text.to_owned(), digits });
    }
    let magnitude: i128 = format!("{whole}{fraction:0<width$}")
        .parse()
        .map_err(|_| MoneyError::TooLarge { text: text.to_owned() })?;
    Ok(if negative { magnitude.saturating_neg() } else { magnitude })
}

fn write_decimal(f: &mut fmt::Formatter<'_>, scaled: i128, digits: u32) -> fmt::Result {
    let unit = 10_u128.saturating_pow(digits);
    let sign = if scaled < 0 { "-" } else { "" };
    let magnitude = scaled.unsigned_abs();
    let (whole, rest) = (magnitude.div_euclid(unit), magnitude.rem_euclid(unit));
    if rest == 0 {
        return f.pad(&format!("{sign}{whole}"));
    }
    let width = usize::try_from(digits).unwrap_or(usize::MAX);
    let fraction = format!("{rest:0width$}");
    f.pad(&format!("{sign}{whole}.{}", fraction.trim_end_matches('0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_read_exactly_or_refused() {
        let check = |text: &str, want: Result<&str, &str>| {
            let got =
                UnitPrice::parse(text).map(|price| price.to_string()).map_err(|error| error.to_string());
            match want {
                Ok(shown) => assert_eq!(got.as_deref(), Ok(shown), "{text}"),
                Err(part) => assert!(got.as_ref().is_err_and(|e| e.contains(part)), "{text}: {got:?}"),
            }
        };
        check("2.75", Ok("2.75"));
        check("2", Ok("2"));
        check("0.00000001", Ok("0.00000001"));
        check("2.500000000000", Ok("2.5"));
        check("0.000000001", Err("more than 8 decimals"));
        check("-1", Err("negative"));
        check("1e3", Err("not a plain decimal"));
        check("1.", Err("not a plain decimal"));
        check(".5", Err("not a plain decimal"));
        check("1,5", Err("not a plain decimal"));
        check("NaN", Err("not a plain decimal"));
        check("99999999999999", Err("too large"));
    }

    #[test]
    fn quantity_times_price_is_exact() {
        let amount = Amount::of(Quantity::from_micro(1), UnitPrice::parse("0.00000001").unwrap());
        assert_eq!(amount.to_string(), "0.00000000000001");
        let amount = Amount::of(Quantity::from_micro(1_500_000), UnitPrice::parse("2.5").unwrap());
        assert_eq!(amount.to_string(), "3.75");
        assert_eq!(
            Amount::of(Quantity::from_micro(-2_000_000), UnitPrice::parse("1").unwrap()).to_string(),
            "-2"
        );
    }

    #[test]
    fn a_currency_is_three_capitals() {
        assert_eq!(Currency::parse("BRL").unwrap().to_string(), "BRL");
        for text in ["brl", "EURO", "", "E1R"] {
            assert!(Currency::parse(text).is_err(), "{text}");
        }
    }
}

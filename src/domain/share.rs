//! Shares of a device as exact fractions, and how they are normalised and weighed.

use num_bigint::BigInt;
use num_integer::Integer;

use super::units::{NANOS_PER_MICRO_HOUR, OutOfRange, Quantity};

/// Millionths in one whole.
pub const PPM: i128 = 1_000_000;

/// A share of a slice's parent: an exact, non-negative fraction. Raw numerator and denominator are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    numerator: i128,
    denominator: i128,
}

impl Share {
    /// The whole parent.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
    /// Nothing of it.
    pub const NONE: Self = Self { numerator: 0, denominator: 1 };

    /// A share in millionths, as declared by an import.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> Self {
        Self { numerator: ppm as i128, denominator: PPM }
    }

    /// A fraction.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is negative or its denominator is not positive.
    pub const fn new(numerator: i128, denominator: i128) -> Result<Self, OutOfRange> {
        if numerator < 0 || denominator < 1 {
            return Err(OutOfRange::of("a share"));
        }
        Ok(Self { numerator, denominator })
    }

    /// The numerator as given.
    #[must_use]
    pub const fn numerator(self) -> i128 {
        self.numerator
    }

    /// The denominator as given.
    #[must_use]
    pub const fn denominator(self) -> i128 {
        self.denominator
    }

    /// This share of that share: the product down a path.
    ///
    /// # Errors
    /// [`OutOfRange`] when the exact product does not fit.
    pub fn of(self, parent: Self) -> Result<Self, OutOfRange> {
        let product = |a: i128, b: i128| a.checked_mul(b).ok_or(OutOfRange::of("a product of shares"));
        let (numerator, denominator) =
            (product(self.numerator, parent.numerator)?, product(self.denominator, parent.denominator)?);
        let common = numerator.gcd(&denominator).max(1);
        Ok(Self { numerator: numerator.div_euclid(common), denominator: denominator.div_euclid(common) })
    }
}

/// What the children of one parent take of it, and what they leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Normalised {
    /// The shares in the order given; divided by their sum where that is above one.
    pub shares: Vec<Share>,
    /// One minus their sum, or nothing where the sum is one or more.
    pub rest: Share,
}

/// Divides each share by the sum of all where that sum is above one (DESIGN §3, rule 2).
///
/// While the sum is one or less, no share is touched: a neighbour's change moves nobody.
///
/// # Errors
/// [`OutOfRange`] when the common denominator does not fit.
pub fn normalise(shares: &[Share]) -> Result<Normalised, OutOfRange> {
    let fits = |value: Option<i128>| value.ok_or(OutOfRange::of("a sum of shares"));
    let mut common = 1_i128;
    for share in shares {
        let shared = common.gcd(&share.denominator).max(1);
        common = fits(common.checked_mul(share.denominator.div_euclid(shared)))?;
    }
    let mut numerators = Vec::with_capacity(shares.len());
    let mut sum = 0_i128;
    for share in shares {
        let numerator = fits(share.numerator.checked_mul(common.div_euclid(share.denominator)))?;
        sum = fits(sum.checked_add(numerator))?;
        numerators.push(numerator);
    }
    if sum <= common {
        let rest = Share { numerator: common.saturating_sub(sum), denominator: common };
        return Ok(Normalised { shares: shares.to_vec(), rest });
    }
    let shares = numerators.into_iter().map(|numerator| Share { numerator, denominator: sum }).collect();
    Ok(Normalised { shares, rest: Share::NONE })
}

/// The exact weight of a leaf within one hour: Σ nanoseconds × share, kept apart by denominator.
///
/// **Invariant**: exact until [`Weight::floor`], which rounds down once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weight {
    terms: Vec<(i128, i128)>,
}

impl Weight {
    /// Adds `nanos` at `share`.
    ///
    /// # Errors
    /// [`OutOfRange`] when an exact term does not fit.
    pub fn add(&mut self, nanos: i64, share: Share) -> Result<(), OutOfRange> {
        let fits = |value: Option<i128>| value.ok_or(OutOfRange::of("the weight of a leaf"));
        let term = fits(i128::from(nanos).checked_mul(share.numerator))?;
        if term == 0 {
            return Ok(());
        }
        match self.terms.iter_mut().find(|(denominator, _)| *denominator == share.denominator) {
            Some((_, sum)) => *sum = fits(sum.checked_add(term))?,
            None => self.terms.push((share.denominator, term)),
        }
        Ok(())
    }

    /// The weight in whole micro-GPU-hours, rounded down once.
    ///
    /// # Errors
    /// [`OutOfRange`] when the quantity does not fit.
    pub fn floor(&self) -> Result<Quantity, OutOfRange> {
        let out_of_range = OutOfRange::of("the weight of a leaf");
        let unit = i128::from(NANOS_PER_MICRO_HOUR);
        let micro = match self.terms.as_slice() {
            [] => 0,
            [(denominator, sum)] if denominator.checked_mul(unit).is_some() => {
                sum.div_euclid(denominator.saturating_mul(unit))
            }
            terms => floor_of_many(terms, unit).ok_or(out_of_range)?,
        };
        i64::try_from(micro).map(Quantity::from_micro).map_err(|_| out_of_range)
    }
}

/// ⌊Σ sumₖ ÷ (denominatorₖ × unit)⌋ for differing denominators: over their product, which needs big integers.
#[expect(clippy::arithmetic_side_effects, reason = "big integers neither overflow nor divide by zero here")]
fn floor_of_many(terms: &[(i128, i128)], unit: i128) -> Option<i128> {
    let mut numerator = BigInt::from(0);
    let mut denominator = BigInt::from(1);
    for (each, sum) in terms {
        numerator = numerator * each + &denominator * sum;
        denominator *= *each;
    }
    i128::try_from(numerator.div_floor(&(denominator * unit))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_up_to_one_is_left_alone() {
        let shares = [Share::from_ppm(460_000), Share::from_ppm(540_000)];
        let normalised = normalise(&shares).unwrap();
        assert_eq!(normalised.shares, shares);
        assert_eq!(normalised.rest.numerator(), 0);
    }

    #[test]
    fn a_sum_above_one_is_divided_by_itself() {
        let normalised = normalise(&[Share::WHOLE, Share::WHOLE, Share::WHOLE]).unwrap();
        assert_eq!(normalised.shares, vec![Share::new(1, 3).unwrap(); 3]);
        assert_eq!(normalised.rest, Share::NONE);
    }

    #[test]
    fn a_weight_is_exact_over_mixed_denominators() {
        // One third of an hour three times, in three segments of different denominators, is one hour.
        let mut weight = Weight::default();
        let hour = 3_600_000_000_000;
        weight.add(hour, Share::new(1, 3).unwrap()).unwrap();
        weight.add(hour, Share::new(2, 7).unwrap()).unwrap();
        weight.add(hour, Share::new(8, 21).unwrap()).unwrap();
        assert_eq!(weight.floor().unwrap(), Quantity::DEVICE_HOUR);
    }

    #[test]
    fn a_product_down_a_path_is_reduced() {
        let half = Share::new(2, 4).unwrap();
        assert_eq!(half.of(Share::new(2, 3).unwrap()).unwrap(), Share::new(1, 3).unwrap());
    }
}

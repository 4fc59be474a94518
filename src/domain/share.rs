//! Shares of a device as exact fractions, and how they are normalised and weighed.
//!
//! Always true here: nothing is rounded before [`Weight::floor`]. Fractions of 128 bits carry what fleets have; one
//! that does not fit (hundreds of holders, each of another number of replicas) is rounded down to 10⁻¹⁸, so that no
//! layout makes an hour that cannot be divided, or takes forever. What that loses is `rounding`.

use std::cmp::Ordering;
use std::fmt;

use num_bigint::BigInt;
use num_integer::Integer;

use super::units::{NANOS_PER_MICRO_HOUR, OutOfRange, Quantity};

/// Millionths in one whole.
pub const PPM: i128 = 1_000_000;
/// To this a measured share is rounded down before anything is computed with it (DESIGN §3, rule 3).
pub const MEASURED: i128 = 1_000_000_000;

/// To this a fraction that does not fit 128 bits is rounded down.
const FINEST: i128 = 1_000_000_000_000_000_000;

/// The largest denominator that is weighed exactly. The amounts of an hour are below 10¹³, and shares are at most one,
/// so that their sums over it stay below 2¹²⁷.
const WEIGHED_MAX: i128 = 10_000_000_000_000_000_000_000_000;

/// A share of a slice's parent: an exact, non-negative fraction. Raw numerator and denominator are kept.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    numerator: i128,
    denominator: i128,
}

impl fmt::Display for Share {
    /// In lowest terms, such as `15/112`; `1/1` is the whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common = self.numerator.gcd(&self.denominator).max(1);
        write!(f, "{}/{}", self.numerator.div_euclid(common), self.denominator.div_euclid(common))
    }
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

    /// One of `count` equal parts; none of none.
    #[must_use]
    pub const fn one_of(count: u32) -> Self {
        if count == 0 { Self::NONE } else { Self { numerator: 1, denominator: count as i128 } }
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

    /// `part` of `whole`, at most all of it; none of nothing.
    #[must_use]
    pub fn part_of(part: u64, whole: u64) -> Self {
        if whole == 0 { Self::NONE } else { Self::small(part.min(whole).into(), whole.into()) }
    }

    /// `part` of `whole` as it was measured: rounded down to 10⁻⁹, at most all of it; none of nothing.
    #[must_use]
    pub fn measured(part: i128, whole: i128) -> Self {
        if part <= 0 || whole <= 0 {
            return Self::NONE;
        }
        let scaled = match part.checked_mul(MEASURED) {
            Some(scaled) => scaled.div_euclid(whole),
            // So much more than can be held that a coarser division gives the same: all of it, or nearly.
            None => part.div_euclid(whole.div_euclid(MEASURED).max(1)),
        };
        Self::small(scaled.min(MEASURED), MEASURED)
    }

    /// Numerator and denominator as given.
    #[must_use]
    pub const fn raw(&self) -> (i128, i128) {
        (self.numerator, self.denominator)
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.numerator == 0
    }

    const fn small(numerator: i128, denominator: i128) -> Self {
        Self { numerator, denominator }
    }

    fn big(&self) -> (BigInt, BigInt) {
        (BigInt::from(self.numerator), BigInt::from(self.denominator))
    }

    /// A fraction in lowest terms; one that does not fit is rounded down.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "big integers do not overflow; the divisor is positive"
    )]
    fn of_big(numerator: &BigInt, denominator: &BigInt) -> Self {
        let common = numerator.gcd(denominator).max(BigInt::from(1));
        let small = (i128::try_from(numerator / &common), i128::try_from(denominator / &common));
        if let (Ok(numerator), Ok(denominator)) = small {
            return Self { numerator, denominator };
        }
        let scaled = (numerator * FINEST).div_floor(denominator);
        Self { numerator: i128::try_from(scaled).unwrap_or(i128::MAX), denominator: FINEST }
    }

    /// The share in units of 10⁻¹⁸, rounded down.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "big integers do not overflow; the divisor is positive"
    )]
    fn of_big_floored(share: &Self) -> Self {
        let (numerator, denominator) = share.big();
        let scaled = (numerator * FINEST).div_floor(&denominator);
        Self { numerator: i128::try_from(scaled).unwrap_or(FINEST), denominator: FINEST }
    }

    fn of_small(numerator: Option<i128>, denominator: Option<i128>) -> Option<Self> {
        let (numerator, denominator) = (numerator?, denominator?);
        let common = numerator.gcd(&denominator).max(1);
        Some(Self::small(numerator.div_euclid(common), denominator.div_euclid(common)))
    }

    /// This share of that share: the product down a path.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "big integers do not overflow")]
    pub fn of(&self, parent: &Self) -> Self {
        let ((a, b), (c, d)) = (self.raw(), parent.raw());
        // The common cases cost nothing and keep the raw fraction.
        if c == d {
            return *self;
        }
        if a == b {
            return *parent;
        }
        if let Some(product) = Self::of_small(a.checked_mul(c), b.checked_mul(d)) {
            return product;
        }
        let ((a, b), (c, d)) = (self.big(), parent.big());
        Self::of_big(&(a * c), &(b * d))
    }

    /// The sum.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "big integers do not overflow")]
    pub fn plus(&self, other: &Self) -> Self {
        let ((a, b), (c, d)) = (self.raw(), other.raw());
        if b == d
            && let Some(sum) = a.checked_add(c)
        {
            return Self::small(sum, b);
        }
        let sum = || a.checked_mul(d)?.checked_add(c.checked_mul(b)?);
        if let Some(sum) = Self::of_small(sum(), b.checked_mul(d)) {
            return sum;
        }
        let ((a, b), (c, d)) = (self.big(), other.big());
        Self::of_big(&(a * &d + c * &b), &(b * d))
    }

    /// What is left of this when `other` is taken away; nothing where that is more.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "big integers do not overflow")]
    pub fn minus(&self, other: &Self) -> Self {
        let ((a, b), (c, d)) = (self.raw(), other.raw());
        if b == d {
            return Self::small(a.saturating_sub(c).max(0), b);
        }
        let left = || Some(a.checked_mul(d)?.checked_sub(c.checked_mul(b)?)?.max(0));
        if let Some(left) = Self::of_small(left(), b.checked_mul(d)) {
            return left;
        }
        let ((a, b), (c, d)) = (self.big(), other.big());
        Self::of_big(&(a * &d - c * &b).max(BigInt::from(0)), &(b * d))
    }

    /// This share in units of `whole`; nothing of nothing.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "big integers do not overflow")]
    pub fn over(&self, whole: &Self) -> Self {
        if whole.is_none() {
            return Self::NONE;
        }
        let ((a, b), (c, d)) = (self.raw(), whole.raw());
        if let Some(quotient) = Self::of_small(a.checked_mul(d), b.checked_mul(c)) {
            return quotient;
        }
        let ((a, b), (c, d)) = (self.big(), whole.big());
        Self::of_big(&(a * d), &(b * c))
    }

    /// The smaller of both.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        if self <= other { self } else { other }
    }

    /// The larger of both.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        if self >= other { self } else { other }
    }

    /// The sum of many.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::NONE, |sum, each| sum.plus(each))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    /// By value: one half is two quarters.
    #[expect(clippy::arithmetic_side_effects, reason = "big integers do not overflow")]
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, b), (c, d)) = (self.raw(), other.raw());
        if b == d {
            return a.cmp(&c);
        }
        if let (Some(left), Some(right)) = (a.checked_mul(d), c.checked_mul(b)) {
            return left.cmp(&right);
        }
        let ((a, b), (c, d)) = (self.big(), other.big());
        (a * d).cmp(&(c * b))
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
#[must_use]
pub fn normalise(shares: &[Share]) -> Normalised {
    if let Some(normalised) = normalise_small(shares) {
        return normalised;
    }
    let sum = Share::sum(shares);
    if sum <= Share::WHOLE {
        return Normalised { shares: shares.to_vec(), rest: Share::WHOLE.minus(&sum) };
    }
    Normalised { shares: shares.iter().map(|share| share.over(&sum)).collect(), rest: Share::NONE }
}

/// The same over one common denominator, where everything fits.
fn normalise_small(shares: &[Share]) -> Option<Normalised> {
    let mut common = 1_i128;
    for share in shares {
        let (_, denominator) = share.raw();
        if denominator != common {
            let shared = common.gcd(&denominator).max(1);
            common = common.checked_mul(denominator.div_euclid(shared))?;
        }
    }
    let numerator = |share: &Share| {
        let (numerator, denominator) = share.raw();
        numerator.checked_mul(common.div_euclid(denominator))
    };
    let mut sum = 0_i128;
    for share in shares {
        sum = sum.checked_add(numerator(share)?)?;
    }
    if sum <= common {
        let rest = Share::small(common.saturating_sub(sum), common);
        return Some(Normalised { shares: shares.to_vec(), rest });
    }
    let divided = shares.iter().map(|share| Some(Share::small(numerator(share)?, sum)));
    Some(Normalised { shares: divided.collect::<Option<_>>()?, rest: Share::NONE })
}

/// The exact weight of a leaf within one hour: Σ amount × share, kept apart by denominator.
///
/// **Invariant**: exact until it is floored, once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weight {
    /// Denominator and sum. Most weights have one denominator, which costs no memory of its own.
    first: Option<(i128, i128)>,
    more: Vec<(i128, i128)>,
}

impl Weight {
    /// Adds `amount` (nanoseconds, millijoules) at `share`.
    pub fn add(&mut self, amount: i64, share: &Share) {
        if amount == 0 || share.is_none() {
            return;
        }
        let share = if share.denominator > WEIGHED_MAX { Share::of_big_floored(share) } else { *share };
        let term = i128::from(amount).saturating_mul(share.numerator);
        let Some(first) = &mut self.first else {
            self.first = Some((share.denominator, term));
            return;
        };
        match std::iter::once(first).chain(&mut self.more).find(|(each, _)| *each == share.denominator) {
            Some((_, sum)) => *sum = sum.saturating_add(term),
            None => self.more.push((share.denominator, term)),
        }
    }

    /// Whether nothing was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The weight of nanoseconds in whole micro-GPU-hours, rounded down once.
    ///
    /// # Errors
    /// [`OutOfRange`] when the quantity does not fit.
    pub fn floor(&self) -> Result<Quantity, OutOfRange> {
        self.floor_in(NANOS_PER_MICRO_HOUR).map(Quantity::from_micro)
    }

    /// The weight in whole units of `unit`, rounded down once.
    ///
    /// # Errors
    /// [`OutOfRange`] when the number does not fit.
    pub fn floor_in(&self, unit: i64) -> Result<i64, OutOfRange> {
        let unit = i128::from(unit);
        let whole = match (self.first, self.more.as_slice()) {
            (None, _) => Some(0),
            (Some(only), []) => floor_small(&[only], unit).or_else(|| floor_big(&[only], unit)),
            (Some(first), more) => {
                let terms = [&[first], more].concat();
                floor_small(&terms, unit).or_else(|| floor_big(&terms, unit))
            }
        };
        whole.and_then(|whole| i64::try_from(whole).ok()).ok_or(OutOfRange::of("the weight of a leaf"))
    }
}

/// ⌊Σ sumₖ ÷ (denominatorₖ × unit)⌋ for differing denominators: over their product.
#[expect(clippy::arithmetic_side_effects, reason = "big integers neither overflow nor divide by zero here")]
fn floor_big(terms: &[(i128, i128)], unit: i128) -> Option<i128> {
    // Two and two, so that numbers grow evenly and few of them are large.
    let mut all: Vec<(BigInt, BigInt)> =
        terms.iter().map(|(denominator, sum)| (BigInt::from(*sum), BigInt::from(*denominator))).collect();
    while all.len() > 1 {
        all = all
            .chunks(2)
            .map(|pair| match pair {
                [(a, b), (c, d)] => (a * d + c * b, b * d),
                one => one.first().cloned().unwrap_or_default(),
            })
            .collect();
    }
    let (numerator, denominator) = all.pop()?;
    i128::try_from(numerator.div_floor(&(denominator * unit))).ok()
}

/// The same over one common denominator, where everything fits.
fn floor_small(terms: &[(i128, i128)], unit: i128) -> Option<i128> {
    if let [(denominator, sum)] = terms {
        return Some(sum.div_euclid(denominator.checked_mul(unit)?));
    }
    let mut common = 1_i128;
    for (denominator, _) in terms {
        let shared = common.gcd(denominator).max(1);
        common = common.checked_mul(denominator.div_euclid(shared))?;
    }
    let mut total = 0_i128;
    for (denominator, sum) in terms {
        total = total.checked_add(sum.checked_mul(common.div_euclid(*denominator))?)?;
    }
    Some(total.div_euclid(common.checked_mul(unit)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_up_to_one_is_left_alone() {
        let shares = [Share::from_ppm(460_000), Share::from_ppm(540_000)];
        let normalised = normalise(&shares);
        assert_eq!(normalised.shares, shares);
        assert!(normalised.rest.is_none());
    }

    #[test]
    fn a_sum_above_one_is_divided_by_itself() {
        let normalised = normalise(&[Share::WHOLE, Share::WHOLE, Share::WHOLE]);
        assert_eq!(normalised.shares, vec![Share::new(1, 3).unwrap(); 3]);
        assert_eq!(normalised.rest, Share::NONE);
    }

    #[test]
    fn a_weight_is_exact_over_mixed_denominators() {
        // One third of an hour three times, in three segments of different denominators, is one hour.
        let mut weight = Weight::default();
        let hour = 3_600_000_000_000;
        weight.add(hour, &Share::new(1, 3).unwrap());
        weight.add(hour, &Share::new(2, 7).unwrap());
        weight.add(hour, &Share::new(8, 21).unwrap());
        assert_eq!(weight.floor().unwrap(), Quantity::DEVICE_HOUR);
    }

    #[test]
    fn a_product_down_a_path_is_reduced() {
        let half = Share::new(2, 4).unwrap();
        assert_eq!(half.of(&Share::new(2, 3).unwrap()), Share::new(1, 3).unwrap());
    }

    #[test]
    fn what_does_not_fit_128_bits_is_rounded_down_to_what_does() {
        // Primes near 10¹², so that their products leave 128 bits when a fourth factor comes.
        let primes = [999_999_999_989_i128, 999_999_999_961, 999_999_999_937, 999_999_999_899];
        let shares: Vec<Share> = primes.iter().map(|prime| Share::new(prime - 1, *prime).unwrap()).collect();
        let normalised = normalise(&shares);
        let lost = Share::WHOLE.minus(&Share::sum(&normalised.shares));
        assert!(lost <= Share::new(8, FINEST).unwrap(), "{lost:?}");
        let mut weight = Weight::default();
        normalised.shares.iter().for_each(|share| weight.add(3_600_000_000_000, share));
        assert!((999_999..=1_000_000).contains(&weight.floor().unwrap().micro()));
        let path = shares.iter().fold(Share::WHOLE, |path, share| share.of(&path));
        assert!(path < Share::WHOLE && !path.is_none());
        assert_eq!(path.over(&path), Share::WHOLE);
    }

    #[test]
    fn a_weight_of_many_large_denominators_is_exact() {
        let mut weight = Weight::default();
        // 1/p of an hour and the rest of it, for primes whose product is far above 128 bits.
        for prime in [999_999_999_989_i128, 999_999_999_961, 999_999_999_937, 999_999_999_899] {
            weight.add(3_600_000_000, &Share::new(1, prime).unwrap());
            weight.add(3_600_000_000, &Share::new(prime - 1, prime).unwrap());
        }
        assert_eq!(weight.floor().unwrap().micro(), 4_000);
    }

    #[test]
    fn a_measured_share_is_rounded_down_to_a_billionth_and_never_above_all() {
        assert_eq!(Share::measured(1, 3).raw(), (333_333_333, MEASURED));
        assert_eq!(Share::measured(7, 3), Share::WHOLE);
        assert_eq!(Share::measured(-1, 3), Share::NONE);
        assert_eq!(Share::measured(1, 0), Share::NONE);
        assert_eq!(Share::measured(i128::MAX, i128::MAX), Share::WHOLE);
    }
}

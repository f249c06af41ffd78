//! Arithmetic on rational numbers that costs what the budget is charged.
//!
//! What is dear about a fraction is to reduce it: a greatest common divisor of two numbers of `n` words takes about `n^2`
//! steps of subtracting and shifting, which `num_rational` does for whole numbers too. Here whole numbers are not reduced
//! at all, a small denominator costs a division, and everything else is charged before it is done.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::budget::{Budget, Stop};

pub(super) fn bits(value: &BigRational) -> u64 {
    value.numer().bits() + value.denom().bits()
}

/// The greatest common divisor of two numbers, at least one of which is not 0.
pub(super) fn gcd(left: &BigInt, right: &BigInt, budget: &mut Budget) -> Result<BigInt, Stop> {
    let (mut large, mut small) = (left.abs(), right.abs());
    if large < small {
        std::mem::swap(&mut large, &mut small);
    }
    if small.is_one() || small.is_zero() {
        return Ok(if small.is_zero() { large } else { small });
    }
    let words = |value: &BigInt| 1 + value.bits() / 64;
    // One division brings both to the size of the smaller one.
    budget.spend(words(&large) * words(&small) / 64 + 1)?;
    large %= &small;
    if let (Some(large), Some(small)) = (large.to_u64(), small.to_u64()) {
        return Ok(large.gcd(&small).into());
    }
    // About 90 rounds of subtracting and shifting for each word, each round with an effort of its own.
    budget.spend(words(&small) * (words(&small) + 16) / 2)?;
    Ok(large.gcd(&small))
}

/// Two numbers without their common divisor; the second one is not 0.
fn apart(left: &BigInt, right: &BigInt, budget: &mut Budget) -> Result<(BigInt, BigInt), Stop> {
    let common = gcd(left, right, budget)?;
    if common.is_one() {
        return Ok((left.clone(), right.clone()));
    }
    budget.effort(left.bits().max(right.bits()))?;
    Ok((left / &common, right / &common))
}

/// A fraction in lowest terms, its denominator above 0.
pub(super) fn reduced(top: BigInt, bottom: BigInt, budget: &mut Budget) -> Result<BigRational, Stop> {
    if bottom.is_zero() {
        return Err(Stop::Undefined("a division by zero"));
    }
    if top.is_zero() {
        return Ok(BigRational::zero());
    }
    let (top, bottom) = if bottom.is_negative() { (-top, -bottom) } else { (top, bottom) };
    if bottom.is_one() {
        return Ok(BigRational::from_integer(top));
    }
    let (top, bottom) = apart(&top, &bottom, budget)?;
    Ok(BigRational::new_raw(top, bottom))
}

/// Common divisors are taken out across before the product is made (Knuth, TAOCP 2, 4.5.1), so it needs none after.
pub(super) fn times(left: &BigRational, right: &BigRational, budget: &mut Budget) -> Result<BigRational, Stop> {
    if left.is_zero() || right.is_zero() {
        return Ok(BigRational::zero());
    }
    budget.effort(bits(left) + bits(right))?;
    if left.is_integer() && right.is_integer() {
        return Ok(BigRational::from_integer(left.numer() * right.numer()));
    }
    let (a, d) = apart(left.numer(), right.denom(), budget)?;
    let (c, b) = apart(right.numer(), left.denom(), budget)?;
    Ok(BigRational::new_raw(a * c, b * d))
}

pub(super) fn over(left: &BigRational, right: &BigRational, budget: &mut Budget) -> Result<BigRational, Stop> {
    if right.is_zero() {
        return Err(Stop::Undefined("a division by zero"));
    }
    // Its parts share nothing, so neither do those of its inverse.
    let (top, bottom) = (right.denom().clone(), right.numer().clone());
    let inverse = if bottom.is_negative() { (-top, -bottom) } else { (top, bottom) };
    times(left, &BigRational::new_raw(inverse.0, inverse.1), budget)
}

/// Of the common divisor of a sum and its denominator only what the two denominators share can be left (the same place).
pub(super) fn plus(left: &BigRational, right: &BigRational, budget: &mut Budget) -> Result<BigRational, Stop> {
    budget.effort(bits(left).max(bits(right)))?;
    if left.denom() == right.denom() {
        return reduced(left.numer() + right.numer(), left.denom().clone(), budget);
    }
    let common = gcd(left.denom(), right.denom(), budget)?;
    budget.effort(bits(left) + bits(right))?;
    if common.is_one() {
        let top = left.numer() * right.denom() + right.numer() * left.denom();
        return Ok(BigRational::new_raw(top, left.denom() * right.denom()));
    }
    let (own, other) = (left.denom() / &common, right.denom() / &common);
    let top = left.numer() * &other + right.numer() * &own;
    if top.is_zero() {
        return Ok(BigRational::zero());
    }
    let rest = gcd(&top, &common, budget)?;
    Ok(BigRational::new_raw(top / &rest, own * (right.denom() / &rest)))
}

#[cfg(test)]
mod tests {
    use super::super::budget::Limits;
    use super::*;

    fn ratio(top: i64, bottom: i64) -> BigRational {
        BigRational::new(top.into(), bottom.into())
    }

    #[test]
    fn results_are_those_of_num_rational() {
        let mut budget = Budget::new(Limits { steps: u64::MAX, ..Limits::default() });
        let values: Vec<BigRational> =
            (-12..12).flat_map(|top| [1, 2, 3, 10, 64, 97].map(|bottom| ratio(top * 35, bottom))).collect();
        for left in &values {
            for right in &values {
                assert_eq!(times(left, right, &mut budget).unwrap(), left * right);
                assert_eq!(plus(left, right, &mut budget).unwrap(), left + right);
                match over(left, right, &mut budget) {
                    Ok(value) => assert_eq!(value, left / right),
                    Err(stop) => assert!(right.is_zero(), "{stop}"),
                }
            }
        }
    }

    #[test]
    fn what_takes_long_is_charged_before_it_is_done() {
        let (large, other) = (BigInt::from(7).pow(10_000), BigInt::from(3).pow(17_000));
        let mut budget = Budget::new(Limits::default());
        assert!(gcd(&large, &other, &mut budget).is_ok());
        assert!(budget.spent() > 80_000, "{}", budget.spent());
        let more = (0..9).filter(|_| gcd(&large, &other, &mut budget).is_ok()).count();
        assert!((1..9).contains(&more), "{more} more");
        // Whole numbers need none.
        let mut budget = Budget::new(Limits::default());
        times(&BigRational::from_integer(large.clone()), &ratio(7, 1), &mut budget).unwrap();
        assert!(budget.spent() < 5000, "{}", budget.spent());
    }
}

//! Sums of at most two roots of numbers, exactly, where the normal form leaves a number unfactored.
//!
//! Invariant: what is decided is decided by whole numbers alone, without a tolerance.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{Signed, Zero};

use super::budget::{Budget, Stop};
use super::poly::{Atom, Exponent, Poly};

/// Whether one or two roots of numbers (`q` times a product of roots, or a number) cancel out, exactly: they do where
/// their signs differ and a common power of both is the same rational. `None` where the sum is another.
pub(super) fn vanish(sum: &Poly, budget: &mut Budget) -> Result<Option<bool>, Stop> {
    if sum.terms.len() > 2 {
        return Ok(None);
    }
    let mut power = 1_i64;
    for (atom, exponent) in sum.terms.keys().flatten() {
        if !matches!(atom, Atom::Prime(_) | Atom::Whole(_)) || *exponent < Exponent::zero() {
            return Ok(None);
        }
        power = power.lcm(exponent.denom());
        if power > 60 {
            return Ok(None);
        }
    }
    let terms: Vec<_> = sum.terms.iter().collect();
    let [(first, first_value), (second, second_value)] = terms.as_slice() else { return Ok(Some(sum.is_zero())) };
    if first_value.is_positive() == second_value.is_positive() {
        return Ok(Some(false));
    }
    let (Some(first), Some(second)) =
        (to_power(first, first_value, power, budget)?, to_power(second, second_value, power, budget)?)
    else {
        return Ok(None);
    };
    Ok(Some(first == second))
}

/// The size of a product of roots to a power that makes it rational; `None` where that is too large to write out.
fn to_power(
    mono: &[(Atom, Exponent)],
    coefficient: &BigRational,
    power: i64,
    budget: &mut Budget,
) -> Result<Option<BigRational>, Stop> {
    let mut factors = Vec::with_capacity(mono.len());
    let mut size = (coefficient.numer().bits() + coefficient.denom().bits()).saturating_mul(power.unsigned_abs());
    for (atom, exponent) in mono {
        let base = match atom {
            Atom::Prime(prime) => BigInt::from(*prime),
            Atom::Whole(value) => value.clone(),
            _ => return Ok(None),
        };
        let Some(Ok(times)) = exponent.numer().checked_mul(power / exponent.denom()).map(u32::try_from) else {
            return Ok(None);
        };
        size = size.saturating_add(base.bits().saturating_mul(u64::from(times)));
        factors.push((base, times));
    }
    if size > budget.limits.bits {
        return Ok(None);
    }
    budget.number(size)?;
    let mut value = coefficient.abs().pow(power as i32);
    for (base, times) in factors {
        value *= base.pow(times);
    }
    Ok(Some(value))
}

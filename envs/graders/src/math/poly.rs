//! Sums of products with exact coefficients: the normal form.
//!
//! A term is a rational coefficient times powers of atoms. Powers of primes stay within `0 <= e < 1`, what is whole goes
//! into the coefficient; since distinct products of such radicals are linearly independent over the rationals, a sum of
//! radicals, of `i`, `pi`, `e` and variables is zero exactly when it has no terms.

use std::collections::BTreeMap;
use std::sync::Arc;

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_rational::{BigRational, Ratio};
use num_traits::{CheckedAdd, CheckedMul, One, Signed, ToPrimitive, Zero};

use super::ast::Function;
use super::budget::{Budget, Stop};
use super::expr::Expr;
use super::rational::{self, bits};
use super::shared::{Shared, atom_weight};

/// The exponent of an atom.
pub(super) type Exponent = Ratio<i64>;

/// What cannot be taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Atom {
    Prime(u64),
    /// A whole number that was not factored.
    Whole(BigInt),
    Imaginary,
    Pi,
    Euler,
    Degree,
    Percent,
    Variable(Arc<str>),
    /// A base to a power that is no number; the numbers of the power are the atom's exponent.
    Power(Shared<Expr>, Mono),
    /// A sum under a root, or to a power that is too high to expand.
    Sum(Shared<Poly>),
    Call(Function, Shared<[Expr]>),
}

/// Atoms with exponents other than 0, in order.
pub(super) type Mono = Vec<(Atom, Exponent)>;

/// Highest power of a sum that is expanded.
pub(super) const EXPANDED: i64 = 32;

/// A sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Poly {
    pub(super) terms: BTreeMap<Mono, BigRational>,
}

/// A product in normal form; `factors` are sums that a root let go of.
pub(super) struct Product {
    pub(super) mono: Mono,
    pub(super) coefficient: BigRational,
    pub(super) factors: Vec<(Shared<Poly>, u32)>,
}

/// Exponents so large that arithmetic on them could overflow are refused.
fn bounded(exponent: Exponent) -> Result<Exponent, Stop> {
    let fits = |value: &i64| value.unsigned_abs() < 1 << 40;
    if fits(exponent.numer()) && fits(exponent.denom()) {
        Ok(exponent)
    } else {
        Err(Stop::Budget("size of an exponent"))
    }
}

pub(super) fn exponent_sum(left: Exponent, right: Exponent) -> Result<Exponent, Stop> {
    left.checked_add(&right).ok_or(Stop::Budget("size of an exponent")).and_then(bounded)
}

pub(super) fn exponent_product(left: Exponent, right: Exponent) -> Result<Exponent, Stop> {
    left.checked_mul(&right).ok_or(Stop::Budget("size of an exponent")).and_then(bounded)
}

/// A rational number as an exponent.
pub(super) fn exponent_of(value: &BigRational) -> Result<Exponent, Stop> {
    match (value.numer().to_i64(), value.denom().to_i64()) {
        (Some(top), Some(bottom)) => bounded(Exponent::new(top, bottom)),
        _ => Err(Stop::Budget("size of an exponent")),
    }
}

/// Powers of atoms, in any order and repeated, as a product in normal form.
pub(super) fn product(
    mut raw: Vec<(Atom, Exponent)>,
    mut coefficient: BigRational,
    budget: &mut Budget,
) -> Result<Product, Stop> {
    // Sorting compares atoms, and they may be large.
    let weight: u64 = raw.iter().map(|(atom, _)| atom_weight(atom)).sum();
    budget.spend(4 + 2 * raw.len() as u64 + weight / 4)?;
    raw.sort_by(|left, right| left.0.cmp(&right.0));
    let mut mono: Mono = Vec::with_capacity(raw.len());
    for (atom, exponent) in raw {
        match mono.last_mut() {
            Some((last, sum)) if *last == atom => *sum = exponent_sum(*sum, exponent)?,
            _ => mono.push((atom, exponent)),
        }
    }
    let mut factors = Vec::new();
    for (atom, exponent) in &mut mono {
        let whole = exponent.floor().to_integer();
        match atom {
            Atom::Prime(_) | Atom::Whole(_) if whole != 0 => {
                let base = match atom {
                    Atom::Prime(prime) => BigInt::from(*prime),
                    Atom::Whole(value) => value.clone(),
                    _ => BigInt::one(),
                };
                let size = whole.unsigned_abs().saturating_mul(base.bits());
                if size <= budget.limits.bits / 2 {
                    budget.number(size + bits(&coefficient))?;
                    let power = BigRational::from_integer(base.pow(whole.unsigned_abs() as u32));
                    coefficient = if whole > 0 {
                        rational::times(&coefficient, &power, budget)?
                    } else {
                        rational::over(&coefficient, &power, budget)?
                    };
                    *exponent -= whole;
                } else {
                    // Too large to write out: every factor of the coefficient joins the power.
                    loop {
                        budget.number(bits(&coefficient))?;
                        if coefficient.is_zero() {
                            break;
                        }
                        let (quotient, rest) = coefficient.numer().div_rem(&base);
                        if rest.is_zero() {
                            coefficient = BigRational::new_raw(quotient, coefficient.denom().clone());
                            *exponent = exponent_sum(*exponent, Exponent::one())?;
                            continue;
                        }
                        let (quotient, rest) = coefficient.denom().div_rem(&base);
                        if rest.is_zero() {
                            coefficient = BigRational::new_raw(coefficient.numer().clone(), quotient);
                            *exponent = exponent_sum(*exponent, -Exponent::one())?;
                            continue;
                        }
                        break;
                    }
                }
            }
            Atom::Imaginary => {
                // i^4 = 1, i^2 = -1
                let turns = (*exponent / 4).floor();
                *exponent -= turns * 4;
                if *exponent >= Exponent::from_integer(2) {
                    *exponent -= 2;
                    coefficient = -coefficient;
                }
            }
            Atom::Sum(sum) if (1..=EXPANDED).contains(&whole) => {
                factors.push((sum.clone(), whole as u32));
                *exponent -= whole;
            }
            _ => {}
        }
    }
    mono.retain(|(_, exponent)| !exponent.is_zero());
    Ok(Product { mono, coefficient, factors })
}

impl Poly {
    pub(super) fn constant(value: BigRational) -> Self {
        let mut poly = Self::default();
        if !value.is_zero() {
            poly.terms.insert(Mono::new(), value);
        }
        poly
    }

    pub(super) fn one() -> Self {
        Self::constant(BigRational::one())
    }

    pub(super) fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    pub(super) fn is_one(&self) -> bool {
        self.as_constant().is_some_and(One::is_one)
    }

    /// The only term.
    pub(super) fn single(&self) -> Option<(&Mono, &BigRational)> {
        if self.terms.len() == 1 { self.terms.iter().next() } else { None }
    }

    /// The rational number that it is, where it is one and not 0.
    pub(super) fn as_constant(&self) -> Option<&BigRational> {
        self.single().filter(|(mono, _)| mono.is_empty()).map(|(_, value)| value)
    }

    pub(super) fn add_term(&mut self, mono: Mono, value: BigRational, budget: &mut Budget) -> Result<(), Stop> {
        if value.is_zero() {
            return Ok(());
        }
        budget.number(bits(&value))?;
        match self.terms.entry(mono) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let sum = rational::plus(entry.get(), &value, budget)?;
                if sum.is_zero() {
                    entry.remove();
                } else {
                    entry.insert(sum);
                }
            }
        }
        if self.terms.len() > budget.limits.terms { Err(Stop::Budget("terms")) } else { Ok(()) }
    }

    pub(super) fn add(&mut self, other: &Self, budget: &mut Budget) -> Result<(), Stop> {
        for (mono, value) in &other.terms {
            self.add_term(mono.clone(), value.clone(), budget)?;
        }
        Ok(())
    }

    pub(super) fn negated(&self) -> Self {
        Self { terms: self.terms.iter().map(|(mono, value)| (mono.clone(), -value)).collect() }
    }

    pub(super) fn scaled(&self, factor: &BigRational, budget: &mut Budget) -> Result<Self, Stop> {
        let mut scaled = Self::default();
        for (mono, value) in &self.terms {
            scaled.add_term(mono.clone(), rational::times(value, factor, budget)?, budget)?;
        }
        Ok(scaled)
    }

    /// Adds a product, multiplied out.
    pub(super) fn add_product(&mut self, product: Product, budget: &mut Budget) -> Result<(), Stop> {
        if product.factors.is_empty() {
            return self.add_term(product.mono, product.coefficient, budget);
        }
        let mut sum = Self::default();
        sum.add_term(product.mono, product.coefficient, budget)?;
        for (factor, power) in product.factors {
            for _ in 0..power {
                sum = sum.times(&factor, budget)?;
            }
        }
        self.add(&sum, budget)
    }

    pub(super) fn times(&self, other: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        if self.is_one() {
            return Ok(other.clone());
        }
        if other.is_one() {
            return Ok(self.clone());
        }
        let mut result = Self::default();
        for (left, left_value) in &self.terms {
            for (right, right_value) in &other.terms {
                if bits(left_value) + bits(right_value) > budget.limits.bits {
                    return Err(Stop::Budget("bits of a number"));
                }
                let value = rational::times(left_value, right_value, budget)?;
                if left.is_empty() || right.is_empty() {
                    let mono = if left.is_empty() { right.clone() } else { left.clone() };
                    result.add_term(mono, value, budget)?;
                    continue;
                }
                let raw = left.iter().chain(right).cloned().collect();
                let product = product(raw, value, budget)?;
                result.add_product(product, budget)?;
            }
        }
        Ok(result)
    }

    pub(super) fn power(&self, exponent: u32, budget: &mut Budget) -> Result<Self, Stop> {
        let mut result = Self::one();
        for _ in 0..exponent {
            result = result.times(self, budget)?;
        }
        Ok(result)
    }

    /// The sum's content: the largest rational that divides every coefficient, with the sign of the first term.
    pub(super) fn content(&self, budget: &mut Budget) -> Result<BigRational, Stop> {
        let mut top = BigInt::zero();
        let mut bottom = BigInt::one();
        for value in self.terms.values() {
            top = rational::gcd(&top, value.numer(), budget)?;
            let common = rational::gcd(&bottom, value.denom(), budget)?;
            budget.number(bottom.bits() + value.denom().bits())?;
            bottom *= value.denom() / common;
        }
        // No prime divides both: it would divide a coefficient's two parts.
        let content = BigRational::new_raw(if top.is_zero() { BigInt::one() } else { top }, bottom);
        Ok(if self.is_negative() { -content } else { content })
    }

    /// Whether its content is below 0.
    pub(super) fn is_negative(&self) -> bool {
        self.terms.values().next_back().is_some_and(Signed::is_negative)
    }

    /// Whether any atom, at any depth, satisfies a test.
    pub(super) fn any(&self, test: &(impl Fn(&Atom) -> bool + ?Sized)) -> bool {
        self.terms.keys().flatten().any(|(atom, _)| {
            test(atom)
                || match atom {
                    Atom::Power(base, mono) => base.any(test) || mono.iter().any(|(atom, _)| atom_any(atom, test)),
                    Atom::Sum(sum) => sum.any(test),
                    Atom::Call(_, arguments) => arguments.iter().any(|argument| argument.any(test)),
                    _ => false,
                }
        })
    }
}

fn atom_any(atom: &Atom, test: &(impl Fn(&Atom) -> bool + ?Sized)) -> bool {
    let mut poly = Poly::default();
    poly.terms.insert(vec![(atom.clone(), Exponent::one())], BigRational::one());
    poly.any(test)
}

/// A positive whole number as primes with their powers; what trial division leaves over is one atom, or the root of
/// one where it is a perfect power.
pub(super) fn factored(value: &BigInt, budget: &mut Budget) -> Result<Vec<(Atom, i64)>, Stop> {
    debug_assert_eq!(value.sign(), Sign::Plus);
    let mut factors = Vec::new();
    let mut rest = value.clone();
    let words = 1 + rest.bits() / 64;
    let mut divisor = 2_u64;
    while divisor < 5000 {
        if let Some(small) = rest.to_u64()
            && small < divisor * divisor
        {
            break;
        }
        budget.spend(if divisor % 64 == 1 { words } else { u64::from(words > 4) * words / 4 })?;
        let mut power = 0;
        if let Some(mut small) = rest.to_u64() {
            while small % divisor == 0 {
                small /= divisor;
                power += 1;
            }
            if power > 0 {
                rest = BigInt::from(small);
            }
        } else {
            while (&rest % divisor).is_zero() {
                rest /= divisor;
                power += 1;
                budget.spend(words)?;
            }
        }
        if power > 0 {
            factors.push((Atom::Prime(divisor), power));
        }
        divisor += if divisor == 2 { 1 } else { 2 };
    }
    if rest.is_one() {
        return Ok(factors);
    }
    match rest.to_u64() {
        // No divisor below 5000 and less than its square.
        Some(prime) if prime < divisor.saturating_mul(divisor) => factors.push((Atom::Prime(prime), 1)),
        _ => {
            let longest = (rest.bits() as u32 / 12).min(64);
            for power in (2..=longest).rev() {
                budget.spend(words * words)?;
                let root = rest.nth_root(power);
                if root.pow(power) == rest {
                    factors.push((small_or_whole(root), i64::from(power)));
                    return Ok(factors);
                }
            }
            factors.push((small_or_whole(rest), 1));
        }
    }
    Ok(factors)
}

fn small_or_whole(value: BigInt) -> Atom {
    match value.to_u64() {
        Some(prime) if prime < 25_000_000 => Atom::Prime(prime),
        _ => Atom::Whole(value),
    }
}

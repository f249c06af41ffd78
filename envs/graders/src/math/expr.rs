//! Quotients of sums, and their powers.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::ast::Function;
use super::budget::{Budget, Stop};
use super::poly::{self, Atom, EXPANDED, Exponent, Mono, Poly, exponent_of, exponent_product, product};
use super::rational::{self, bits};
use super::shared::Shared;

/// A quotient. The denominator is 1 wherever it would be a single term, and has no square roots of numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expr {
    pub(super) num: Poly,
    pub(super) den: Poly,
}

impl Expr {
    pub(super) fn rational(value: BigRational) -> Self {
        Self { num: Poly::constant(value), den: Poly::one() }
    }

    pub(super) fn integer(value: i64) -> Self {
        Self::rational(BigRational::from_integer(value.into()))
    }

    pub(super) fn atom(atom: Atom) -> Self {
        let mut num = Poly::default();
        num.terms.insert(vec![(atom, Exponent::one())], BigRational::one());
        Self { num, den: Poly::one() }
    }

    pub(super) fn variable(name: &str) -> Self {
        Self::atom(Atom::Variable(name.into()))
    }

    pub(super) fn call(function: Function, arguments: Vec<Self>) -> Self {
        Self::atom(Atom::Call(function, Shared::arguments(arguments)))
    }

    pub(super) fn is_zero(&self) -> bool {
        self.num.is_zero()
    }

    /// The rational number that it is.
    pub(super) fn as_rational(&self) -> Option<BigRational> {
        if self.num.is_zero() {
            return Some(BigRational::zero());
        }
        if self.den.is_one() { self.num.as_constant().cloned() } else { None }
    }

    pub(super) fn as_integer(&self) -> Option<BigInt> {
        self.as_rational().filter(BigRational::is_integer).map(|value| value.to_integer())
    }

    pub(super) fn any(&self, test: &(impl Fn(&Atom) -> bool + ?Sized)) -> bool {
        self.num.any(test) || self.den.any(test)
    }

    pub(super) fn has_variables(&self) -> bool {
        self.any(&|atom| matches!(atom, Atom::Variable(_)))
    }

    /// The variable that it is.
    pub(super) fn as_variable(&self) -> Option<&str> {
        if !self.den.is_one() {
            return None;
        }
        match self.num.single() {
            Some((mono, value)) if value.is_one() => match mono.as_slice() {
                [(Atom::Variable(name), exponent)] if exponent.is_one() => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn neg(&self) -> Self {
        Self { num: self.num.negated(), den: self.den.clone() }
    }

    pub(super) fn add(&self, other: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        if self.den == other.den {
            let mut num = self.num.clone();
            num.add(&other.num, budget)?;
            return if self.den.is_one() {
                Ok(Self { num, den: Poly::one() })
            } else {
                Self::quotient(num, self.den.clone(), budget)
            };
        }
        let mut num = self.num.times(&other.den, budget)?;
        num.add(&other.num.times(&self.den, budget)?, budget)?;
        let den = self.den.times(&other.den, budget)?;
        Self::quotient(num, den, budget)
    }

    pub(super) fn sub(&self, other: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        self.add(&other.neg(), budget)
    }

    pub(super) fn times(&self, other: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        let num = self.num.times(&other.num, budget)?;
        if self.den.is_one() && other.den.is_one() {
            return Ok(Self { num, den: Poly::one() });
        }
        let den = self.den.times(&other.den, budget)?;
        Self::quotient(num, den, budget)
    }

    pub(super) fn over(&self, other: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        if other.is_zero() {
            return Err(Stop::Undefined("a division by zero"));
        }
        let num = self.num.times(&other.den, budget)?;
        let den = self.den.times(&other.num, budget)?;
        Self::quotient(num, den, budget)
    }

    /// A quotient in its form.
    fn quotient(mut num: Poly, mut den: Poly, budget: &mut Budget) -> Result<Self, Stop> {
        if den.is_zero() {
            return Err(Stop::Undefined("a division by zero"));
        }
        if num.is_zero() || den.is_one() {
            return Ok(Self { num, den: Poly::one() });
        }
        // Square roots of numbers, and i, leave the denominator by its conjugates.
        for _ in 0..6 {
            if den.terms.len() < 2 || den.terms.len() > 16 {
                break;
            }
            let Some(atom) = conjugated(&den) else { break };
            let conjugate = Poly {
                terms: den
                    .terms
                    .iter()
                    .map(|(mono, value)| {
                        let holds = mono.iter().any(|(other, _)| *other == atom);
                        (mono.clone(), if holds { -value } else { value.clone() })
                    })
                    .collect(),
            };
            num = num.times(&conjugate, budget)?;
            den = den.times(&conjugate, budget)?;
            if den.is_zero() {
                return Err(Stop::Undefined("a division by zero"));
            }
        }
        if let Some((mono, value)) = den.single() {
            // c m S^e goes into the numerator as 1/c m^-1 S^(1-e), and S stays below.
            let mut raw = Vec::with_capacity(mono.len());
            let mut below = Poly::one();
            for (atom, exponent) in mono {
                match atom {
                    Atom::Sum(sum) if !exponent.is_integer() => {
                        let up = exponent.ceil();
                        raw.push((atom.clone(), up - exponent));
                        let power = up.to_integer().to_u32().ok_or(Stop::Budget("size of an exponent"))?;
                        if i64::from(power) > EXPANDED {
                            return Err(Stop::Budget("size of an exponent"));
                        }
                        below = below.times(&sum.power(power, budget)?, budget)?;
                    }
                    _ => raw.push((atom.clone(), -exponent)),
                }
            }
            let inverse = product(raw, value.recip(), budget)?;
            let mut factor = Poly::default();
            factor.add_product(inverse, budget)?;
            let num = num.times(&factor, budget)?;
            return if below.is_one() { Ok(Self { num, den: below }) } else { Self::quotient(num, below, budget) };
        }
        // One form: the denominator's last coefficient is 1.
        if let Some(value) = den.terms.values().next_back().cloned()
            && !value.is_one()
        {
            num = num.scaled(&value.recip(), budget)?;
            den = den.scaled(&value.recip(), budget)?;
        }
        // A multiple of the denominator.
        if num.terms.len() == den.terms.len()
            && let Some(value) = num.terms.values().next_back().cloned()
            && num == den.scaled(&value, budget)?
        {
            return Ok(Self::rational(value));
        }
        Ok(Self { num, den })
    }

    /// The expression to a rational power.
    pub(super) fn power(&self, exponent: &BigRational, budget: &mut Budget) -> Result<Self, Stop> {
        budget.spend(4)?;
        if exponent.is_zero() {
            return Ok(Self::integer(1));
        }
        if exponent.is_one() {
            return Ok(self.clone());
        }
        if self.is_zero() {
            return if exponent.is_positive() { Ok(self.clone()) } else { Err(Stop::Undefined("a division by zero")) };
        }
        let exponent = exponent_of(exponent)?;
        let num = poly_power(&self.num, exponent, budget)?;
        if self.den.is_one() {
            return Ok(num);
        }
        let den = poly_power(&self.den, exponent, budget)?;
        num.over(&den, budget)
    }

    /// The expression to the power of another.
    pub(super) fn raised(&self, exponent: &Self, budget: &mut Budget) -> Result<Self, Stop> {
        if let Some(value) = exponent.as_rational() {
            return self.power(&value, budget);
        }
        if self.is_zero() {
            return Err(Stop::Undefined("a power of zero"));
        }
        if self.as_rational().is_some_and(|value| value.is_one()) {
            return Ok(self.clone());
        }
        let whole = |budget: &mut Budget| {
            budget.spend(4)?;
            Ok(Self::call(Function::Raise, vec![self.clone(), exponent.clone()]))
        };
        let (Some((mono, value)), true, true) = (self.num.single(), self.den.is_one(), exponent.den.is_one()) else {
            return whole(budget);
        };
        if value.is_negative() {
            return whole(budget);
        }
        let mut bases: Vec<(Atom, Exponent)> = mono.clone();
        for (number, sign) in [(value.numer(), 1), (value.denom(), -1)] {
            for (atom, power) in poly::factored(number, budget)? {
                bases.push((atom, Exponent::from_integer(power * sign)));
            }
        }
        let mut result = Self::integer(1);
        for (base, power) in bases {
            for (term, coefficient) in &exponent.num.terms {
                let total = exponent_product(power, exponent_of(coefficient)?)?;
                let factor = if term.is_empty() {
                    let mut factor = Poly::default();
                    factor.add_product(product(vec![(base.clone(), total)], BigRational::one(), budget)?, budget)?;
                    Self { num: factor, den: Poly::one() }
                } else if base == Atom::Euler && term.iter().any(|(atom, _)| *atom == Atom::Imaginary) {
                    // e^(i x) = cos x + i sin x
                    let rest: Mono = term.iter().filter(|(atom, _)| *atom != Atom::Imaginary).cloned().collect();
                    let mut angle = Poly::default();
                    angle.add_term(rest, rational::times(coefficient, &big(power), budget)?, budget)?;
                    super::functions::cis(&Self { num: angle, den: Poly::one() }, budget)?
                } else if base == Atom::Euler
                    && let [(Atom::Call(Function::Ln, argument), one)] = term.as_slice()
                    && one.is_one()
                {
                    argument[0].power(&big(total), budget)?
                } else {
                    let atom = Atom::Power(Shared::expr(Self::atom(base.clone())), term.clone());
                    let mut factor = Poly::default();
                    factor.add_product(product(vec![(atom, total)], BigRational::one(), budget)?, budget)?;
                    Self { num: factor, den: Poly::one() }
                };
                result = result.times(&factor, budget)?;
            }
        }
        Ok(result)
    }
}

/// An exponent as a rational number.
pub(super) fn big(exponent: Exponent) -> BigRational {
    BigRational::new((*exponent.numer()).into(), (*exponent.denom()).into())
}

/// A square root or i that a conjugate takes out of a denominator of numbers.
fn conjugated(den: &Poly) -> Option<Atom> {
    let half = Exponent::new(1, 2);
    let mut found = None;
    for (atom, exponent) in den.terms.keys().flatten() {
        match atom {
            Atom::Imaginary if exponent.is_one() => found = found.max(Some(atom.clone())),
            Atom::Prime(_) if *exponent == half => found = found.max(Some(atom.clone())),
            _ => return None,
        }
    }
    found
}

fn poly_power(poly: &Poly, exponent: Exponent, budget: &mut Budget) -> Result<Expr, Stop> {
    if let Some((mono, value)) = poly.single() {
        return term_power(mono, value, exponent, budget);
    }
    if exponent.is_integer() && exponent.to_integer().unsigned_abs() <= EXPANDED.unsigned_abs() {
        let whole = exponent.to_integer();
        let power = poly.power(whole.unsigned_abs() as u32, budget)?;
        return if whole > 0 {
            Ok(Expr { num: power, den: Poly::one() })
        } else {
            Expr::quotient(Poly::one(), power, budget)
        };
    }
    if exponent == Exponent::new(1, 2)
        && let Some(root) = denested(poly, budget)?
    {
        return Ok(root);
    }
    // The content leaves the root, so that proportional sums share an atom.
    let content = poly.content(budget)?;
    let content = if exponent.is_integer() || content.is_positive() { content } else { -content };
    let primitive = poly.scaled(&content.recip(), budget)?;
    let outside = term_power(&Mono::new(), &content, exponent, budget)?;
    let sum = Shared::sum(primitive);
    let whole = exponent.floor().to_integer();
    let inside = if whole < 0 && !exponent.is_integer() && whole >= -EXPANDED {
        let fraction = product(vec![(Atom::Sum(sum.clone()), exponent - whole)], BigRational::one(), budget)?;
        let mut num = Poly::default();
        num.add_product(fraction, budget)?;
        Expr::quotient(num, sum.power(whole.unsigned_abs() as u32, budget)?, budget)?
    } else {
        let fraction = product(vec![(Atom::Sum(sum), exponent)], BigRational::one(), budget)?;
        let mut num = Poly::default();
        num.add_product(fraction, budget)?;
        Expr { num, den: Poly::one() }
    };
    outside.times(&inside, budget)
}

/// One term to a power.
fn term_power(mono: &Mono, value: &BigRational, exponent: Exponent, budget: &mut Budget) -> Result<Expr, Stop> {
    let mut raw = Vec::with_capacity(mono.len() + 2);
    let mut coefficient = BigRational::one();
    if exponent.is_integer() && bits(value).saturating_mul(exponent.to_integer().unsigned_abs()) <= 64 {
        coefficient = value.pow(exponent.to_integer() as i32);
    } else {
        for (number, sign) in [(value.numer().abs(), 1), (value.denom().clone(), -1)] {
            if number.is_one() {
                continue;
            }
            for (atom, power) in poly::factored(&number, budget)? {
                raw.push((atom, exponent_product(Exponent::from_integer(power * sign), exponent)?));
            }
        }
        if value.is_negative() {
            // An odd root of a negative number is the real one; an even one is imaginary.
            if exponent.denom().is_odd() {
                if exponent.numer().is_odd() {
                    coefficient = -coefficient;
                }
            } else {
                raw.push((Atom::Imaginary, exponent_product(Exponent::from_integer(2), exponent)?));
            }
        }
    }
    for (atom, power) in mono {
        let total = exponent_product(*power, exponent)?;
        // sqrt(x^2) = |x|
        let even = power.is_integer() && power.to_integer() % 2 == 0;
        let absolute = even && !exponent.is_integer() && !(total.is_integer() && total.to_integer() % 2 == 0);
        let atom = match atom {
            Atom::Variable(_) | Atom::Call(..) if absolute => {
                Atom::Call(Function::Abs, Shared::arguments(vec![Expr::atom(atom.clone())]))
            }
            other => other.clone(),
        };
        raw.push((atom, total));
    }
    // A root of a sum that would stand below a line goes there.
    let mut below = Poly::one();
    for (atom, power) in &mut raw {
        if let Atom::Sum(sum) = atom
            && power.is_negative()
            && !power.is_integer()
        {
            let whole = power.floor().to_integer();
            if whole < -EXPANDED {
                return Err(Stop::Budget("size of an exponent"));
            }
            below = below.times(&sum.power(whole.unsigned_abs() as u32, budget)?, budget)?;
            *power -= whole;
        }
    }
    let mut num = Poly::default();
    num.add_product(product(raw, coefficient, budget)?, budget)?;
    if below.is_one() { Ok(Expr { num, den: below }) } else { Expr::quotient(num, below, budget) }
}

/// sqrt(a + b sqrt(c)) as sqrt(m) + sqrt(n), where a^2 - b^2 c is the square of a rational.
fn denested(poly: &Poly, budget: &mut Budget) -> Result<Option<Expr>, Stop> {
    if poly.terms.len() != 2 {
        return Ok(None);
    }
    let half = Exponent::new(1, 2);
    let mut whole = None;
    let mut surd = None;
    for (mono, value) in &poly.terms {
        if mono.is_empty() {
            whole = Some(value);
        } else if mono.iter().all(|(atom, exponent)| matches!(atom, Atom::Prime(_)) && *exponent == half) {
            let radicand = mono.iter().fold(BigInt::one(), |all, (atom, _)| match atom {
                Atom::Prime(prime) => all * prime,
                _ => all,
            });
            surd = Some((value, radicand));
        }
    }
    let (Some(a), Some((b, c))) = (whole, surd) else { return Ok(None) };
    budget.number(2 * (bits(a) + bits(b)) + c.bits())?;
    let (square, surd) = (rational::times(a, a, budget)?, rational::times(b, b, budget)?);
    let surd = rational::times(&surd, &BigRational::from_integer(c), budget)?;
    let Some(d) = square_root(&rational::plus(&square, &-surd, budget)?) else { return Ok(None) };
    let half = BigRational::new_raw(1.into(), 2.into());
    let large = rational::times(&rational::plus(a, &d, budget)?, &half, budget)?;
    let small = rational::times(&rational::plus(a, &-d, budget)?, &half, budget)?;
    if !large.is_positive() || small.is_negative() {
        return Ok(None);
    }
    let first = Expr::rational(large).power(&half, budget)?;
    let second = Expr::rational(small).power(&half, budget)?;
    let second = if b.is_negative() { second.neg() } else { second };
    first.add(&second, budget).map(Some)
}

/// The root of a rational that is a square.
fn square_root(value: &BigRational) -> Option<BigRational> {
    if value.is_negative() {
        return None;
    }
    let (top, bottom) = (value.numer().sqrt(), value.denom().sqrt());
    (&top * &top == *value.numer() && &bottom * &bottom == *value.denom()).then(|| BigRational::new_raw(top, bottom))
}

//! Intervals that hold a value for certain: every bound is rounded outwards.
//!
//! They decide what the normal form leaves open: signs, and whether two constants with functions or nested roots can be
//! equal.

use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::ast::Function;
use super::budget::{Budget, Stop};
use super::expr::Expr;
use super::poly::{Atom, Exponent, Mono, Poly};

/// A closed interval of reals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Interval {
    const ZERO: Self = Self { low: 0.0, high: 0.0 };

    pub(super) fn point(value: f64) -> Self {
        Self { low: value, high: value }
    }

    /// The bounds, moved outwards by a few units in the last place: more than the library's functions err.
    fn outward(low: f64, high: f64) -> Option<Self> {
        let (mut low, mut high) = (low, high);
        for _ in 0..4 {
            low = low.next_down();
            high = high.next_up();
        }
        (low.is_finite() && high.is_finite() && low <= high).then_some(Self { low, high })
    }

    fn is_zero(self) -> bool {
        self.low == 0.0 && self.high == 0.0
    }

    fn add(self, other: Self) -> Option<Self> {
        if self.is_zero() {
            return Some(other);
        }
        if other.is_zero() {
            return Some(self);
        }
        Self::outward(self.low + other.low, self.high + other.high)
    }

    fn neg(self) -> Self {
        Self { low: -self.high, high: -self.low }
    }

    fn mul(self, other: Self) -> Option<Self> {
        if self.is_zero() || other.is_zero() {
            return Some(Self::ZERO);
        }
        let all = [self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high];
        if all.iter().any(|value| value.is_nan()) {
            return None;
        }
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self::outward(low, high)
    }

    fn recip(self) -> Option<Self> {
        if self.low <= 0.0 && self.high >= 0.0 { None } else { Self::outward(1.0 / self.high, 1.0 / self.low) }
    }

    fn monotone(self, function: impl Fn(f64) -> f64) -> Option<Self> {
        let (first, second) = (function(self.low), function(self.high));
        if first.is_nan() || second.is_nan() { None } else { Self::outward(first.min(second), first.max(second)) }
    }

    /// A function that changes no faster than its argument and stays within -1 and 1.
    fn wave(self, function: impl Fn(f64) -> f64) -> Option<Self> {
        let middle = self.low.midpoint(self.high);
        let radius = (self.high - self.low) / 2.0;
        if radius > 1.0 || middle.abs() > 1e9 {
            return Some(Self { low: -1.0, high: 1.0 });
        }
        let value = function(middle);
        Self::outward(value - radius - 1e-16, value + radius + 1e-16)
    }

    fn abs(self) -> Self {
        if self.low >= 0.0 {
            self
        } else if self.high <= 0.0 {
            self.neg()
        } else {
            Self { low: 0.0, high: self.high.max(-self.low) }
        }
    }

    fn whole_power(self, exponent: i64) -> Option<Self> {
        let times = exponent.unsigned_abs();
        if times > 4096 {
            return None;
        }
        let even = times.is_multiple_of(2);
        let base = if even { self.abs() } else { self };
        let power = base.monotone(|value| value.powi(times as i32))?;
        // `powi` multiplies repeatedly: its error grows with the number of factors.
        let slack = times as f64 * f64::EPSILON;
        let power = Self { low: power.low - power.low.abs() * slack, high: power.high + power.high.abs() * slack };
        let power = if even { Self { low: power.low.max(0.0), high: power.high } } else { power };
        if exponent < 0 { power.recip() } else { Some(power) }
    }

    fn power(self, exponent: Exponent) -> Option<Self> {
        if exponent.is_integer() {
            return self.whole_power(exponent.to_integer());
        }
        let value = exponent.to_f64()?;
        if self.low >= 0.0 {
            // Powers of one sign are monotone on the positive reals.
            return self.monotone(|base| base.powf(value));
        }
        let odd_root = exponent.denom() % 2 != 0;
        if odd_root && self.high <= 0.0 {
            let size = self.neg().monotone(|base| base.powf(value))?;
            return Some(if exponent.numer() % 2 == 0 { size } else { size.neg() });
        }
        None
    }

    fn raised(self, exponent: Self) -> Option<Self> {
        if self.low <= 0.0 {
            return None;
        }
        let logarithm = self.monotone(f64::ln)?;
        logarithm.mul(exponent)?.monotone(f64::exp)
    }

    /// Whether two intervals have no value in common.
    pub(super) fn apart(self, other: Self) -> bool {
        self.high < other.low || other.high < self.low
    }

    /// Width against size; absolute below 1.
    pub(super) fn spread(self) -> f64 {
        (self.high - self.low) / self.high.abs().max(self.low.abs()).max(1.0)
    }
}

/// Real and imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex {
    pub(super) re: Interval,
    pub(super) im: Interval,
}

impl Complex {
    fn real(re: Interval) -> Self {
        Self { re, im: Interval::ZERO }
    }

    fn add(self, other: Self) -> Option<Self> {
        Some(Self { re: self.re.add(other.re)?, im: self.im.add(other.im)? })
    }

    fn mul(self, other: Self) -> Option<Self> {
        Some(Self {
            re: self.re.mul(other.re)?.add(self.im.mul(other.im)?.neg())?,
            im: self.re.mul(other.im)?.add(self.im.mul(other.re)?)?,
        })
    }

    fn recip(self) -> Option<Self> {
        if self.im.is_zero() {
            return Some(Self::real(self.re.recip()?));
        }
        let size = self.re.whole_power(2)?.add(self.im.whole_power(2)?)?.recip()?;
        Some(Self { re: self.re.mul(size)?, im: self.im.neg().mul(size)? })
    }

    fn as_real(self) -> Option<Interval> {
        self.im.is_zero().then_some(self.re)
    }
}

pub(super) fn rational(value: &BigRational) -> Option<Interval> {
    if value.is_zero() {
        return Some(Interval::ZERO);
    }
    let number = value.to_f64().filter(|number| number.is_finite() && *number != 0.0)?;
    if value.is_integer() && number.abs() < 9e15 {
        Some(Interval::point(number))
    } else {
        Interval::outward(number, number)
    }
}

/// Values of variables.
pub(super) type Values<'a> = &'a dyn Fn(&str) -> Option<f64>;

/// Where the value of an expression lies, if that can be told.
pub(super) fn enclose(expr: &Expr, values: Values<'_>, budget: &mut Budget) -> Result<Option<Complex>, Stop> {
    let Some(num) = sum(&expr.num, values, budget)? else { return Ok(None) };
    if expr.den.is_one() {
        return Ok(Some(num));
    }
    let Some(den) = sum(&expr.den, values, budget)? else { return Ok(None) };
    Ok(den.recip().and_then(|inverse| num.mul(inverse)))
}

fn sum(poly: &Poly, values: Values<'_>, budget: &mut Budget) -> Result<Option<Complex>, Stop> {
    let mut total = Complex::real(Interval::ZERO);
    for (mono, coefficient) in &poly.terms {
        let Some(factor) = product(mono, values, budget)? else { return Ok(None) };
        let term = rational(coefficient).and_then(|value| factor.mul(Complex::real(value)));
        let Some(next) = term.and_then(|term| total.add(term)) else { return Ok(None) };
        total = next;
    }
    Ok(Some(total))
}

fn product(mono: &Mono, values: Values<'_>, budget: &mut Budget) -> Result<Option<Complex>, Stop> {
    let mut total = Complex::real(Interval::point(1.0));
    for (atom, exponent) in mono {
        budget.spend(4)?;
        if *atom == Atom::Imaginary {
            if !exponent.is_one() {
                return Ok(None);
            }
            let unit = Complex { re: Interval::ZERO, im: Interval::point(1.0) };
            match total.mul(unit) {
                Some(next) => total = next,
                None => return Ok(None),
            }
            continue;
        }
        let base = real_atom(atom, values, budget)?;
        let next = base.and_then(|base| base.power(*exponent)).and_then(|value| total.mul(Complex::real(value)));
        let Some(next) = next else { return Ok(None) };
        total = next;
    }
    Ok(Some(total))
}

fn real(expr: &Expr, values: Values<'_>, budget: &mut Budget) -> Result<Option<Interval>, Stop> {
    Ok(enclose(expr, values, budget)?.and_then(Complex::as_real))
}

fn real_atom(atom: &Atom, values: Values<'_>, budget: &mut Budget) -> Result<Option<Interval>, Stop> {
    Ok(match atom {
        Atom::Prime(prime) => Some(Interval::point(*prime as f64)),
        Atom::Whole(value) => rational(&BigRational::from_integer(value.clone())),
        Atom::Imaginary => None,
        Atom::Pi => Interval::outward(std::f64::consts::PI, std::f64::consts::PI),
        Atom::Euler => Interval::outward(std::f64::consts::E, std::f64::consts::E),
        Atom::Degree | Atom::Percent => Some(Interval::point(1.0)),
        Atom::Variable(name) => values(name).map(Interval::point),
        Atom::Power(base, mono) => {
            let base = real(base, values, budget)?;
            let exponent = product(mono, values, budget)?.and_then(Complex::as_real);
            base.zip(exponent).and_then(|(base, exponent)| base.raised(exponent))
        }
        Atom::Sum(poly) => sum(poly, values, budget)?.and_then(Complex::as_real),
        Atom::Call(function, arguments) => {
            let mut bounds = Vec::with_capacity(arguments.len());
            for argument in arguments.iter() {
                let Some(value) = enclose(argument, values, budget)? else { return Ok(None) };
                bounds.push(value);
            }
            call(function, &bounds)
        }
    })
}

fn call(function: &Function, arguments: &[Complex]) -> Option<Interval> {
    let first = *arguments.first()?;
    if *function == Function::Abs {
        if let Some(value) = first.as_real() {
            return Some(value.abs());
        }
        let square = first.re.whole_power(2)?.add(first.im.whole_power(2)?)?;
        return square.power(Exponent::new(1, 2));
    }
    let value = first.as_real()?;
    match function {
        Function::Sin => value.wave(f64::sin),
        Function::Cos => value.wave(f64::cos),
        Function::Asin => value.monotone(f64::asin),
        Function::Acos => value.monotone(f64::acos),
        Function::Atan => value.monotone(f64::atan),
        Function::Sinh => value.monotone(f64::sinh),
        Function::Tanh => value.monotone(f64::tanh),
        Function::Cosh => value.abs().monotone(f64::cosh),
        Function::Ln if value.low > 0.0 => value.monotone(f64::ln),
        Function::Floor => exact_step(value, f64::floor),
        Function::Ceil => exact_step(value, f64::ceil),
        Function::Raise => value.raised(arguments.get(1)?.as_real()?),
        _ => None,
    }
}

fn exact_step(value: Interval, step: impl Fn(f64) -> f64) -> Option<Interval> {
    let (low, high) = (step(value.low), step(value.high));
    (low == high).then(|| Interval::point(low))
}

/// The sign of a real constant, where it can be told.
pub(super) fn sign(expr: &Expr, budget: &mut Budget) -> Result<Option<std::cmp::Ordering>, Stop> {
    use std::cmp::Ordering;
    if let Some(value) = expr.as_rational() {
        return Ok(Some(if value.is_zero() {
            Ordering::Equal
        } else if value.is_positive() {
            Ordering::Greater
        } else {
            Ordering::Less
        }));
    }
    let Some(bounds) = real(expr, &|_| None, budget)? else { return Ok(None) };
    Ok(if bounds.low > 0.0 {
        Some(Ordering::Greater)
    } else if bounds.high < 0.0 {
        Some(Ordering::Less)
    } else {
        None
    })
}

//! Functions of expressions: exact where there is an exact value, an atom elsewhere.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::ast::Function;
use super::budget::{Budget, Stop};
use super::enclosure;
use super::expr::{Expr, big};
use super::poly::{self, Atom, Exponent, Poly};
use super::rational::{self, bits};

/// Largest number whose factorial is written out.
const MAX_FACTORIAL: u32 = 2500;

/// Which number `\log` means when it names no base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareLog {
    Ten,
    Natural,
}

/// The value of a function.
pub(super) fn apply(
    function: &Function,
    mut arguments: Vec<Expr>,
    bare: BareLog,
    budget: &mut Budget,
) -> Result<Expr, Stop> {
    budget.spend(4)?;
    let arity = match function {
        Function::LogBase | Function::Binomial | Function::Mod | Function::Raise => Some(2),
        Function::Gcd | Function::Lcm | Function::Max | Function::Min | Function::Named(_) => None,
        _ => Some(1),
    };
    if arity.is_some_and(|arity| arguments.len() != arity) {
        return Err(Stop::Undefined("a function with the wrong number of arguments"));
    }
    match function {
        Function::Gcd | Function::Lcm => return whole_numbers(function, arguments, budget),
        Function::Max | Function::Min | Function::Named(_) => return extreme(function, arguments, budget),
        _ => {}
    }
    let x = arguments.remove(0);
    match function {
        Function::Sin => sine(&x, budget),
        Function::Cos => cosine(&x, budget),
        Function::Tan => sine(&x, budget)?.over(&cosine(&x, budget)?, budget),
        Function::Cot => cosine(&x, budget)?.over(&sine(&x, budget)?, budget),
        Function::Sec => Expr::integer(1).over(&cosine(&x, budget)?, budget),
        Function::Csc => Expr::integer(1).over(&sine(&x, budget)?, budget),
        Function::Cis => cis(&x, budget),
        Function::Exp => Expr::atom(Atom::Euler).raised(&x, budget),
        Function::Ln => logarithm(&x, budget),
        Function::Log => {
            let value = logarithm(&x, budget)?;
            match bare {
                BareLog::Natural => Ok(value),
                BareLog::Ten => value.over(&logarithm(&Expr::integer(10), budget)?, budget),
            }
        }
        Function::LogBase => {
            let argument = arguments.remove(0);
            logarithm(&argument, budget)?.over(&logarithm(&x, budget)?, budget)
        }
        Function::Abs => absolute(&x, budget),
        Function::Floor | Function::Ceil => step(function, x, budget),
        Function::Factorial => match x.as_integer().map(|value| value.to_u32()) {
            Some(Some(n)) if n <= MAX_FACTORIAL => {
                let mut value = BigInt::one();
                for factor in 2..=n {
                    budget.small_factor(value.bits())?;
                    value *= factor;
                }
                Ok(Expr::rational(BigRational::from_integer(value)))
            }
            Some(None) if x.as_integer().is_some_and(|value| value.is_negative()) => {
                Err(Stop::Undefined("the factorial of a negative number"))
            }
            _ => Ok(Expr::call(Function::Factorial, vec![x])),
        },
        Function::Binomial => binomial(x, arguments.remove(0), budget),
        Function::Re => Ok(parts(&x).map_or_else(|| Expr::call(Function::Re, vec![x.clone()]), |(re, _)| re)),
        Function::Im => Ok(parts(&x).map_or_else(|| Expr::call(Function::Im, vec![x.clone()]), |(_, im)| im)),
        other => {
            let mut all = vec![x];
            all.append(&mut arguments);
            Ok(Expr::call(other.clone(), all))
        }
    }
}

fn whole_numbers(function: &Function, arguments: Vec<Expr>, budget: &mut Budget) -> Result<Expr, Stop> {
    let numbers: Option<Vec<BigInt>> = arguments.iter().map(Expr::as_integer).collect();
    let Some(numbers) = numbers else { return Ok(Expr::call(function.clone(), arguments)) };
    let mut numbers = numbers.into_iter();
    let mut value = numbers.next().unwrap_or_default();
    for number in numbers {
        budget.number(2 * (value.bits() + number.bits()))?;
        let both_zero = value.is_zero() && number.is_zero();
        let common = if both_zero { BigInt::one() } else { rational::gcd(&value, &number, budget)? };
        value = match function {
            Function::Gcd if both_zero => BigInt::zero(),
            Function::Gcd => common,
            _ => (value / common * number).abs(),
        };
    }
    Ok(Expr::rational(BigRational::from_integer(value)))
}

fn extreme(function: &Function, arguments: Vec<Expr>, budget: &mut Budget) -> Result<Expr, Stop> {
    budget.spend(arguments.len() as u64)?;
    let numbers: Option<Vec<BigRational>> = arguments.iter().map(Expr::as_rational).collect();
    let chosen = match (function, numbers) {
        (Function::Max, Some(numbers)) => numbers.into_iter().max(),
        (Function::Min, Some(numbers)) => numbers.into_iter().min(),
        _ => None,
    };
    Ok(chosen.map_or_else(|| Expr::call(function.clone(), arguments), Expr::rational))
}

/// Replaces degrees, or percent signs, by a value.
pub(super) fn replace(expr: &Expr, atom: &Atom, value: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    let mut parts = Vec::with_capacity(2);
    for poly in [&expr.num, &expr.den] {
        let mut sum = Expr::integer(0);
        for (mono, coefficient) in &poly.terms {
            let mut rest = Poly::default();
            rest.add_term(
                mono.iter().filter(|(other, _)| other != atom).cloned().collect(),
                coefficient.clone(),
                budget,
            )?;
            let mut term = Expr { num: rest, den: Poly::one() };
            if let Some((_, exponent)) = mono.iter().find(|(other, _)| other == atom) {
                term = term.times(&value.power(&big(*exponent), budget)?, budget)?;
            }
            sum = sum.add(&term, budget)?;
        }
        parts.push(sum);
    }
    parts[0].over(&parts[1], budget)
}

/// pi/180
pub(super) fn degree(budget: &mut Budget) -> Result<Expr, Stop> {
    Expr::atom(Atom::Pi).over(&Expr::integer(180), budget)
}

fn angle(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    if x.any(&|atom| *atom == Atom::Degree) {
        replace(x, &Atom::Degree, &degree(budget)?, budget)
    } else {
        Ok(x.clone())
    }
}

/// q where the angle is q pi.
fn turns(x: &Expr) -> Option<BigRational> {
    if x.is_zero() {
        return Some(BigRational::zero());
    }
    if !x.den.is_one() {
        return None;
    }
    match x.num.single() {
        Some((mono, value)) if *mono == [(Atom::Pi, Exponent::one())] => Some(value.clone()),
        _ => None,
    }
}

fn sine(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    let x = angle(x, budget)?;
    if let Some(turns) = turns(&x) {
        return sine_of_turns(turns, budget);
    }
    if x.num.is_negative() {
        return Ok(Expr::call(Function::Sin, vec![x.neg()]).neg());
    }
    Ok(Expr::call(Function::Sin, vec![x]))
}

fn cosine(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    let x = angle(x, budget)?;
    if let Some(turns) = turns(&x) {
        return sine_of_turns(turns + BigRational::new(1.into(), 2.into()), budget);
    }
    let x = if x.num.is_negative() { x.neg() } else { x };
    Ok(Expr::call(Function::Cos, vec![x]))
}

/// cos x + i sin x
pub(super) fn cis(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    let imaginary = Expr::atom(Atom::Imaginary).times(&sine(x, budget)?, budget)?;
    cosine(x, budget)?.add(&imaginary, budget)
}

/// sin(q pi): exact for multiples of 15 and 18 degrees where square roots suffice, otherwise of an angle between 0 and
/// pi/2.
fn sine_of_turns(turns: BigRational, budget: &mut Budget) -> Result<Expr, Stop> {
    budget.number(bits(&turns))?;
    let two = BigRational::from_integer(2.into());
    let one = BigRational::one();
    let mut q = &turns - (&turns / &two).floor() * &two;
    let negative = q >= one;
    if negative {
        q -= &one;
    }
    if &q * &two > one {
        q = one - q;
    }
    let radical = |value: i64, scale: (i64, i64), budget: &mut Budget| {
        let root = Expr::integer(value).power(&BigRational::new(1.into(), 2.into()), budget)?;
        root.times(&Expr::rational(BigRational::new(scale.0.into(), scale.1.into())), budget)
    };
    // Sixtieths of pi: 5 is 15 degrees, 6 is 18.
    let sixtieth = (&q * BigRational::from_integer(60.into())).to_integer().to_i64().unwrap_or(-1);
    let exact = (&q * BigRational::from_integer(60.into())).is_integer();
    let value = match (exact, sixtieth) {
        (true, 0) => Expr::integer(0),
        (true, 5) => radical(6, (1, 4), budget)?.sub(&radical(2, (1, 4), budget)?, budget)?,
        (true, 6) => radical(5, (1, 4), budget)?.sub(&Expr::rational(BigRational::new(1.into(), 4.into())), budget)?,
        (true, 10) => Expr::rational(BigRational::new(1.into(), 2.into())),
        (true, 15) => radical(2, (1, 2), budget)?,
        (true, 18) => radical(5, (1, 4), budget)?.add(&Expr::rational(BigRational::new(1.into(), 4.into())), budget)?,
        (true, 20) => radical(3, (1, 2), budget)?,
        (true, 25) => radical(6, (1, 4), budget)?.add(&radical(2, (1, 4), budget)?, budget)?,
        (true, 30) => Expr::integer(1),
        _ => Expr::call(Function::Sin, vec![Expr::rational(q).times(&Expr::atom(Atom::Pi), budget)?]),
    };
    Ok(if negative { value.neg() } else { value })
}

/// The natural logarithm: of a product, the sum of its factors'.
fn logarithm(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    if x.is_zero() {
        return Err(Stop::Undefined("the logarithm of zero"));
    }
    let mut total = Expr::integer(0);
    for (poly, side) in [(&x.num, 1), (&x.den, -1)] {
        if poly.is_one() {
            continue;
        }
        let part = match poly.single() {
            Some((mono, value)) if value.is_positive() => {
                let mut atoms = mono.clone();
                for (number, sign) in [(value.numer(), 1), (value.denom(), -1)] {
                    for (atom, power) in poly::factored(number, budget)? {
                        atoms.push((atom, Exponent::from_integer(power * sign)));
                    }
                }
                let mut sum = Expr::integer(0);
                for (atom, exponent) in atoms {
                    let one = match atom {
                        Atom::Euler => Expr::integer(1),
                        Atom::Power(base, power)
                            if base.num.single().is_some_and(|(mono, _)| *mono == [(Atom::Euler, Exponent::one())]) =>
                        {
                            let mut inside = Poly::default();
                            inside.add_term(power, BigRational::one(), budget)?;
                            Expr { num: inside, den: Poly::one() }
                        }
                        Atom::Prime(prime) => {
                            Expr::call(Function::Ln, vec![Expr::rational(BigRational::from_integer(prime.into()))])
                        }
                        atom => Expr::call(Function::Ln, vec![Expr::atom(atom)]),
                    };
                    sum = sum.add(&one.times(&Expr::rational(big(exponent)), budget)?, budget)?;
                }
                sum
            }
            _ => Expr::call(Function::Ln, vec![Expr { num: poly.clone(), den: Poly::one() }]),
        };
        total = if side > 0 { total.add(&part, budget)? } else { total.sub(&part, budget)? };
    }
    Ok(total)
}

/// Real and imaginary part of a constant whose only complex atom is i itself.
fn parts(x: &Expr) -> Option<(Expr, Expr)> {
    let complex = |atom: &Atom| *atom == Atom::Imaginary;
    if x.has_variables() || x.den.any(&complex) {
        return None;
    }
    let (mut re, mut im) = (Poly::default(), Poly::default());
    for (mono, value) in &x.num.terms {
        match mono.iter().find(|(atom, _)| *atom == Atom::Imaginary) {
            None => {
                re.terms.insert(mono.clone(), value.clone());
            }
            Some((_, exponent)) if exponent.is_one() => {
                let rest = mono.iter().filter(|(atom, _)| *atom != Atom::Imaginary).cloned().collect();
                im.terms.insert(rest, value.clone());
            }
            Some(_) => return None,
        }
    }
    Some((Expr { num: re, den: x.den.clone() }, Expr { num: im, den: x.den.clone() }))
}

fn absolute(x: &Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    if let Some(value) = x.as_rational() {
        return Ok(Expr::rational(value.abs()));
    }
    if !x.has_variables() {
        if let Some((re, im)) = parts(x)
            && !im.is_zero()
        {
            let square = re.times(&re, budget)?.add(&im.times(&im, budget)?, budget)?;
            return square.power(&BigRational::new(1.into(), 2.into()), budget);
        }
        match enclosure::sign(x, budget)? {
            Some(std::cmp::Ordering::Less) => return Ok(x.neg()),
            Some(_) => return Ok(x.clone()),
            None => {}
        }
    }
    // |-3x| = 3|x|
    let content = x.num.content(budget)?;
    let primitive = Expr { num: x.num.scaled(&content.recip(), budget)?, den: x.den.clone() };
    let primitive = if primitive.num.single().is_some_and(|(mono, _)| mono.is_empty()) && primitive.den.is_one() {
        return Ok(Expr::rational(content.abs()));
    } else {
        primitive
    };
    Expr::call(Function::Abs, vec![primitive]).times(&Expr::rational(content.abs()), budget)
}

fn step(function: &Function, x: Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    if let Some(value) = x.as_rational() {
        return Ok(Expr::rational(if *function == Function::Floor { value.floor() } else { value.ceil() }));
    }
    if !x.has_variables()
        && let Some(bounds) = enclosure::enclose(&x, &|_| None, budget)?
        && bounds.im == enclosure::Interval::point(0.0)
    {
        let round = if *function == Function::Floor { f64::floor } else { f64::ceil };
        let (low, high) = (round(bounds.re.low), round(bounds.re.high));
        if low == high && low.abs() < 9e15 {
            return Ok(Expr::integer(low as i64));
        }
    }
    Ok(Expr::call(function.clone(), vec![x]))
}

fn binomial(n: Expr, k: Expr, budget: &mut Budget) -> Result<Expr, Stop> {
    let (Some(top), Some(bottom)) = (n.as_integer(), k.as_integer()) else {
        return Ok(Expr::call(Function::Binomial, vec![n, k]));
    };
    if top.is_negative() || bottom.is_negative() {
        return Ok(Expr::call(Function::Binomial, vec![n, k]));
    }
    if bottom > top {
        return Ok(Expr::integer(0));
    }
    let fewer = (&top - &bottom).min(bottom);
    let Some(fewer) = fewer.to_u32().filter(|fewer| *fewer <= MAX_FACTORIAL) else {
        return Ok(Expr::call(Function::Binomial, vec![n, k]));
    };
    let mut value = BigInt::one();
    for step in 0..fewer {
        budget.small_factor(value.bits() + top.bits())?;
        value = value * (&top - step) / (step + 1);
    }
    Ok(Expr::rational(BigRational::from_integer(value)))
}

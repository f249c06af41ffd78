//! Whether two meanings are one.

use std::collections::{BTreeMap, BTreeSet};

use num_rational::BigRational;
use num_traits::{One, Signed, Zero};

use super::ast::Relation;
use super::budget::{Budget, Stop};
use super::enclosure::{self, Complex};
use super::expr::Expr;
use super::functions;
use super::poly::{Atom, Exponent, Poly};
use super::roots;
use super::value::{Value, linear};

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Same,
    Different,
    /// Neither could be shown.
    Open,
}

impl From<bool> for Found {
    fn from(same: bool) -> Self {
        if same { Self::Same } else { Self::Different }
    }
}

/// How close two enclosures that overlap must be to count as one value.
const SPREAD: f64 = 1e-9;
/// Points at which two expressions with variables are compared, and how many of them must have a value.
const POINTS: u64 = 32;
const ENOUGH: usize = 6;

pub(super) struct Comparison<'b> {
    pub(super) budget: &'b mut Budget,
    /// Something was decided by enclosures or at points, not by the normal form.
    pub(super) numeric: bool,
}

impl Comparison<'_> {
    pub(super) fn values(&mut self, left: &Value, right: &Value) -> Result<Found, Stop> {
        self.budget.spend(2)?;
        Ok(match (left, right) {
            (Value::Expr(left), Value::Expr(right)) => self.exprs(left, right)?,
            (Value::Infinite { negative: left }, Value::Infinite { negative: right }) => (left == right).into(),
            (Value::Reals, Value::Reals) => Found::Same,
            (Value::Reals, Value::Tuple { open: '(', close: ')', items })
            | (Value::Tuple { open: '(', close: ')', items }, Value::Reals) => {
                matches!(items.as_slice(), [Value::Infinite { negative: true }, Value::Infinite { negative: false }])
                    .into()
            }
            (Value::Numeral { digits, base }, Value::Numeral { digits: other, base: other_base }) => {
                (digits == other && base == other_base).into()
            }
            (Value::Numeral { digits, base }, Value::Expr(expr))
            | (Value::Expr(expr), Value::Numeral { digits, base }) => {
                // A numeral whose base was left out. One digit says nothing of a base: `5_6` is no 5.
                let left_out = base == "10" || digits.trim_start_matches('-').len() > 1;
                let same = |value: BigRational| digits_of(&value).is_some_and(|other| other == *digits);
                (left_out && expr.as_rational().is_some_and(same)).into()
            }
            (Value::Point { name, items }, Value::Point { name: other_name, items: others }) => {
                if name == other_name {
                    self.in_order(items, others)?
                } else {
                    Found::Different
                }
            }
            (Value::Point { items, .. }, Value::Tuple { open: '(', close: ')', items: others })
            | (Value::Tuple { open: '(', close: ')', items: others }, Value::Point { items, .. }) => {
                self.in_order(items, others)?
            }
            (Value::Point { name, items }, Value::Expr(expr)) | (Value::Expr(expr), Value::Point { name, items }) => {
                match Value::chosen(name, items, self.budget)? {
                    Some(number) => self.exprs(&number, expr)?,
                    None => Found::Different,
                }
            }
            // `P = (1, 2)` is `P(1, 2)`.
            (Value::Equation { label: Some(label), right: value, .. }, Value::Point { name, items })
            | (Value::Point { name, items }, Value::Equation { label: Some(label), right: value, .. }) => {
                match value.as_ref() {
                    Value::Tuple { open: '(', close: ')', items: others } if label == name => {
                        self.in_order(items, others)?
                    }
                    Value::Tuple { .. } => Found::Different,
                    _ => {
                        let point = Value::Point { name: name.clone(), items: items.clone() };
                        self.values(value, &point)?
                    }
                }
            }
            // `x = 5` is 5; `x = 5` is not `y = 5`.
            (Value::Equation { .. }, Value::Equation { .. }) => self.equations(left, right)?,
            (Value::Equation { label, left: named, right: value }, other)
            | (other, Value::Equation { label, left: named, right: value }) => {
                let calculated = matches!(named.as_ref(), Value::Expr(expr) if !expr.has_variables());
                if label.is_some() {
                    self.values(value, other)?
                } else if calculated {
                    // `9 * 2 = 18` is 18; `6 = 5` is nothing.
                    let holds = self.values(named, value)?;
                    worse(holds, self.values(value, other)?)
                } else {
                    Found::Different
                }
            }
            (
                Value::Tuple { open, close, items },
                Value::Tuple { open: other_open, close: other_close, items: others },
            ) => {
                if open == other_open && close == other_close {
                    self.in_order(items, others)?
                } else {
                    Found::Different
                }
            }
            // `1, 1` is two answers, `\{1, 1\}` one member.
            (Value::Set(items), Value::Set(others)) => self.lists(items, others, true)?,
            (Value::Set(items) | Value::List(items), Value::Set(others) | Value::List(others)) => {
                self.lists(items, others, false)?
            }
            // A pair whose brackets were left out.
            (Value::Tuple { open: '(', close: ')', items }, Value::List(others))
            | (Value::List(others), Value::Tuple { open: '(', close: ')', items }) => self.in_order(items, others)?,
            (Value::Union(parts), Value::Union(others) | Value::List(others))
            | (Value::List(others), Value::Union(parts)) => self.without_order(parts, others)?,
            (Value::Set(items) | Value::List(items), other) | (other, Value::Set(items) | Value::List(items)) => {
                if let [single] = items.as_slice() {
                    self.values(single, other)?
                } else {
                    Found::Different
                }
            }
            (Value::Matrix(rows), Value::Matrix(others)) => {
                if rows.len() != others.len() {
                    return Ok(Found::Different);
                }
                let mut found = Found::Same;
                for (row, other) in rows.iter().zip(others) {
                    found = worse(found, self.in_order(row, other)?);
                }
                found
            }
            // A point and a column.
            (Value::Matrix(rows), Value::Tuple { open: '(', close: ')', items })
            | (Value::Tuple { open: '(', close: ')', items }, Value::Matrix(rows)) => {
                if rows.len() == 1 {
                    self.in_order(&rows[0], items)?
                } else if rows.iter().all(|row| row.len() == 1) {
                    let column: Vec<Value> = rows.iter().flatten().cloned().collect();
                    self.in_order(&column, items)?
                } else {
                    Found::Different
                }
            }
            // `[[1,2],[3,4]]`
            (Value::Matrix(rows), Value::Tuple { open: '[', close: ']', items })
            | (Value::Tuple { open: '[', close: ']', items }, Value::Matrix(rows)) => {
                let mut found = if rows.len() == items.len() { Found::Same } else { Found::Different };
                for (row, item) in rows.iter().zip(items) {
                    found = worse(
                        found,
                        match item {
                            Value::Tuple { open: '[', close: ']', items } => self.in_order(row, items)?,
                            _ => Found::Different,
                        },
                    );
                }
                found
            }
            (Value::Ratio(parts), Value::Ratio(others)) => self.ratios(parts, others)?,
            (Value::Ratio(parts), Value::Expr(expr)) | (Value::Expr(expr), Value::Ratio(parts)) => {
                if let [top, bottom] = parts.as_slice()
                    && !bottom.is_zero()
                {
                    let quotient = top.over(bottom, self.budget)?;
                    self.exprs(&quotient, expr)?
                } else {
                    Found::Different
                }
            }
            (Value::Order(sides, signs), Value::Order(others, other_signs)) => {
                self.orders(sides, signs, others, other_signs)?
            }
            _ => Found::Different,
        })
    }

    fn in_order(&mut self, left: &[Value], right: &[Value]) -> Result<Found, Stop> {
        if left.len() != right.len() {
            return Ok(Found::Different);
        }
        let mut found = Found::Same;
        for (left, right) in left.iter().zip(right) {
            found = worse(found, self.values(left, right)?);
            if found == Found::Different {
                break;
            }
        }
        Ok(found)
    }

    fn lists(&mut self, left: &[Value], right: &[Value], sets: bool) -> Result<Found, Stop> {
        // `x = 1, y = 2` without its names is `1, 2`, in that order.
        let names = |values: &[Value]| -> BTreeSet<String> {
            values
                .iter()
                .filter_map(|value| match value {
                    Value::Equation { label: Some(label), .. } => Some(label.clone()),
                    Value::Point { name, .. } => Some(name.clone()),
                    _ => None,
                })
                .collect()
        };
        let (left_names, right_names) = (names(left), names(right));
        if (left_names.len() > 1) != (right_names.len() > 1) {
            return self.in_order(left, right);
        }
        if sets { self.without_order(left, right) } else { self.matched(left.iter().collect(), right.iter().collect()) }
    }

    fn without_order(&mut self, left: &[Value], right: &[Value]) -> Result<Found, Stop> {
        let left = self.distinct(left)?;
        let right = self.distinct(right)?;
        self.matched(left, right)
    }

    /// Each value of one side with one of the other.
    fn matched(&mut self, left: Vec<&Value>, mut right: Vec<&Value>) -> Result<Found, Stop> {
        if left.len() != right.len() {
            return Ok(Found::Different);
        }
        let mut open = false;
        for value in left {
            let mut matched = None;
            for (index, other) in right.iter().enumerate() {
                match self.values(value, other)? {
                    Found::Same => {
                        matched = Some(index);
                        break;
                    }
                    Found::Open => open = true,
                    Found::Different => {}
                }
            }
            match matched {
                Some(index) => {
                    right.swap_remove(index);
                }
                None => return Ok(if open { Found::Open } else { Found::Different }),
            }
        }
        Ok(Found::Same)
    }

    fn distinct<'v>(&mut self, values: &'v [Value]) -> Result<Vec<&'v Value>, Stop> {
        let mut distinct: Vec<&Value> = Vec::with_capacity(values.len());
        for value in values {
            let mut new = true;
            for other in &distinct {
                if self.values(value, other)? == Found::Same {
                    new = false;
                    break;
                }
            }
            if new {
                distinct.push(value);
            }
        }
        Ok(distinct)
    }

    fn ratios(&mut self, left: &[Expr], right: &[Expr]) -> Result<Found, Stop> {
        if left.len() != right.len() {
            return Ok(Found::Different);
        }
        let mut found = Found::Same;
        for (index, (first, other)) in left.iter().zip(right).enumerate().skip(1) {
            let (before, other_before) = (&left[index - 1], &right[index - 1]);
            let cross = (first.times(other_before, self.budget)?, other.times(before, self.budget)?);
            found = worse(found, self.exprs(&cross.0, &cross.1)?);
        }
        Ok(found)
    }

    fn orders(
        &mut self,
        sides: &[Value],
        signs: &[Relation],
        others: &[Value],
        other_signs: &[Relation],
    ) -> Result<Found, Stop> {
        if signs == other_signs && self.in_order(sides, others)? == Found::Same {
            return Ok(Found::Same);
        }
        let flipped: Vec<Relation> = other_signs.iter().rev().map(|sign| sign.flipped()).collect();
        let reversed: Vec<Value> = others.iter().rev().cloned().collect();
        if signs == flipped && self.in_order(sides, &reversed)? == Found::Same {
            return Ok(Found::Same);
        }
        // One inequality in several variables: a positive multiple is the same one.
        for (others, other_signs) in [(others, other_signs), (&reversed, &flipped)] {
            if let ([Value::Expr(left), Value::Expr(right)], [Value::Expr(other_left), Value::Expr(other_right)]) =
                (sides, others)
                && signs == other_signs
            {
                let first = left.sub(right, self.budget)?;
                let second = other_left.sub(other_right, self.budget)?;
                let any_sign = signs == [Relation::NotEqual];
                if first.den == second.den && self.proportional(&first.num, &second.num, any_sign)? {
                    return Ok(Found::Same);
                }
            }
        }
        Ok(Found::Different)
    }

    fn equations(&mut self, left: &Value, right: &Value) -> Result<Found, Stop> {
        let (
            Value::Equation { label, left: first, right: second },
            Value::Equation { label: other_label, left: other_first, right: other_second },
        ) = (left, right)
        else {
            return Ok(Found::Different);
        };
        if label.is_some() && label == other_label {
            let found = self.values(second, other_second)?;
            if found != Found::Different {
                return Ok(found);
            }
        }
        let (Value::Expr(first), Value::Expr(second), Value::Expr(other_first), Value::Expr(other_second)) =
            (first.as_ref(), second.as_ref(), other_first.as_ref(), other_second.as_ref())
        else {
            return if label.is_none() && other_label.is_none() {
                let found = self.values(first, other_first)?;
                Ok(worse(found, self.values(second, other_second)?))
            } else {
                Ok(Found::Different)
            };
        };
        let zero = first.sub(second, self.budget)?;
        let other_zero = other_first.sub(other_second, self.budget)?;
        if zero.den == other_zero.den && self.proportional(&zero.num, &other_zero.num, true)? {
            return Ok(Found::Same);
        }
        if let (Some(mine), Some(theirs)) = (self.whole(&zero)?, self.whole(&other_zero)?)
            && self.proportional(&mine, &theirs, true)?
        {
            return Ok(Found::Same);
        }
        // `9 * 2 = 18` beside `x = 18`: what is calculated must hold, what is named says nothing else.
        let calculated = |left: &Expr, right: &Expr| !left.has_variables() && !right.has_variables();
        let (mine, theirs) = (calculated(first, second), calculated(other_first, other_second));
        if !(mine || theirs) {
            return Ok(Found::Different);
        }
        let mut found = Found::Same;
        for (calculated, label, left, right) in
            [(mine, label, first, second), (theirs, other_label, other_first, other_second)]
        {
            let side = match (calculated, label) {
                (true, _) => self.exprs(left, right)?,
                (false, Some(_)) => Found::Same,
                (false, None) => Found::Different,
            };
            found = worse(found, side);
        }
        Ok(worse(found, self.exprs(second, other_second)?))
    }

    /// An expression that is zero as a sum without divisions that is zero in the same places: `y - 2/x` is `xy - 2`,
    /// since that is nowhere zero where x is. `y/x - 1` is no such sum: `y - x` has a zero more.
    fn whole(&mut self, zero: &Expr) -> Result<Option<Poly>, Stop> {
        let (sum, divided) = without_divisions(&zero.num);
        let constant = |poly: &Poly| poly.as_constant().is_some_and(|value| !value.is_zero());
        for variable in divided {
            let rest = sum.terms.iter().filter(|(mono, _)| mono.iter().all(|(atom, _)| *atom != variable));
            if !constant(&Poly { terms: rest.map(|(mono, value)| (mono.clone(), value.clone())).collect() }) {
                return Ok(None);
            }
        }
        if zero.den.is_one() {
            return Ok(Some(sum));
        }
        let below = Expr { num: zero.den.clone(), den: Poly::one() };
        let Some((slope, offset)) = linear(&below) else { return Ok(None) };
        let root = offset.neg().over(&Expr::rational(slope), self.budget)?;
        let mut atoms = zero.den.terms.keys().flatten().map(|(atom, _)| atom);
        let Some(variable) = atoms.find(|atom| matches!(atom, Atom::Variable(_))) else { return Ok(None) };
        let above = Expr { num: sum.clone(), den: Poly::one() };
        let there = functions::replace(&above, variable, &root, self.budget)?;
        Ok((there.den.is_one() && constant(&there.num)).then_some(sum))
    }

    /// Whether one sum is a multiple of the other by a number, a positive one unless any will do.
    fn proportional(&mut self, left: &Poly, right: &Poly, any_sign: bool) -> Result<bool, Stop> {
        if left.terms.len() != right.terms.len() {
            return Ok(false);
        }
        let (Some(first), Some(second)) = (left.terms.values().next(), right.terms.values().next()) else {
            return Ok(true);
        };
        let (scaled, other) = (left.scaled(second, self.budget)?, right.scaled(first, self.budget)?);
        Ok(scaled == other && (any_sign || first.is_positive() == second.is_positive()))
    }

    fn exprs(&mut self, left: &Expr, right: &Expr) -> Result<Found, Stop> {
        self.converted(left, right, &[Atom::Percent, Atom::Degree])
    }

    /// Compares expressions in which these units may stand. `50%` beside `0.5`, `30^\circ` beside `\pi/6`: where only one
    /// side is written in a unit, the unit may count as nothing or be converted.
    fn converted(&mut self, left: &Expr, right: &Expr, units: &[Atom]) -> Result<Found, Stop> {
        if left == right {
            return Ok(Found::Same);
        }
        let Some((unit, others)) = units.split_first() else { return self.plain(left, right) };
        let holds = |expr: &Expr| expr.any(&|atom| atom == unit);
        let (left_holds, right_holds) = (holds(left), holds(right));
        if !left_holds && !right_holds {
            return self.converted(left, right, others);
        }
        let one = Expr::integer(1);
        let plain_left = functions::replace(left, unit, &one, self.budget)?;
        let plain_right = functions::replace(right, unit, &one, self.budget)?;
        let found = self.converted(&plain_left, &plain_right, others)?;
        if found == Found::Same || left_holds == right_holds {
            return Ok(found);
        }
        let small = if *unit == Atom::Percent {
            Expr::rational(BigRational::new(1.into(), 100.into()))
        } else {
            functions::degree(self.budget)?
        };
        if left_holds {
            let left = functions::replace(left, unit, &small, self.budget)?;
            self.converted(&left, &plain_right, others)
        } else {
            let right = functions::replace(right, unit, &small, self.budget)?;
            self.converted(&plain_left, &right, others)
        }
    }

    /// Compares expressions without units.
    fn plain(&mut self, left: &Expr, right: &Expr) -> Result<Found, Stop> {
        let mut difference = left.num.times(&right.den, self.budget)?;
        difference.add(&right.num.times(&left.den, self.budget)?.negated(), self.budget)?;
        if difference.is_zero() {
            return Ok(Found::Same);
        }
        if canonical(left) && canonical(right) {
            return Ok(Found::Different);
        }
        if let Some(zero) = roots::vanish(&difference, self.budget)? {
            return Ok(zero.into());
        }
        if left.has_variables() || right.has_variables() {
            self.at_points(left, right)
        } else {
            self.enclosures(left, right)
        }
    }

    /// Two constants with functions or nested roots.
    fn enclosures(&mut self, left: &Expr, right: &Expr) -> Result<Found, Stop> {
        // A long decimal beside cos 1 is an approximation, however good.
        if approximates(left) != approximates(right) {
            return Ok(Found::Different);
        }
        let none = |_: &str| None;
        let (Some(first), Some(second)) =
            (enclosure::enclose(left, &none, self.budget)?, enclosure::enclose(right, &none, self.budget)?)
        else {
            return Ok(Found::Open);
        };
        self.numeric = true;
        Ok(nearness(first, second))
    }

    /// Two expressions whose normal forms differ, at fixed pseudo-random points. Points where either has no real value
    /// say nothing.
    fn at_points(&mut self, left: &Expr, right: &Expr) -> Result<Found, Stop> {
        let mut agreed = 0;
        for point in 0..POINTS {
            let values = |name: &str| Some(coordinate(name, point));
            let (Some(first), Some(second)) =
                (enclosure::enclose(left, &values, self.budget)?, enclosure::enclose(right, &values, self.budget)?)
            else {
                continue;
            };
            match nearness(first, second) {
                Found::Same => agreed += 1,
                Found::Different => {
                    self.numeric = true;
                    return Ok(Found::Different);
                }
                Found::Open => {}
            }
        }
        self.numeric = true;
        Ok(if agreed >= ENOUGH { Found::Same } else { Found::Open })
    }
}

fn worse(left: Found, right: Found) -> Found {
    match (left, right) {
        (Found::Different, _) | (_, Found::Different) => Found::Different,
        (Found::Open, _) | (_, Found::Open) => Found::Open,
        _ => Found::Same,
    }
}

fn nearness(left: Complex, right: Complex) -> Found {
    let pairs = [(left.re, right.re), (left.im, right.im)];
    if pairs.iter().any(|(left, right)| left.apart(*right)) {
        Found::Different
    } else if pairs.iter().all(|(left, right)| left.spread() < SPREAD && right.spread() < SPREAD) {
        Found::Same
    } else {
        Found::Open
    }
}

/// Whether two different normal forms of this kind are different values: only radicals of numbers, i, pi, e, variables.
fn canonical(expr: &Expr) -> bool {
    !expr.any(&|atom| matches!(atom, Atom::Whole(_) | Atom::Power(..) | Atom::Sum(_) | Atom::Call(..)))
}

/// Whether a number has so many digits that it must be an approximation.
fn approximates(expr: &Expr) -> bool {
    expr.num.terms.values().chain(expr.den.terms.values()).any(|value| value.denom().bits() > 30)
}

/// A variable's value at a point: an odd multiple of 1/64 between -4 and 4, the same on every machine.
fn coordinate(name: &str, point: u64) -> f64 {
    let mut state = point.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for byte in name.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^= state >> 31;
    // Half of the points have positive coordinates only, where roots and logarithms have values.
    let size = ((state % 127) * 2 + 1) as f64 / 64.0;
    if point % 2 == 1 && state >> 63 == 1 { -size } else { size }
}

/// A sum times the powers of variables that its terms divide by, and those variables.
fn without_divisions(poly: &Poly) -> (Poly, Vec<Atom>) {
    let mut divided: BTreeMap<Atom, Exponent> = BTreeMap::new();
    for (atom, exponent) in poly.terms.keys().flatten() {
        if matches!(atom, Atom::Variable(_)) && *exponent < Exponent::zero() {
            let least = divided.entry(atom.clone()).or_default();
            *least = (*least).min(*exponent);
        }
    }
    if divided.is_empty() {
        return (poly.clone(), Vec::new());
    }
    let mut result = Poly::default();
    for (mono, value) in &poly.terms {
        let mut mono = mono.clone();
        for (atom, least) in &divided {
            match mono.binary_search_by(|(other, _)| other.cmp(atom)) {
                Ok(at) => mono[at].1 -= least,
                Err(at) => mono.insert(at, (atom.clone(), -least)),
            }
        }
        mono.retain(|(_, exponent)| !exponent.is_zero());
        result.terms.insert(mono, value.clone());
    }
    (result, divided.into_keys().collect())
}

/// The decimal digits of a number that has finitely many.
fn digits_of(value: &BigRational) -> Option<String> {
    if value.is_integer() {
        return Some(value.to_integer().to_string());
    }
    let mut scaled = value.clone();
    let ten = BigRational::from_integer(10.into());
    for places in 1..=40 {
        scaled *= &ten;
        if scaled.denom().is_one() {
            let negative = scaled.is_negative();
            let digits = scaled.to_integer().magnitude().to_string();
            let digits = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            return Some(format!("{}{whole}.{fraction}", if negative { "-" } else { "" }));
        }
    }
    None
}

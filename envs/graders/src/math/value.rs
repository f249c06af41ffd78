//! What a formula means: numbers and expressions in normal form, sets, tuples, matrices, equations.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, Zero};

use super::ast::{Function, Node, Relation};
use super::budget::{Budget, Stop};
use super::enclosure;
use super::expr::Expr;
use super::functions::{self, BareLog};
use super::poly::Atom;
use super::rational;

/// A meaning.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Expr(Expr),
    Infinite {
        negative: bool,
    },
    Numeral {
        digits: String,
        base: String,
    },
    Reals,
    /// Brackets matter: `(1, 2)` is a point or an open interval, `[1, 2)` an interval.
    Tuple {
        open: char,
        close: char,
        items: Vec<Value>,
    },
    /// A tuple with the name of a point. `C(10, 3)` may be a number as well: [`Value::chosen`].
    Point {
        name: String,
        items: Vec<Value>,
    },
    /// In braces: no order, no repetition.
    Set(Vec<Value>),
    /// Several answers: no order.
    List(Vec<Value>),
    Union(Vec<Value>),
    Matrix(Vec<Vec<Value>>),
    Ratio(Vec<Expr>),
    /// `label` is the name that the equation gives a value.
    Equation {
        label: Option<String>,
        left: Box<Value>,
        right: Box<Value>,
    },
    Order(Vec<Value>, Vec<Relation>),
}

impl Value {
    /// Whether one of the expressions in it holds such an atom.
    pub(super) fn any(&self, found: &dyn Fn(&Atom) -> bool) -> bool {
        match self {
            Self::Expr(expr) => expr.any(found),
            Self::Infinite { .. } | Self::Numeral { .. } | Self::Reals => false,
            Self::Tuple { items, .. }
            | Self::Point { items, .. }
            | Self::Set(items)
            | Self::List(items)
            | Self::Union(items)
            | Self::Order(items, _) => items.iter().any(|item| item.any(found)),
            Self::Matrix(rows) => rows.iter().flatten().any(|cell| cell.any(found)),
            Self::Ratio(parts) => parts.iter().any(|part| part.any(found)),
            Self::Equation { left, right, .. } => left.any(found) || right.any(found),
        }
    }

    /// How many choices a `C(10, 3)` is.
    pub(super) fn chosen(name: &str, items: &[Self], budget: &mut Budget) -> Result<Option<Expr>, Stop> {
        match (name, items) {
            ("C", [Self::Expr(all), Self::Expr(chosen)]) => {
                let arguments = vec![all.clone(), chosen.clone()];
                functions::apply(&Function::Binomial, arguments, BareLog::Ten, budget).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// How a formula is evaluated.
pub(super) struct Evaluator<'b> {
    pub(super) bare: BareLog,
    pub(super) budget: &'b mut Budget,
    /// `\pm` is plus.
    plus: bool,
}

impl<'b> Evaluator<'b> {
    pub(super) fn new(bare: BareLog, budget: &'b mut Budget) -> Self {
        Self { bare, budget, plus: true }
    }

    /// The meaning of an answer.
    pub(super) fn answer(&mut self, node: &Node) -> Result<Value, Stop> {
        match node {
            Node::List(items) => {
                let values = self.members(items)?;
                // `x < 1 or x > 2` is one set.
                let conditions = items
                    .iter()
                    .all(|item| matches!(item, Node::Relation(_, signs) if !signs.contains(&Relation::Equal)));
                let sets = values.iter().all(|value| matches!(value, Value::Tuple { .. } | Value::Union(_)));
                Ok(if conditions && sets { union(values) } else { Value::List(values) })
            }
            node => {
                let mut values = self.both_signs(node)?;
                Ok(if values.len() == 1 { values.swap_remove(0) } else { Value::List(values) })
            }
        }
    }

    /// One value, or two where `\pm` stands in it.
    fn both_signs(&mut self, node: &Node) -> Result<Vec<Value>, Stop> {
        if !ambiguous(node) {
            return Ok(vec![self.value(node)?]);
        }
        let mut values = Vec::with_capacity(2);
        for plus in [true, false] {
            self.plus = plus;
            let value = self.value(node);
            self.plus = true;
            values.push(value?);
        }
        // `\pm 0`
        values.dedup();
        Ok(values)
    }

    fn members(&mut self, nodes: &[Node]) -> Result<Vec<Value>, Stop> {
        let mut values = Vec::with_capacity(nodes.len());
        for node in nodes {
            values.append(&mut self.both_signs(node)?);
        }
        Ok(values)
    }

    fn value(&mut self, node: &Node) -> Result<Value, Stop> {
        self.budget.spend(1)?;
        Ok(match node {
            Node::Infinity => Value::Infinite { negative: false },
            Node::Reals => Value::Reals,
            Node::Neg(inside) => match self.value(inside)? {
                Value::Infinite { negative } => Value::Infinite { negative: !negative },
                Value::Expr(expr) => Value::Expr(expr.neg()),
                Value::Numeral { digits, base } => Value::Numeral { digits: format!("-{digits}"), base },
                Value::Matrix(rows) => Value::Matrix(
                    rows.into_iter()
                        .map(|row| {
                            row.into_iter()
                                .map(|cell| match cell {
                                    Value::Expr(cell) => Value::Expr(cell.neg()),
                                    other => other,
                                })
                                .collect()
                        })
                        .collect(),
                ),
                _ => return Err(Stop::Undefined("the negative of a set")),
            },
            Node::PlusMinus { plus, value } => {
                let value = self.value(value)?;
                match value {
                    Value::Expr(expr) => Value::Expr(if *plus == self.plus { expr } else { expr.neg() }),
                    Value::Infinite { .. } => Value::Infinite { negative: *plus != self.plus },
                    _ => return Err(Stop::Undefined("both signs of a set")),
                }
            }
            Node::Numeral { digits, base } => {
                let trimmed = digits.trim_start_matches('0');
                let trimmed = if trimmed.is_empty() || trimmed.starts_with('.') {
                    format!("0{trimmed}")
                } else {
                    trimmed.to_owned()
                };
                Value::Numeral { digits: trimmed, base: base.clone() }
            }
            Node::Tuple { open, close, items } => {
                let mut values = Vec::with_capacity(items.len());
                for item in items {
                    values.push(self.value(item)?);
                }
                Value::Tuple { open: *open, close: *close, items: values }
            }
            Node::Point { name, items } => {
                let mut values = Vec::with_capacity(items.len());
                for item in items {
                    values.push(self.value(item)?);
                }
                Value::Point { name: name.clone(), items: values }
            }
            Node::Set(items) => Value::Set(self.members(items)?),
            Node::List(items) => Value::List(self.members(items)?),
            Node::Union(parts) => {
                let mut values = Vec::with_capacity(parts.len());
                for part in parts {
                    values.push(self.value(part)?);
                }
                union(values)
            }
            Node::Minus(all, without) => {
                let (all, without) = (self.value(all)?, self.value(without)?);
                self.without(all, without)?
            }
            Node::Intersection(parts) => {
                let mut values = Vec::with_capacity(parts.len());
                for part in parts {
                    values.push(self.value(part)?);
                }
                Value::Order(values, Vec::new())
            }
            Node::Relation(sides, signs) => self.relation(sides, signs)?,
            Node::Matrix { determinant, rows } => {
                let mut values = Vec::with_capacity(rows.len());
                for row in rows {
                    let mut cells = Vec::with_capacity(row.len());
                    for cell in row {
                        cells.push(self.value(cell)?);
                    }
                    values.push(cells);
                }
                if *determinant { Value::Order(vec![Value::Matrix(values)], Vec::new()) } else { Value::Matrix(values) }
            }
            Node::Ratio(parts) => {
                let mut values = Vec::with_capacity(parts.len());
                for part in parts {
                    values.push(self.expr(part)?);
                }
                Value::Ratio(values)
            }
            Node::Add(terms) if terms.iter().any(|term| matches!(term, Node::Infinity)) => {
                Value::Infinite { negative: false }
            }
            Node::Mul(factors)
                if factors.iter().any(|factor| matches!(factor, Node::Matrix { determinant: false, .. })) =>
            {
                self.scaled_matrix(factors)?
            }
            node => Value::Expr(self.expr(node)?),
        })
    }

    fn scaled_matrix(&mut self, factors: &[Node]) -> Result<Value, Stop> {
        let mut scale = Expr::integer(1);
        let mut matrix = None;
        for factor in factors {
            match self.value(factor)? {
                Value::Expr(expr) => scale = scale.times(&expr, self.budget)?,
                Value::Matrix(rows) if matrix.is_none() => matrix = Some(rows),
                _ => return Err(Stop::Undefined("a product of matrices")),
            }
        }
        let mut rows = matrix.unwrap_or_default();
        for cell in rows.iter_mut().flatten() {
            if let Value::Expr(expr) = cell {
                *expr = expr.times(&scale, self.budget)?;
            }
        }
        Ok(Value::Matrix(rows))
    }

    fn expr(&mut self, node: &Node) -> Result<Expr, Stop> {
        self.budget.spend(1)?;
        match node {
            Node::Number(value) => Ok(Expr::rational(value.clone())),
            Node::Numeral { digits, base } => Ok(Expr::rational(self.numeral(digits, base)?)),
            Node::Symbol(name) => Ok(Expr::variable(name)),
            Node::Pi => Ok(Expr::atom(Atom::Pi)),
            Node::Euler => Ok(Expr::atom(Atom::Euler)),
            Node::Imaginary => Ok(Expr::atom(Atom::Imaginary)),
            Node::Neg(inside) => Ok(self.expr(inside)?.neg()),
            Node::PlusMinus { plus, value } => {
                let value = self.expr(value)?;
                Ok(if *plus == self.plus { value } else { value.neg() })
            }
            Node::Add(terms) => {
                let mut sum = Expr::integer(0);
                for term in terms {
                    let term = self.expr(term)?;
                    sum = sum.add(&term, self.budget)?;
                }
                Ok(sum)
            }
            Node::Mul(factors) => {
                let mut product = Expr::integer(1);
                for factor in factors {
                    let factor = self.expr(factor)?;
                    product = product.times(&factor, self.budget)?;
                }
                Ok(product)
            }
            Node::Div(top, bottom) => {
                let (top, bottom) = (self.expr(top)?, self.expr(bottom)?);
                top.over(&bottom, self.budget)
            }
            Node::Pow(base, exponent) => {
                let base = self.expr(base)?;
                let exponent = self.expr(exponent)?;
                base.raised(&exponent, self.budget)
            }
            Node::Percent(inside) => self.expr(inside)?.times(&Expr::atom(Atom::Percent), self.budget),
            Node::Degree(inside) => self.expr(inside)?.times(&Expr::atom(Atom::Degree), self.budget),
            Node::Call(function, arguments) => {
                let mut values = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(self.expr(argument)?);
                }
                functions::apply(function, values, self.bare, self.budget)
            }
            Node::Ratio(parts) if parts.len() == 2 => {
                let (top, bottom) = (self.expr(&parts[0])?, self.expr(&parts[1])?);
                top.over(&bottom, self.budget)
            }
            Node::Point { name, items } if name == "C" && items.len() == 2 => {
                let arguments = vec![self.expr(&items[0])?, self.expr(&items[1])?];
                functions::apply(&Function::Binomial, arguments, self.bare, self.budget)
            }
            Node::Infinity => Err(Stop::Undefined("arithmetic with infinity")),
            _ => Err(Stop::Undefined("arithmetic with what is no number")),
        }
    }

    /// The number that a numeral stands for.
    fn numeral(&mut self, digits: &str, base: &str) -> Result<BigRational, Stop> {
        let radix: u32 = base.parse().map_err(|_| Stop::Undefined("a base that is no number"))?;
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        self.budget.number(6 * digits.len() as u64)?;
        let all = format!("{whole}{fraction}").to_lowercase();
        let value = BigInt::parse_bytes(all.as_bytes(), radix).ok_or(Stop::Undefined("digits of another base"))?;
        rational::reduced(value, BigInt::from(radix).pow(fraction.len() as u32), self.budget)
    }

    fn without(&mut self, all: Value, without: Value) -> Result<Value, Stop> {
        let reals = match &all {
            Value::Reals => true,
            Value::Tuple { open: '(', close: ')', items } => {
                matches!(items.as_slice(), [Value::Infinite { negative: true }, Value::Infinite { negative: false }])
            }
            _ => false,
        };
        let Value::Set(mut members) = without else { return Ok(Value::Order(vec![all, without], Vec::new())) };
        if !reals || members.len() > 16 {
            return Ok(Value::Order(vec![all, Value::Set(members)], Vec::new()));
        }
        // The points in order, by their signs of difference.
        let mut points: Vec<Expr> = Vec::new();
        for member in members.drain(..) {
            let Value::Expr(point) = member else { return Err(Stop::Undefined("a set of what is no number")) };
            let mut at = points.len();
            for (index, other) in points.iter().enumerate() {
                let difference = point.sub(other, self.budget)?;
                match enclosure::sign(&difference, self.budget)? {
                    Some(std::cmp::Ordering::Less) => {
                        at = index;
                        break;
                    }
                    Some(_) => {}
                    None => return Err(Stop::Undefined("points whose order is unknown")),
                }
            }
            points.insert(at, point);
        }
        let mut low = Value::Infinite { negative: true };
        let mut parts = Vec::with_capacity(points.len() + 1);
        for point in points {
            let point = Value::Expr(point);
            let items = vec![std::mem::replace(&mut low, point.clone()), point];
            parts.push(Value::Tuple { open: '(', close: ')', items });
        }
        parts.push(Value::Tuple { open: '(', close: ')', items: vec![low, Value::Infinite { negative: false }] });
        Ok(union(parts))
    }

    /// Refuses an approximation that is off by more than a hundredth.
    fn near(&mut self, exact: &Node, approximate: &Node) -> Result<(), Stop> {
        let (exact, approximate) = (self.expr(exact)?, self.expr(approximate)?);
        let off = exact.sub(&approximate, self.budget)?.times(&Expr::integer(100), self.budget)?;
        let room = exact.times(&exact, self.budget)?.sub(&off.times(&off, self.budget)?, self.budget)?;
        match enclosure::sign(&room, self.budget)? {
            Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal) => Ok(()),
            _ => Err(Stop::Undefined("an approximation of another number")),
        }
    }

    /// Refuses `5 = 6` within a chain of equations, where both are numbers that are apart for certain.
    fn agree(&mut self, left: &Node, right: &Node) -> Result<(), Stop> {
        let (Ok(left), Ok(right)) = (self.expr(left), self.expr(right)) else { return Ok(()) };
        let measured = |expr: &Expr| expr.any(&|atom| matches!(atom, Atom::Percent | Atom::Degree));
        if left.has_variables() || right.has_variables() || measured(&left) || measured(&right) {
            return Ok(());
        }
        let difference = left.sub(&right, self.budget)?;
        match enclosure::sign(&difference, self.budget)? {
            Some(std::cmp::Ordering::Less | std::cmp::Ordering::Greater) => {
                Err(Stop::Undefined("an equation that does not hold"))
            }
            _ => Ok(()),
        }
    }

    fn relation(&mut self, sides: &[Node], signs: &[Relation]) -> Result<Value, Stop> {
        let (Some(first), Some(last)) = (sides.first(), sides.last()) else {
            return Err(Stop::Undefined("a relation without sides"));
        };
        // `4\pi \approx 12.57` is 4 pi, `5 \approx 6` is nothing, `x \approx 12.57` is 12.57.
        if let Some(at) = signs.iter().position(|sign| *sign == Relation::Approximate)
            && (at > 0 || label(first).is_none())
        {
            let value = if at == 0 { self.value(first) } else { self.relation(&sides[..=at], &signs[..at]) }?;
            for other in &sides[at + 1..] {
                self.near(&sides[at], other)?;
            }
            return Ok(value);
        }
        let equality = |sign: &Relation| matches!(sign, Relation::Equal | Relation::Congruent | Relation::Approximate);
        if signs.iter().all(equality) {
            let (mut left, mut right) = (first, last);
            if label(right).is_some() && label(left).is_none() {
                std::mem::swap(&mut left, &mut right);
            }
            let label = label(left);
            for middle in sides.get(1..sides.len() - 1).unwrap_or_default() {
                self.agree(middle, right)?;
            }
            let right = self.value(right)?;
            // `C(10, 3) = 120` is calculated, `C(10, 3) = (10, 3)` is not.
            if let (Node::Point { name, .. }, None, Value::Expr(_)) = (left, &label, &right)
                && name == "C"
            {
                let left = Box::new(Value::Expr(self.expr(left)?));
                return Ok(Value::Equation { label, left, right: Box::new(right) });
            }
            // `P(A|B) = 1/2`: what is named need not be calculable.
            let left = match self.value(left) {
                Err(Stop::Undefined(_)) if label.is_some() => Value::Reals,
                other => other?,
            };
            return Ok(Value::Equation { label, left: Box::new(left), right: Box::new(right) });
        }
        if signs == [Relation::In] {
            return self.value(last);
        }
        let mut values = Vec::with_capacity(sides.len());
        for side in sides {
            values.push(self.value(side)?);
        }
        if let Some(set) = self.solved(&values, signs)? {
            return Ok(set);
        }
        Ok(Value::Order(values, signs.to_vec()))
    }

    /// The set of one variable's values that an inequality describes, where it is linear in it.
    fn solved(&mut self, values: &[Value], signs: &[Relation]) -> Result<Option<Value>, Stop> {
        let constant = |value: &Value| match value {
            Value::Expr(expr) => !expr.has_variables(),
            Value::Infinite { .. } => true,
            _ => false,
        };
        let interval = |low: Value, high: Value, closed: (bool, bool)| Value::Tuple {
            open: if closed.0 { '[' } else { '(' },
            close: if closed.1 { ']' } else { ')' },
            items: vec![low, high],
        };
        let infinite = |negative| Value::Infinite { negative };
        match (values, signs) {
            ([left, right], [sign]) => {
                let (Value::Expr(left), Value::Expr(right)) = (left, right) else { return Ok(None) };
                let difference = left.sub(right, self.budget)?;
                let Some((slope, offset)) = linear(&difference) else { return Ok(None) };
                let bound = offset.neg().over(&Expr::rational(slope.clone()), self.budget)?;
                let sign = if slope.is_negative() { sign.flipped() } else { *sign };
                let bound = Value::Expr(bound);
                Ok(Some(match sign {
                    Relation::Less => interval(infinite(true), bound, (false, false)),
                    Relation::LessEqual => interval(infinite(true), bound, (false, true)),
                    Relation::Greater => interval(bound, infinite(false), (false, false)),
                    Relation::GreaterEqual => interval(bound, infinite(false), (true, false)),
                    Relation::NotEqual => union(vec![
                        interval(infinite(true), bound.clone(), (false, false)),
                        interval(bound, infinite(false), (false, false)),
                    ]),
                    _ => return Ok(None),
                }))
            }
            ([low, Value::Expr(middle), high], [first, second]) if constant(low) && constant(high) => {
                if middle.as_variable().is_none() {
                    return Ok(None);
                }
                let (low, high) = (low.clone(), high.clone());
                let closed = |sign: &Relation| matches!(sign, Relation::LessEqual | Relation::GreaterEqual);
                let closed = (closed(first), closed(second));
                Ok(match (first, second) {
                    (Relation::Less | Relation::LessEqual, Relation::Less | Relation::LessEqual) => {
                        Some(interval(low, high, closed))
                    }
                    (Relation::Greater | Relation::GreaterEqual, Relation::Greater | Relation::GreaterEqual) => {
                        Some(interval(high, low, (closed.1, closed.0)))
                    }
                    _ => None,
                })
            }
            _ => Ok(None),
        }
    }
}

/// a and b of `a x + b` with one variable x and no other.
pub(super) fn linear(expr: &Expr) -> Option<(BigRational, Expr)> {
    if !expr.den.is_one() {
        return None;
    }
    let mut slope = None;
    let mut rest = expr.clone();
    for (mono, value) in &expr.num.terms {
        if let [(Atom::Variable(_), exponent)] = mono.as_slice()
            && exponent.is_one()
            && slope.is_none()
        {
            slope = Some(value.clone());
            rest.num.terms.remove(mono);
        }
    }
    let slope = slope.filter(|slope| !slope.is_zero())?;
    (!rest.has_variables()).then_some((slope, rest))
}

/// A union without unions in it; single points and sets become one set.
fn union(values: Vec<Value>) -> Value {
    let mut parts = Vec::with_capacity(values.len());
    let mut points = Vec::new();
    for value in values {
        match value {
            Value::Union(inner) => {
                for value in inner {
                    match value {
                        Value::Set(members) => points.extend(members),
                        other => parts.push(other),
                    }
                }
            }
            Value::Set(members) => points.extend(members),
            other => parts.push(other),
        }
    }
    if parts.is_empty() {
        return Value::Set(points);
    }
    if !points.is_empty() {
        parts.push(Value::Set(points));
    }
    if parts.len() == 1 { parts.swap_remove(0) } else { Value::Union(parts) }
}

fn ambiguous(node: &Node) -> bool {
    match node {
        Node::PlusMinus { .. } => true,
        Node::Neg(inside) | Node::Percent(inside) | Node::Degree(inside) => ambiguous(inside),
        Node::Add(nodes)
        | Node::Mul(nodes)
        | Node::Call(_, nodes)
        | Node::Tuple { items: nodes, .. }
        | Node::Point { items: nodes, .. }
        | Node::Relation(nodes, _) => nodes.iter().any(ambiguous),
        Node::Div(left, right) | Node::Pow(left, right) => ambiguous(left) || ambiguous(right),
        _ => false,
    }
}

/// The name that the left side of an equation gives to its value: `x`, `AB`, `f(x)`.
fn label(node: &Node) -> Option<String> {
    match node {
        Node::Symbol(name) => Some(name.clone()),
        Node::Euler => Some("e".to_owned()),
        Node::Imaginary => Some("i".to_owned()),
        Node::Mul(factors) => {
            let names: Option<Vec<String>> = factors.iter().map(label).collect();
            names.map(|names| names.concat())
        }
        Node::Call(Function::Named(name), arguments) => {
            let names: Option<Vec<String>> = arguments
                .iter()
                .map(|argument| match argument {
                    Node::Number(value) => Some(value.to_string()),
                    other => label(other),
                })
                .collect();
            names.map(|names| format!("{name}({})", names.join(",")))
        }
        // `P(A, B) = 1/2`
        Node::Point { name, items } => {
            let names: Option<Vec<String>> = items.iter().map(label).collect();
            names.map(|names| format!("{name}({})", names.join(",")))
        }
        Node::Tuple { items, .. } => {
            let names: Option<Vec<String>> = items.iter().map(label).collect();
            names.map(|names| format!("({})", names.join(",")))
        }
        _ => None,
    }
}

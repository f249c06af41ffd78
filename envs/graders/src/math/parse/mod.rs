//! From tokens to a formula: lists, relations, sets, sums and products. [`operand`] reads what stands between the signs,
//! [`call`] fractions, roots and functions, [`enclosed`] what stands in brackets.
//!
//! Nesting is bounded by [`super::budget::Limits::depth`], the formula that is read by what [`super::ast`] says, and
//! every token is consumed once, so reading is linear.

mod call;
mod enclosed;
mod operand;

use num_rational::BigRational;

use super::ast::{Child, Children, Node, Relation};
use super::budget::{Budget, Stop};
use super::lex::{self, Kind, Token};
use super::words;

/// A formula that was read, and what stood around it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) node: Node,
    /// Units behind numbers, under one name each and with their powers; words that only say what is counted are not
    /// among them.
    pub(super) units: Vec<String>,
    /// A logarithm names no base.
    pub(super) bare_log: bool,
}

/// Reads a text.
pub(super) fn read(text: &str, grouping: bool, budget: &mut Budget) -> Result<Reading, Stop> {
    let tokens = lex::tokens(text, grouping, budget)?;
    let mut parser = Parser {
        tokens,
        at: 0,
        end: text.len(),
        depth: 0,
        bars: 0,
        interval: false,
        units: Vec::new(),
        bare_log: false,
        budget,
    };
    let mut node = parser.list()?;
    // `1 \over 2` without braces.
    if !matches!(node, Node::List(_) | Node::Relation(..)) && parser.eat_command(&["over"]) {
        let bottom = parser.sum()?;
        node = parser.div(node, bottom)?;
    }
    while parser.eat_sign('.') || parser.eat_sign('$') || parser.eat_sign('}') && parser.at == parser.tokens.len() {}
    if parser.at < parser.tokens.len() {
        return Err(parser.expected("the end, an operator or a comma"));
    }
    Ok(Reading { node, units: parser.units, bare_log: parser.bare_log })
}

struct Parser<'b> {
    tokens: Vec<Token>,
    at: usize,
    end: usize,
    depth: u32,
    /// Open `|`: the next one closes.
    bars: u32,
    /// Directly within a `[` or a `]` that opens: a `[` may close.
    interval: bool,
    units: Vec<String>,
    bare_log: bool,
    budget: &'b mut Budget,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn peek_at(&self, ahead: usize) -> Option<&Kind> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    fn spaced(&self) -> bool {
        self.tokens.get(self.at).is_some_and(|token| token.spaced)
    }

    fn expected(&self, expected: &'static str) -> Stop {
        Stop::Syntax { at: self.tokens.get(self.at).map_or(self.end, |token| token.at), expected }
    }

    fn sees_sign(&self, sign: char) -> bool {
        matches!(self.peek(), Some(Kind::Sign(c)) if *c == sign)
    }

    fn eat_sign(&mut self, sign: char) -> bool {
        let found = self.sees_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn sees_command(&self, names: &[&str]) -> bool {
        matches!(self.peek(), Some(Kind::Command(name)) if names.contains(&name.as_str()))
    }

    fn eat_command(&mut self, names: &[&str]) -> bool {
        let found = self.sees_command(names);
        self.at += usize::from(found);
        found
    }

    fn child(&self, node: Node) -> Result<Child, Stop> {
        Child::new(node, self.budget)
    }

    fn children(&self, nodes: Vec<Node>) -> Result<Children, Stop> {
        Children::new(nodes, self.budget)
    }

    fn neg(&self, node: Node) -> Result<Node, Stop> {
        Ok(Node::Neg(self.child(node)?))
    }

    fn div(&self, top: Node, bottom: Node) -> Result<Node, Stop> {
        Ok(Node::Div(self.child(top)?, self.child(bottom)?))
    }

    fn pow(&self, base: Node, exponent: Node) -> Result<Node, Stop> {
        Ok(Node::Pow(self.child(base)?, self.child(exponent)?))
    }

    /// A percentage of a percentage is nothing that anyone means.
    fn percent(&self, node: Node) -> Result<Node, Stop> {
        if matches!(node, Node::Percent(_)) {
            return Err(self.expected("one sign of percent"));
        }
        Ok(Node::Percent(self.child(node)?))
    }

    fn times(&self, left: Node, right: Node) -> Result<Node, Stop> {
        if let Node::Mul(mut factors) = left {
            factors.push(right, self.budget)?;
            return Ok(Node::Mul(factors));
        }
        Ok(Node::Mul(self.children(vec![left, right])?))
    }

    /// What separates the members of a list outside brackets.
    fn separator(&mut self, inner: bool) -> bool {
        let mut found = false;
        loop {
            let separates = match self.peek() {
                Some(Kind::Sign(',' | ';')) => true,
                Some(Kind::Command(name)) => {
                    !inner && matches!(name.as_str(), "land" | "lor" | "wedge" | "vee" | "\\" | "newline")
                }
                Some(Kind::Text(text)) => {
                    let text = text.trim_matches([' ', ',', ';']);
                    matches!(text, "and" | "or" | "") && (found || !text.is_empty())
                }
                Some(Kind::Word(word)) => matches!(word.as_str(), "and" | "or"),
                _ => false,
            };
            if !separates {
                return found;
            }
            found = true;
            self.at += 1;
        }
    }

    fn list(&mut self) -> Result<Node, Stop> {
        let mut items = vec![self.relation()?];
        while self.separator(false) {
            // `1, 2,` and a final point.
            if self.at == self.tokens.len() || self.sees_sign('.') || self.sees_sign('}') {
                break;
            }
            items.push(self.relation()?);
        }
        Ok(if items.len() == 1 { items.swap_remove(0) } else { Node::List(self.children(items)?) })
    }

    fn relation_sign(&mut self) -> Option<Relation> {
        let relation = match self.peek()? {
            Kind::Sign('=') => Relation::Equal,
            Kind::Sign('<') => Relation::Less,
            Kind::Sign('>') => Relation::Greater,
            Kind::Sign('\u{2248}') => Relation::Approximate,
            Kind::Command(name) => match name.as_str() {
                "le" | "leq" | "leqslant" | "leqq" => Relation::LessEqual,
                "ge" | "geq" | "geqslant" | "geqq" => Relation::GreaterEqual,
                "lt" => Relation::Less,
                "gt" => Relation::Greater,
                "ne" | "neq" => Relation::NotEqual,
                "in" => Relation::In,
                "equiv" => Relation::Congruent,
                "approx" | "simeq" => Relation::Approximate,
                _ => return None,
            },
            _ => return None,
        };
        self.at += 1;
        // `:=` and `&=` of displayed equations.
        while self.eat_sign('&') {}
        Some(relation)
    }

    fn relation(&mut self) -> Result<Node, Stop> {
        while self.eat_sign('&') {}
        // `= 5` and `\approx 5` leave out what was asked for.
        let _ = self.eat_sign('=') || self.eat_sign('\u{2248}') || self.eat_command(&["approx"]);
        let mut sides = vec![self.union()?];
        let mut signs = Vec::new();
        loop {
            while self.sees_sign('&') || (self.sees_sign(':') && matches!(self.peek_at(1), Some(Kind::Sign('=')))) {
                self.at += 1;
            }
            let Some(sign) = self.relation_sign() else { break };
            signs.push(sign);
            sides.push(self.union()?);
        }
        Ok(if signs.is_empty() { sides.swap_remove(0) } else { Node::Relation(self.children(sides)?, signs) })
    }

    fn union(&mut self) -> Result<Node, Stop> {
        let mut node = self.ratio()?;
        loop {
            if self.eat_command(&["cup", "bigcup"])
                || (matches!(self.peek(), Some(Kind::Word(w)) if w == "U") && {
                    self.at += 1;
                    true
                })
            {
                let next = self.ratio()?;
                node = match node {
                    Node::Union(mut parts) => {
                        parts.push(next, self.budget)?;
                        Node::Union(parts)
                    }
                    first => Node::Union(self.children(vec![first, next])?),
                };
            } else if self.eat_command(&["cap"]) {
                let next = self.ratio()?;
                node = Node::Intersection(self.children(vec![node, next])?);
            } else if self.eat_command(&["setminus", "backslash", "smallsetminus"]) {
                let next = self.ratio()?;
                node = Node::Minus(self.child(node)?, self.child(next)?);
            } else {
                return Ok(node);
            }
        }
    }

    fn ratio(&mut self) -> Result<Node, Stop> {
        let first = self.sum()?;
        let mut parts = vec![first];
        while (self.sees_sign(':') && !matches!(self.peek_at(1), Some(Kind::Sign('='))))
            || self.sees_command(&["colon"])
            || self.sees_to()
        {
            self.at += 1;
            parts.push(self.sum()?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Ratio(self.children(parts)?) })
    }

    /// `3 to 4`, `3 \text{ to } 4`
    fn sees_to(&self) -> bool {
        matches!(self.peek(), Some(Kind::Word(word) | Kind::Text(word)) if word.trim() == "to")
    }

    /// A sign before a term: negative, or one of `\pm` and `\mp`.
    fn sign(&mut self) -> Option<Sign> {
        let sign = match self.peek()? {
            Kind::Sign('+') => {
                // `+-` and `+/-`
                if matches!(self.peek_at(1), Some(Kind::Sign('/'))) && matches!(self.peek_at(2), Some(Kind::Sign('-')))
                {
                    self.at += 3;
                    return Some(Sign::Either { plus: true });
                }
                Sign::Plus
            }
            Kind::Sign('-') => Sign::Minus,
            Kind::Command(name) if name == "pm" => Sign::Either { plus: true },
            Kind::Command(name) if name == "mp" => Sign::Either { plus: false },
            _ => return None,
        };
        self.at += 1;
        Some(sign)
    }

    fn sum(&mut self) -> Result<Node, Stop> {
        let mut terms = Vec::new();
        loop {
            let mut negative = false;
            let mut either = None;
            let mut signed = false;
            while let Some(sign) = self.sign() {
                self.budget.spend(1)?;
                signed = true;
                match sign {
                    Sign::Plus => {}
                    Sign::Minus => negative = !negative,
                    Sign::Either { plus } => either = Some(plus),
                }
            }
            if !signed && !terms.is_empty() {
                break;
            }
            let mut term = self.product()?;
            if negative {
                term = self.neg(term)?;
            }
            if let Some(plus) = either {
                term = Node::PlusMinus { plus, value: self.child(term)? };
            }
            terms.push(term);
        }
        Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Node::Add(self.children(terms)?) })
    }

    /// `USD 5`, `US\$5`
    fn currency(&mut self) -> bool {
        let found = matches!(self.peek(), Some(Kind::Word(word)) if matches!(word.as_str(), "USD" | "US"))
            && matches!(self.peek_at(1), Some(Kind::Number(_) | Kind::Sign('$')))
            || matches!(self.peek(), Some(Kind::Word(word)) if word == "US")
                && matches!(self.peek_at(1), Some(Kind::Command(name)) if name == "$");
        self.at += usize::from(found);
        found
    }

    /// `5€`: a currency that is written with a sign, before or behind its number.
    fn currency_sign(&mut self) -> Option<&'static str> {
        let unit = match self.peek()? {
            Kind::Sign('\u{20ac}') => "euro",
            Kind::Sign('\u{a3}') => "pound sterling",
            Kind::Sign('\u{a5}') => "yen",
            Kind::Sign('\u{20b9}') => "rupee",
            _ => return None,
        };
        self.at += 1;
        Some(unit)
    }

    fn product(&mut self) -> Result<Node, Stop> {
        // Dollars stand before their number.
        while self.eat_sign('$') || self.eat_command(&["$"]) || self.currency() {
            if self.units.last().is_none_or(|unit| unit != "dollar") && self.at < self.tokens.len() {
                self.units.push("dollar".to_owned());
            }
        }
        if let Some(unit) = self.currency_sign() {
            self.units.push(unit.to_owned());
        }
        let first = self.factor()?;
        let (mut node, rest) = self.point(first)?;
        if let Some(rest) = rest {
            node = self.times(node, rest)?;
        }
        loop {
            if let Some(unit) = self.currency_sign() {
                self.units.push(unit.to_owned());
            } else if self.eat_sign('*') || self.eat_command(&["cdot", "times", "ast", "bullet"]) {
                let negative = self.eat_sign('-');
                let next = self.factor()?;
                let (next, rest) = self.point(next)?;
                let next = if negative { self.neg(next)? } else { next };
                node = self.times(node, next)?;
                if let Some(rest) = rest {
                    node = self.times(node, rest)?;
                }
            } else if self.eat_sign('/') || self.eat_command(&["div"]) {
                let negative = self.eat_sign('-');
                let next = self.factor()?;
                let (next, rest) = self.point(next)?;
                node = self.div(node, next)?;
                if negative {
                    node = self.neg(node)?;
                }
                if let Some(rest) = rest {
                    node = self.times(node, rest)?;
                }
            } else if self.unit(&mut node)? {
            } else if self.starts_operand() {
                let adjacent = matches!(node, Node::Number(_)) && matches!(self.peek(), Some(Kind::Number(_)));
                if adjacent {
                    node = self.mixed(node)?;
                    continue;
                }
                // `\frac{1}{2}1` has lost a brace or a sign.
                if matches!(node, Node::Div(..)) && matches!(self.peek(), Some(Kind::Number(_))) {
                    return Err(self.expected("an operator between two numbers"));
                }
                let before = self.tokens.get(self.at).map(|token| token.kind.clone());
                let next = self.factor()?;
                let (next, rest) = self.point(next)?;
                node = match (&node, &next) {
                    // `3\frac12`: a whole number and a proper fraction of two numerals.
                    (Node::Number(whole), Node::Div(top, bottom))
                        if is_fraction(before.as_ref()) && whole.is_integer() && proper(top, bottom) =>
                    {
                        Node::Add(self.children(vec![node, next])?)
                    }
                    _ => self.times(node, next)?,
                };
                if let Some(rest) = rest {
                    node = self.times(node, rest)?;
                }
            } else {
                return Ok(node);
            }
        }
    }

    /// `P(1, 2)`, the P read already; what else may stand behind it is handed back beside it.
    fn point(&mut self, node: Node) -> Result<(Node, Option<Node>), Stop> {
        let Node::Symbol(name) = &node else { return Ok((node, None)) };
        if !names_point(name) || !self.sees_sign('(') || self.spaced() {
            return Ok((node, None));
        }
        Ok(match self.factor()? {
            Node::Tuple { open: '(', close: ')', items } if items.len() > 1 => {
                (Node::Point { name: name.clone(), items }, None)
            }
            other => (node, Some(other)),
        })
    }

    /// `3 1/2`, the 3 read already.
    fn mixed(&mut self, whole: Node) -> Result<Node, Stop> {
        let top = self.factor()?;
        if self.eat_sign('/') {
            let bottom = self.factor()?;
            if proper(&top, &bottom) {
                let fraction = self.div(top, bottom)?;
                return Ok(Node::Add(self.children(vec![whole, fraction])?));
            }
        }
        Err(self.expected("an operator between two numbers"))
    }

    /// A unit behind an operand, taken away; degrees and percent stay as such.
    fn unit(&mut self, node: &mut Node) -> Result<bool, Stop> {
        let word = match self.peek() {
            Some(Kind::Text(text)) => {
                let text = text.trim();
                if matches!(text, "and" | "or" | ", and" | ", or" | "to") || operand::is_operand(text) {
                    return Ok(false);
                }
                // `7\text{!}` and `7\text{ -2}` are no 7.
                let second = text.chars().nth(1).is_none_or(|c| !c.is_ascii_digit());
                if text.starts_with(['!', '^', '+', '*', '/', '=', '<', '>', '_', '|'])
                    || text.starts_with('-') && !second
                {
                    return Err(self.expected("a unit in words"));
                }
                // `5 \text{ or 7}` is no 5: only a power may be a number in a unit.
                let power = |at: usize| at > 0 && matches!(text.as_bytes()[at - 1], b'^' | b'{' | b'-');
                if text.bytes().enumerate().any(|(at, byte)| byte.is_ascii_digit() && !power(at)) {
                    return Err(self.expected("a unit without numbers"));
                }
                text.to_owned()
            }
            Some(Kind::Word(word)) if words::counted(word) => word.clone(),
            _ => return Ok(false),
        };
        let (factor, word) = words::multiplied(&word);
        if words::changes(word) {
            return Err(self.expected("a unit that leaves the number as it is"));
        }
        self.at += 1;
        if factor > 1 {
            let factor = BigRational::from_integer(factor.into());
            *node = match std::mem::replace(node, Node::Infinity) {
                Node::Number(value) => {
                    self.budget.number(value.numer().bits() + value.denom().bits() + factor.numer().bits())?;
                    Node::Number(value * factor)
                }
                other => self.times(other, Node::Number(factor))?,
            };
            if word.is_empty() {
                return Ok(true);
            }
        }
        match word {
            "degree" | "degrees" | "deg" | "^\\circ" => {
                *node = Node::Degree(self.child(std::mem::replace(node, Node::Infinity))?);
                return Ok(true);
            }
            "percent" | "\\%" | "%" => {
                *node = self.percent(std::mem::replace(node, Node::Infinity))?;
                return Ok(true);
            }
            _ => {}
        }
        let mut name = words::unit(word).map(str::to_owned);
        // `square inches`, `sq. ft`
        if let Some((first, rest)) = word.split_once(' ')
            && let Some(unit) = words::unit(rest)
        {
            let power = if first.starts_with("sq") {
                "^2"
            } else if first.starts_with("cu") {
                "^3"
            } else {
                ""
            };
            name = Some(format!("{unit}{power}"));
        }
        if self.eat_sign('^') {
            let power = self.argument()?;
            if let (Some(name), Node::Number(power)) = (&mut name, power) {
                name.push('^');
                name.push_str(&power.to_string());
            }
        }
        self.units.extend(name);
        Ok(true)
    }
}

enum Sign {
    Plus,
    Minus,
    Either { plus: bool },
}

/// A capital, perhaps with an index or primes.
fn names_point(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|letter| letter.is_ascii_uppercase())
        && matches!(letters.next(), None | Some('_' | '\''))
}

fn is_fraction(token: Option<&Kind>) -> bool {
    matches!(token, Some(Kind::Command(name)) if operand::FRACTIONS.contains(&name.as_str()))
}

/// Whether two nodes are whole numbers and the first is less.
fn proper(top: &Node, bottom: &Node) -> bool {
    match (top, bottom) {
        (Node::Number(top), Node::Number(bottom)) => top.is_integer() && bottom.is_integer() && top < bottom,
        _ => false,
    }
}

//! Numbers, symbols, groups, fractions, roots, functions, matrices, and what stands behind them: powers, factorials,
//! percent and degree signs.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};

use super::super::ast::{Children, Function, Node};
use super::super::budget::Stop;
use super::super::lex::{self, Kind};
use super::super::rational;
use super::super::words;
use super::Parser;

pub(super) const FRACTIONS: [&str; 7] = ["frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac", "flatfrac"];
const ACCENTS: [&str; 12] = [
    "overline",
    "vec",
    "hat",
    "widehat",
    "tilde",
    "bar",
    "overrightarrow",
    "overleftrightarrow",
    "dot",
    "mathcal",
    "mathscr",
    "mathfrak",
];
/// Commands that are neither an operand nor matter before one.
const IGNORED: [&str; 5] = ["angle", "measuredangle", "triangle", "bigtriangleup", "displaylimits"];
/// Commands between operands.
const OPERATORS: [&str; 44] = [
    "cdot",
    "times",
    "ast",
    "bullet",
    "div",
    "pm",
    "mp",
    "le",
    "leq",
    "leqslant",
    "leqq",
    "ge",
    "geq",
    "geqslant",
    "geqq",
    "lt",
    "gt",
    "ne",
    "neq",
    "in",
    "equiv",
    "approx",
    "simeq",
    "cup",
    "bigcup",
    "cap",
    "setminus",
    "backslash",
    "smallsetminus",
    "colon",
    "land",
    "lor",
    "wedge",
    "vee",
    "\\",
    "newline",
    "end",
    "choose",
    "over",
    "mid",
    "}",
    "pmod",
    "bmod",
    "mod",
];

/// Whether the words of a `\text{}` are a symbol or a function, and no unit.
pub(super) fn is_operand(text: &str) -> bool {
    let text = text.trim();
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => letter.is_ascii_uppercase() || matches!(letter, 'i' | 'e' | 'x' | 'y' | 'z'),
        _ => Function::named(text).is_some(),
    }
}

impl Parser<'_> {
    pub(super) fn starts_operand(&self) -> bool {
        match self.peek() {
            Some(Kind::Number(_) | Kind::Numeral(..)) => true,
            Some(Kind::Text(text)) => is_operand(text),
            Some(Kind::Word(word)) => !matches!(word.as_str(), "and" | "or" | "U" | "to"),
            Some(Kind::Command(name)) => {
                !OPERATORS.contains(&name.as_str())
                    && !matches!(
                        name.as_str(),
                        "%" | "degree" | "circ" | "rangle" | "rvert" | "rVert" | "rfloor" | "rceil"
                    )
                    && (name != "|" || self.bars == 0)
            }
            Some(Kind::Sign('[')) => !self.interval_ends(),
            Some(Kind::Sign(c)) => matches!(c, '(' | '{') || (*c == '|' && self.bars == 0),
            None => false,
        }
    }

    /// An operand with everything behind it.
    pub(super) fn factor(&mut self) -> Result<Node, Stop> {
        self.depth += 1;
        self.budget.spend(1)?;
        if self.depth > self.budget.limits.depth {
            return Err(Stop::Budget("nesting"));
        }
        let base = self.primary()?;
        let node = self.behind(base)?;
        self.depth -= 1;
        Ok(node)
    }

    fn behind(&mut self, mut node: Node) -> Result<Node, Stop> {
        loop {
            if self.eat_sign('^') {
                if self.degree_mark() {
                    node = Node::Degree(self.child(node)?);
                    continue;
                }
                if self.eat_command(&["prime"]) {
                    node = primed(node);
                    continue;
                }
                let exponent = self.argument()?;
                node = self.pow(node, exponent)?;
            } else if self.eat_command(&["degree", "circ"]) {
                node = Node::Degree(self.child(node)?);
            } else if self.eat_sign('%') || self.eat_command(&["%"]) {
                node = self.percent(node)?;
            } else if self.sees_sign('!') {
                self.at += 1;
                node = Node::Call(Function::Factorial, self.children(vec![node])?);
            } else if self.eat_sign('\'') {
                node = primed(node);
            } else if self.eat_command(&["pmod", "bmod", "mod"]) {
                let modulus = self.argument()?;
                node = Node::Call(Function::Mod, self.children(vec![node, modulus])?);
            } else if self.sees_sign('_') {
                self.at += 1;
                let below = self.raw()?;
                node = match node {
                    Node::Symbol(name) => Node::Symbol(format!("{name}_{below}")),
                    Node::Number(value) if value.is_integer() && lex::base(&below).is_some() => {
                        let base = lex::base(&below).unwrap_or_default();
                        if !value.to_string().chars().all(|c| c.to_digit(36).is_some_and(|digit| digit < base)) {
                            return Err(self.expected("digits that are below their base"));
                        }
                        Node::Numeral { digits: value.to_string(), base: base.to_string() }
                    }
                    Node::Number(_) => return Err(self.expected("a base from 2 to 36")),
                    other => other,
                };
            } else {
                return Ok(node);
            }
            self.budget.spend(1)?;
        }
    }

    /// `\circ` or `{\circ}` behind a `^`.
    fn degree_mark(&mut self) -> bool {
        if self.eat_command(&["circ", "degree"]) {
            return true;
        }
        let braced = self.sees_sign('{')
            && matches!(self.peek_at(1), Some(Kind::Command(name)) if name == "circ")
            && matches!(self.peek_at(2), Some(Kind::Sign('}')));
        self.at += if braced { 3 } else { 0 };
        braced
    }

    /// What a power, a fraction's half or a root takes: a group, or one operand.
    pub(super) fn argument(&mut self) -> Result<Node, Stop> {
        let negative = self.eat_sign('-');
        self.depth += 1;
        if self.depth > self.budget.limits.depth {
            return Err(Stop::Budget("nesting"));
        }
        let node = self.primary()?;
        // `2^3^4` is a tower.
        let node = if self.sees_sign('^') && negative || self.sees_sign('^') && !self.degrees_follow() {
            self.at += 1;
            let exponent = self.argument()?;
            self.pow(node, exponent)?
        } else {
            node
        };
        self.depth -= 1;
        if negative { self.neg(node) } else { Ok(node) }
    }

    fn degrees_follow(&self) -> bool {
        matches!(self.peek_at(1), Some(Kind::Command(name)) if name == "circ" || name == "prime")
            || (matches!(self.peek_at(1), Some(Kind::Sign('{')))
                && matches!(self.peek_at(2), Some(Kind::Command(name)) if name == "circ"))
    }

    /// One half of a `\frac`: a group, or a single digit.
    pub(super) fn half(&mut self) -> Result<Node, Stop> {
        if let Some(token) = self.tokens.get_mut(self.at)
            && let Kind::Number(digits) = &mut token.kind
            && digits.len() > 1
            && !digits.contains('.')
        {
            let digit = digits.remove(0);
            token.at += 1;
            token.spaced = false;
            return Ok(integer(i64::from(digit.to_digit(10).unwrap_or_default())));
        }
        self.argument_plain()
    }

    pub(super) fn argument_plain(&mut self) -> Result<Node, Stop> {
        self.depth += 1;
        if self.depth > self.budget.limits.depth {
            return Err(Stop::Budget("nesting"));
        }
        let node = self.primary()?;
        self.depth -= 1;
        Ok(node)
    }

    /// The text of a subscript.
    pub(super) fn raw(&mut self) -> Result<String, Stop> {
        let mut depth = 0_u32;
        let mut text = String::new();
        loop {
            let Some(token) = self.tokens.get(self.at) else {
                return if depth == 0 && !text.is_empty() { Ok(text) } else { Err(self.expected("a subscript")) };
            };
            match &token.kind {
                Kind::Sign('{') => depth += 1,
                Kind::Sign('}') => {
                    if depth == 0 {
                        return Err(self.expected("a subscript"));
                    }
                    depth -= 1;
                }
                Kind::Sign(c) => text.push(*c),
                Kind::Number(word) | Kind::Word(word) | Kind::Command(word) | Kind::Text(word) => {
                    text.push_str(word.trim());
                }
                Kind::Numeral(digits, base) => text.extend([digits.as_str(), "_", base.as_str()]),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(text);
            }
        }
    }

    fn primary(&mut self) -> Result<Node, Stop> {
        let Some(token) = self.tokens.get(self.at) else { return Err(self.expected("a number or an expression")) };
        match token.kind.clone() {
            Kind::Number(digits) => {
                self.at += 1;
                let value = self.number(&digits)?;
                self.repeating(value, &digits)
            }
            Kind::Numeral(digits, base) => {
                self.at += 1;
                Ok(Node::Numeral { digits, base })
            }
            Kind::Word(word) => self.word(&word),
            Kind::Text(text) => {
                self.at += 1;
                let text = text.trim();
                match text {
                    "i" => Ok(Node::Imaginary),
                    "e" => Ok(Node::Euler),
                    "" => self.primary_again(),
                    _ => match (Function::named(text), words::spelled(&text.to_lowercase())) {
                        (Some(function), _) => self.call(function),
                        (None, Some(value)) => Ok(Node::Number(BigRational::from_integer(value.into()))),
                        (None, None) => Ok(Node::Symbol(text.to_owned())),
                    },
                }
            }
            Kind::Command(name) => {
                self.at += 1;
                self.command(&name)
            }
            Kind::Sign(c) => match c {
                '(' | '[' | ']' => {
                    self.at += 1;
                    self.bracketed(c)
                }
                '_' => self.choices(),
                '{' if matches!(self.peek_at(1), Some(Kind::Sign('}')))
                    && matches!(self.peek_at(2), Some(Kind::Sign('_' | '^'))) =>
                {
                    self.at += 2;
                    self.choices()
                }
                '{' => {
                    self.at += 1;
                    self.group()
                }
                '|' if self.bars == 0 => {
                    self.at += 1;
                    self.bars = 1;
                    let inside = self.sum();
                    self.bars = 0;
                    let inside = inside?;
                    if !self.eat_sign('|') {
                        return Err(self.expected("`|`"));
                    }
                    Ok(Node::Call(Function::Abs, self.children(vec![inside])?))
                }
                '?' | '@' | '#' | '&' | '"' | '`' => Err(self.expected("a number or an expression")),
                c if c.is_alphabetic() => {
                    self.at += 1;
                    Ok(Node::Symbol(c.to_string()))
                }
                _ => Err(self.expected("a number or an expression")),
            },
        }
    }

    fn primary_again(&mut self) -> Result<Node, Stop> {
        self.depth += 1;
        if self.depth > self.budget.limits.depth {
            return Err(Stop::Budget("nesting"));
        }
        let node = self.primary()?;
        self.depth -= 1;
        Ok(node)
    }

    /// A decimal as an exact fraction.
    fn number(&mut self, text: &str) -> Result<BigRational, Stop> {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent: i64 = exponent.trim_start_matches('+').parse().map_err(|_| Stop::Budget("bits of a number"))?;
        let scale = exponent - fraction.len() as i64;
        self.budget.number(4 * (whole.len() + fraction.len()) as u64 + 4 * scale.unsigned_abs())?;
        let digits = format!("{whole}{fraction}");
        let value = digits.parse::<BigInt>().unwrap_or_else(|_| BigInt::zero());
        let power = BigInt::from(10).pow(scale.unsigned_abs() as u32);
        if scale < 0 {
            rational::reduced(value, power, self.budget)
        } else {
            Ok(BigRational::from_integer(value * power))
        }
    }

    /// `{}_{10}C_3`, from the sign in front of the 10.
    fn choices(&mut self) -> Result<Node, Stop> {
        self.at += 1;
        let all = self.argument_plain()?;
        if !matches!(self.peek(), Some(Kind::Word(word) | Kind::Text(word)) if word.trim() == "C") {
            return Err(self.expected("a `C` behind the number that is chosen from"));
        }
        self.at += 1;
        if !self.eat_sign('_') {
            return Err(self.expected("`_` and the number that is chosen"));
        }
        let chosen = self.argument_plain()?;
        Ok(Node::Call(Function::Binomial, self.children(vec![all, chosen])?))
    }

    /// The digits of `0.(3)` behind its point. `0.1(6)` is a product for most who write it.
    fn parenthesised(&self) -> Option<&str> {
        let close = [Kind::Sign('.'), Kind::Sign('(')];
        let joined = |ahead: usize| self.tokens.get(self.at + ahead).is_some_and(|token| !token.spaced);
        let written = (0..4).all(joined)
            && close.iter().enumerate().all(|(ahead, sign)| self.peek_at(ahead) == Some(sign))
            && self.peek_at(3) == Some(&Kind::Sign(')'));
        match self.peek_at(2) {
            Some(Kind::Number(digits)) if written && digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits),
            _ => None,
        }
    }

    /// `0.1\overline{6}`, `0.(3)`
    fn repeating(&mut self, value: BigRational, written: &str) -> Result<Node, Stop> {
        if !written.contains(['.', 'e'])
            && let Some(period) = self.parenthesised().map(str::to_owned)
        {
            self.at += 4;
            return self.period(value, 0, &period);
        }
        let mut ahead = 0;
        let mut places = written.split_once('.').map(|(_, fraction)| fraction.len());
        if places.is_none() && matches!(self.peek(), Some(Kind::Sign('.'))) {
            ahead = 1;
            places = Some(0);
        }
        let overline = matches!(self.peek_at(ahead), Some(Kind::Command(name)) if matches!(name.as_str(), "overline" | "bar" | "dot"))
            && matches!(self.peek_at(ahead + 1), Some(Kind::Sign('{')))
            && matches!(self.peek_at(ahead + 3), Some(Kind::Sign('}')));
        let dotted = matches!(self.peek_at(ahead), Some(Kind::Command(name)) if name == "dot");
        let (Some(places), true, Some(Kind::Number(period))) = (places, overline, self.peek_at(ahead + 2).cloned())
        else {
            return Ok(Node::Number(value));
        };
        // A dot stands on one digit.
        if period.contains(['.', 'e']) || dotted && period.len() > 1 {
            return Ok(Node::Number(value));
        }
        self.at += ahead + 4;
        self.period(value, places, &period)
    }

    /// A number and digits that repeat behind so many places.
    fn period(&mut self, value: BigRational, places: usize, period: &str) -> Result<Node, Stop> {
        self.budget.number(4 * (places + period.len()) as u64)?;
        let nines = BigInt::from(10).pow(period.len() as u32) - BigInt::one();
        let shift = BigInt::from(10).pow(places as u32);
        let period = period.parse::<BigInt>().unwrap_or_else(|_| BigInt::zero());
        let period = rational::reduced(period, nines * shift, self.budget)?;
        Ok(Node::Number(rational::plus(&value, &period, self.budget)?))
    }

    fn word(&mut self, word: &str) -> Result<Node, Stop> {
        self.at += 1;
        let known = match word {
            "pi" => Some(Node::Pi),
            "inf" | "infinity" | "infty" | "oo" | "Infinity" => Some(Node::Infinity),
            "sqrt" => return self.root(),
            "frac" => return self.fraction(),
            "i" => Some(Node::Imaginary),
            "e" => Some(Node::Euler),
            _ => None,
        };
        if let Some(node) = known {
            return Ok(node);
        }
        if let Some(function) = Function::named(word) {
            return self.call(function);
        }
        // `sinx`, `pir`: a name and one letter.
        let split = if words::starts_with_function(word) {
            word.len() - 1
        } else {
            word.chars().next().map_or(1, char::len_utf8)
        };
        let (first, rest) = word.split_at(split);
        if !rest.is_empty() {
            self.at -= 1;
            if let Some(token) = self.tokens.get_mut(self.at) {
                token.kind = Kind::Word(rest.to_owned());
                token.at += split;
                token.spaced = false;
            }
        }
        if split > 1 {
            return match Function::named(first) {
                Some(function) => self.call(function),
                None => Ok(Node::Pi),
            };
        }
        let braced = self.sees_sign('{') && matches!(self.peek_at(1), Some(Kind::Sign('(')));
        if matches!(first, "f" | "g" | "h") && (braced || self.sees_sign('(') && !self.spaced()) {
            let arguments = match self.argument_plain()? {
                Node::Tuple { items, .. } => items,
                single => self.children(vec![single])?,
            };
            return Ok(Node::Call(Function::Named(first.to_owned()), arguments));
        }
        Ok(match first {
            "i" => Node::Imaginary,
            "e" => Node::Euler,
            _ => Node::Symbol(first.to_owned()),
        })
    }

    fn command(&mut self, name: &str) -> Result<Node, Stop> {
        if FRACTIONS.contains(&name) {
            return self.fraction();
        }
        if ACCENTS.contains(&name) {
            return Ok(Node::Symbol(format!("{name}:{}", self.raw()?)));
        }
        if IGNORED.contains(&name) {
            return self.primary_again();
        }
        if let Some(function) = Function::named(name) {
            return self.call(function);
        }
        match name {
            "sqrt" => self.root(),
            "pi" => Ok(Node::Pi),
            "infty" => Ok(Node::Infinity),
            "imath" | "jmath" => Ok(Node::Imaginary),
            "reals" | "R" | "Reals" => Ok(Node::Reals),
            "mathbb" => {
                let set = self.raw()?;
                Ok(if set == "R" { Node::Reals } else { Node::Symbol(format!("set {set}")) })
            }
            "emptyset" | "varnothing" => Ok(Node::Set(Children::default())),
            "binom" | "dbinom" | "tbinom" => {
                let top = self.half()?;
                let bottom = self.half()?;
                Ok(Node::Call(Function::Binomial, self.children(vec![top, bottom])?))
            }
            "{" | "lbrace" => self.set(),
            "lvert" | "lVert" | "|" | "lfloor" | "lceil" | "vert" => self.fence(name),
            "langle" => self.angle(),
            "begin" => self.matrix(),
            "$" | "#" => self.primary_again(),
            "%" | "\\" | "}" | "&" | "end" => Err(self.expected("a number or an expression")),
            name if OPERATORS.contains(&name) => Err(self.expected("a number or an expression")),
            // Greek letters, dots and whatever else stands for itself.
            _ => Ok(Node::Symbol(name.to_owned())),
        }
    }
}

pub(super) fn integer(value: i64) -> Node {
    Node::Number(BigRational::from_integer(value.into()))
}

fn primed(node: Node) -> Node {
    match node {
        Node::Symbol(name) => Node::Symbol(format!("{name}'")),
        other => other,
    }
}

//! What a formula says, before anything is calculated.

use num_rational::BigRational;

/// One formula.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Number(BigRational),
    /// Digits in a base, compared as a numeral: `1011_2` is the answer, 11 is the question.
    Numeral {
        digits: String,
        base: String,
    },
    Symbol(String),
    Pi,
    Euler,
    Imaginary,
    Infinity,
    /// The real numbers.
    Reals,
    Neg(Box<Node>),
    Add(Vec<Node>),
    Mul(Vec<Node>),
    Div(Box<Node>, Box<Node>),
    Pow(Box<Node>, Box<Node>),
    /// `plus` tells which sign it takes when every `\pm` takes plus.
    PlusMinus {
        plus: bool,
        value: Box<Node>,
    },
    Call(Function, Vec<Node>),
    Percent(Box<Node>),
    Degree(Box<Node>),
    Ratio(Vec<Node>),
    /// `(a, b)`, `[a, b)`, ...
    Tuple {
        open: char,
        close: char,
        items: Vec<Node>,
    },
    Set(Vec<Node>),
    List(Vec<Node>),
    Union(Vec<Node>),
    Minus(Box<Node>, Box<Node>),
    Intersection(Vec<Node>),
    Relation(Vec<Node>, Vec<Relation>),
    Matrix {
        determinant: bool,
        rows: Vec<Vec<Node>>,
    },
}

/// A relation sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Congruent,
    /// What follows only says how large it is.
    Approximate,
}

impl Relation {
    /// The relation with its sides exchanged.
    pub(super) fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            other => other,
        }
    }
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Ln,
    /// The logarithm that names no base.
    Log,
    /// Base, then argument.
    LogBase,
    Exp,
    Abs,
    Floor,
    Ceil,
    Factorial,
    Binomial,
    Cis,
    Gcd,
    Lcm,
    Max,
    Min,
    Mod,
    /// A power that no rule takes apart: base, then exponent.
    Raise,
    Re,
    Im,
    /// A function that the problem names: `f(2)`.
    Named(String),
}

impl Function {
    /// The function that a LaTeX command or a bare word names.
    pub(super) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tan" | "tg" => Self::Tan,
            "cot" | "ctg" => Self::Cot,
            "sec" => Self::Sec,
            "csc" | "cosec" => Self::Csc,
            "arcsin" | "asin" => Self::Asin,
            "arccos" | "acos" => Self::Acos,
            "arctan" | "atan" => Self::Atan,
            "sinh" => Self::Sinh,
            "cosh" => Self::Cosh,
            "tanh" => Self::Tanh,
            "ln" => Self::Ln,
            "log" => Self::Log,
            "exp" => Self::Exp,
            "abs" => Self::Abs,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            "cis" => Self::Cis,
            "gcd" => Self::Gcd,
            "lcm" => Self::Lcm,
            "max" => Self::Max,
            "min" => Self::Min,
            "Re" => Self::Re,
            "Im" => Self::Im,
            _ => return None,
        })
    }
}

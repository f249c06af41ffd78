//! What a formula says, before anything is calculated.
//!
//! Invariant: a formula is at most [`Limits::height`](super::budget::Limits::height) nodes deep, however it is written.
//! A node holds others only as [`Child`] or [`Children`], which know how deep they are and are made under a budget, so
//! whatever walks, compares or drops a formula may recurse.

use std::ops::Deref;

use num_rational::BigRational;

use super::budget::{Budget, Stop};

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
    Neg(Child),
    Add(Children),
    Mul(Children),
    Div(Child, Child),
    Pow(Child, Child),
    /// `plus` tells which sign it takes when every `\pm` takes plus.
    PlusMinus {
        plus: bool,
        value: Child,
    },
    Call(Function, Children),
    Percent(Child),
    Degree(Child),
    Ratio(Children),
    /// `(a, b)`, `[a, b)`, ...
    Tuple {
        open: char,
        close: char,
        items: Children,
    },
    /// `P(1, 2)`: what a capital names by its coordinates. `C(10, 3)` may be a number of choices as well.
    Point {
        name: String,
        items: Children,
    },
    Set(Children),
    List(Children),
    Union(Children),
    Minus(Child, Child),
    Intersection(Children),
    Relation(Children, Vec<Relation>),
    Matrix {
        determinant: bool,
        rows: Vec<Children>,
    },
}

impl Node {
    /// How many nodes stand within each other, this one included.
    fn height(&self) -> u32 {
        1 + match self {
            Self::Number(_)
            | Self::Numeral { .. }
            | Self::Symbol(_)
            | Self::Pi
            | Self::Euler
            | Self::Imaginary
            | Self::Infinity
            | Self::Reals => 0,
            Self::Neg(inside)
            | Self::PlusMinus { value: inside, .. }
            | Self::Percent(inside)
            | Self::Degree(inside) => inside.height,
            Self::Div(left, right) | Self::Pow(left, right) | Self::Minus(left, right) => left.height.max(right.height),
            Self::Add(nodes)
            | Self::Mul(nodes)
            | Self::Call(_, nodes)
            | Self::Ratio(nodes)
            | Self::Tuple { items: nodes, .. }
            | Self::Point { items: nodes, .. }
            | Self::Set(nodes)
            | Self::List(nodes)
            | Self::Union(nodes)
            | Self::Intersection(nodes)
            | Self::Relation(nodes, _) => nodes.height,
            Self::Matrix { rows, .. } => rows.iter().map(|row| row.height).max().unwrap_or_default(),
        }
    }
}

/// How deep a node is, where it may be part of another.
fn height(node: &Node, budget: &Budget) -> Result<u32, Stop> {
    let height = node.height();
    if height < budget.limits.height() { Ok(height) } else { Err(Stop::Budget("nesting")) }
}

/// A node within another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Child {
    node: Box<Node>,
    height: u32,
}

impl Child {
    pub(super) fn new(node: Node, budget: &Budget) -> Result<Self, Stop> {
        Ok(Self { height: height(&node, budget)?, node: Box::new(node) })
    }
}

impl Deref for Child {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

/// Nodes within another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Children {
    nodes: Vec<Node>,
    height: u32,
}

impl Children {
    pub(super) fn new(nodes: Vec<Node>, budget: &Budget) -> Result<Self, Stop> {
        let mut deepest = 0;
        for node in &nodes {
            deepest = deepest.max(height(node, budget)?);
        }
        Ok(Self { nodes, height: deepest })
    }

    pub(super) fn push(&mut self, node: Node, budget: &Budget) -> Result<(), Stop> {
        self.height = self.height.max(height(&node, budget)?);
        self.nodes.push(node);
        Ok(())
    }

    pub(super) fn into_vec(self) -> Vec<Node> {
        self.nodes
    }
}

impl Deref for Children {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.nodes
    }
}

impl<'a> IntoIterator for &'a Children {
    type Item = &'a Node;
    type IntoIter = std::slice::Iter<'a, Node>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.iter()
    }
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

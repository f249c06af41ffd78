//! Fractions, roots and functions with their arguments.

use super::super::ast::{Function, Node};
use super::super::budget::Stop;
use super::super::lex::Kind;
use super::super::words;
use super::Parser;
use super::operand::integer;

impl Parser<'_> {
    pub(super) fn fraction(&mut self) -> Result<Node, Stop> {
        let top = self.half()?;
        let bottom = self.half()?;
        self.div(top, bottom)
    }

    pub(super) fn root(&mut self) -> Result<Node, Stop> {
        let degree = if self.eat_sign('[') {
            let degree = self.sum()?;
            if !self.eat_sign(']') {
                return Err(self.expected("`]`"));
            }
            degree
        } else {
            integer(2)
        };
        let inside = self.argument_plain()?;
        let exponent = self.div(integer(1), degree)?;
        self.pow(inside, exponent)
    }

    /// The arguments of a function whose name was read.
    pub(super) fn call(&mut self, mut function: Function) -> Result<Node, Stop> {
        let mut base = None;
        let mut exponent = None;
        loop {
            if self.eat_sign('_') {
                base = Some(self.half()?);
            } else if self.sees_sign('^') {
                self.at += 1;
                exponent = Some(self.argument()?);
            } else {
                break;
            }
        }
        if let Some(Node::Neg(power)) = &exponent
            && **power == integer(1)
        {
            let inverse = match function {
                Function::Sin => Some(Function::Asin),
                Function::Cos => Some(Function::Acos),
                Function::Tan => Some(Function::Atan),
                _ => None,
            };
            if let Some(inverse) = inverse {
                function = inverse;
                exponent = None;
            }
        }
        let mut arguments = if self.sees_sign('(') || self.sees_sign('{') || self.sees_sign('[') {
            match self.argument_plain()? {
                Node::Tuple { items, .. } | Node::Set(items) => items.into_vec(),
                single => vec![single],
            }
        } else {
            vec![self.open_argument()?]
        };
        if function == Function::Log {
            match base {
                Some(base) => {
                    function = Function::LogBase;
                    arguments.insert(0, base);
                }
                None => self.bare_log = true,
            }
        }
        let call = Node::Call(function, self.children(arguments)?);
        match exponent {
            Some(exponent) => self.pow(call, exponent),
            None => Ok(call),
        }
    }

    /// `\sin 3x` takes all of `3x`, and ends before the next function.
    pub(super) fn open_argument(&mut self) -> Result<Node, Stop> {
        let negative = self.eat_sign('-');
        let mut factors = vec![self.factor()?];
        while self.starts_operand() && !self.sees_sign('(') {
            let function = match self.peek() {
                Some(Kind::Command(name)) => Function::named(name).is_some(),
                Some(Kind::Word(word)) => {
                    Function::named(word).is_some() || words::starts_with_function(word) && word != "pi"
                }
                _ => false,
            };
            if function {
                break;
            }
            factors.push(self.factor()?);
        }
        let node = if factors.len() == 1 { factors.swap_remove(0) } else { Node::Mul(self.children(factors)?) };
        if negative { self.neg(node) } else { Ok(node) }
    }
}

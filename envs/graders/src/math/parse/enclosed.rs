//! What stands between two signs: groups, tuples, intervals, sets, bars, matrices.

use super::super::ast::{Children, Function, Node};
use super::super::budget::Stop;
use super::super::lex::Kind;
use super::Parser;

impl Parser<'_> {
    /// What follows a `(` or `[`: a group, a tuple or an interval; or a `]`: an interval as it is written in French, where
    /// a bracket that turns its back leaves the bound out.
    pub(super) fn bracketed(&mut self, open: char) -> Result<Node, Stop> {
        let bars = std::mem::take(&mut self.bars);
        let interval = std::mem::replace(&mut self.interval, open != '(');
        let mut items = vec![self.relation()?];
        while self.separator(true) {
            items.push(self.relation()?);
        }
        self.bars = bars;
        self.interval = interval;
        let close = match self.peek() {
            Some(Kind::Sign(')')) if open != ']' => ')',
            Some(Kind::Sign(']')) => ']',
            Some(Kind::Sign('[')) if open != '(' => '[',
            _ => return Err(self.expected("a closing bracket")),
        };
        self.at += 1;
        if open == ']' || close == '[' {
            if items.len() != 2 {
                return Err(self.expected("an interval of two bounds"));
            }
            let open = if open == ']' { '(' } else { '[' };
            let close = if close == '[' { ')' } else { ']' };
            return Ok(Node::Tuple { open, close, items: self.children(items)? });
        }
        if items.len() == 1 && ((open == '(') == (close == ')')) {
            return Ok(items.swap_remove(0));
        }
        Ok(Node::Tuple { open, close, items: self.children(items)? })
    }

    /// Whether the `[` at hand closes an interval: nothing that may stand in brackets follows.
    pub(super) fn interval_ends(&self) -> bool {
        self.interval
            && match self.peek_at(1) {
                None => true,
                Some(Kind::Sign(c)) => matches!(c, ',' | ';' | '.' | ')' | '}' | '$'),
                Some(Kind::Command(name)) => matches!(
                    name.as_str(),
                    "cup"
                        | "bigcup"
                        | "cap"
                        | "setminus"
                        | "smallsetminus"
                        | "backslash"
                        | "}"
                        | "\\"
                        | "land"
                        | "lor"
                        | "wedge"
                        | "vee"
                ),
                Some(Kind::Word(word) | Kind::Text(word)) => matches!(word.trim(), "and" | "or" | "U"),
                Some(_) => false,
            }
    }

    /// What follows a `{`.
    pub(super) fn group(&mut self) -> Result<Node, Stop> {
        let bars = std::mem::take(&mut self.bars);
        let mut items = vec![self.relation()?];
        while self.separator(true) {
            items.push(self.relation()?);
        }
        let infix = if self.eat_command(&["choose"]) {
            Some(true)
        } else if self.eat_command(&["over"]) {
            Some(false)
        } else {
            None
        };
        if let (Some(choose), 1) = (infix, items.len()) {
            let top = items.swap_remove(0);
            let bottom = self.sum()?;
            items.push(if choose {
                Node::Call(Function::Binomial, self.children(vec![top, bottom])?)
            } else {
                self.div(top, bottom)?
            });
        }
        self.bars = bars;
        if !self.eat_sign('}') {
            return Err(self.expected("`}`"));
        }
        Ok(if items.len() == 1 { items.swap_remove(0) } else { Node::Set(self.children(items)?) })
    }

    /// What follows a `\{`: members, or a condition behind a bar.
    pub(super) fn set(&mut self) -> Result<Node, Stop> {
        if self.eat_command(&["}", "rbrace"]) {
            return Ok(Node::Set(Children::default()));
        }
        let bars = std::mem::replace(&mut self.bars, 1);
        let mut items = vec![self.relation()?];
        while self.separator(true) {
            items.push(self.relation()?);
        }
        self.bars = bars;
        let condition = self.eat_command(&["mid"]) || self.eat_sign('|');
        if condition {
            let condition = self.list()?;
            if !self.eat_command(&["}", "rbrace"]) {
                return Err(self.expected(r"`\}`"));
            }
            return Ok(condition);
        }
        if !self.eat_command(&["}", "rbrace"]) {
            return Err(self.expected(r"`\}`"));
        }
        Ok(Node::Set(self.children(items)?))
    }

    pub(super) fn fence(&mut self, name: &str) -> Result<Node, Stop> {
        let (function, close) = match name {
            "lfloor" => (Function::Floor, "rfloor"),
            "lceil" => (Function::Ceil, "rceil"),
            "lvert" => (Function::Abs, "rvert"),
            "vert" => (Function::Abs, "vert"),
            "lVert" => (Function::Abs, "rVert"),
            _ => (Function::Abs, "|"),
        };
        let bars = std::mem::replace(&mut self.bars, u32::from(close == "|"));
        let inside = self.sum();
        self.bars = bars;
        let inside = inside?;
        if self.eat_command(&[close]) {
            Ok(Node::Call(function, self.children(vec![inside])?))
        } else {
            Err(self.expected("the closing bar"))
        }
    }

    pub(super) fn angle(&mut self) -> Result<Node, Stop> {
        let mut items = vec![self.sum()?];
        while self.separator(true) {
            items.push(self.sum()?);
        }
        if !self.eat_command(&["rangle"]) {
            return Err(self.expected(r"`\rangle`"));
        }
        Ok(Node::Tuple { open: '(', close: ')', items: self.children(items)? })
    }

    /// What follows a `\begin`.
    pub(super) fn matrix(&mut self) -> Result<Node, Stop> {
        let name = self.raw()?;
        if !matches!(name.as_str(), "pmatrix" | "bmatrix" | "matrix" | "vmatrix" | "Bmatrix" | "smallmatrix" | "array")
        {
            return Err(self.expected("a matrix"));
        }
        if name == "array" && self.sees_sign('{') {
            self.raw()?;
        }
        let mut rows = vec![Vec::new()];
        loop {
            if self.eat_command(&["end"]) {
                self.raw()?;
                break;
            }
            if self.eat_command(&["\\"]) {
                rows.push(Vec::new());
            } else if self.eat_sign('&') {
            } else {
                let cell = self.sum()?;
                if let Some(row) = rows.last_mut() {
                    row.push(cell);
                }
            }
            self.budget.spend(1)?;
        }
        rows.retain(|row| !row.is_empty());
        if rows.is_empty() {
            return Err(self.expected("a matrix with cells"));
        }
        let mut cells = Vec::with_capacity(rows.len());
        for row in rows {
            cells.push(self.children(row)?);
        }
        Ok(Node::Matrix { determinant: name == "vmatrix", rows: cells })
    }
}

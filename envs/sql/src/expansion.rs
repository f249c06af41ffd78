//! How large a statement gets when its common table expressions are written out.
//!
//! `WITH a AS (...), b AS (SELECT * FROM a, a), c AS (SELECT * FROM b, b), ...` is short, and SQLite compiles each use of
//! a name anew: 2^n selects from n lines, in a phase that looks neither at its progress handler nor at a limit.
//!
//! The count is never too small. A name that several scopes define counts as the largest of them, except those that
//! contain the use (a recursive use is not written out); definitions that seem to need each other count as too large.

use std::collections::HashMap;
use std::ops::Range;

use crate::statement::{Kind, Statement};

/// A common table expression: where its body lies, in tokens.
struct Definition {
    name: String,
    body: Range<usize>,
}

#[derive(Clone, Copy)]
enum Weight {
    Open,
    Known(usize),
}

/// What is looked up while weights are added.
struct Tree<'a> {
    definitions: &'a [Definition],
    uses: &'a [(usize, String)],
    most: usize,
}

impl Statement<'_> {
    /// Selects of the statement with every common table expression written out; `most + 1` stands for more than `most`.
    pub fn expanded(&self, most: usize) -> usize {
        let definitions = self.definitions();
        if definitions.is_empty() {
            return self.selects;
        }
        let uses = self.uses();
        let tree = Tree { definitions: &definitions, uses: &uses, most };
        let mut known: HashMap<usize, Weight> = HashMap::new();
        // Definitions are counted where they are used; one that is not used costs its own text only.
        let mut total = self.selects;
        for (at, name) in &uses {
            if !definitions.iter().any(|definition| definition.body.contains(at)) {
                total = total.saturating_add(weigh(name, *at, &tree, &mut known, 0));
            }
        }
        total.min(most + 1)
    }

    /// `name AS (`, `name (columns) AS NOT MATERIALIZED (`: every place that may define a common table expression.
    fn definitions(&self) -> Vec<Definition> {
        let tokens = self.tokens();
        let text = |at: usize| tokens.get(at).map_or("", |token| self.text(token));
        let word = |at: usize, keyword: &str| tokens.get(at).is_some_and(|token| self.is(token, keyword));
        let close = |open: usize| {
            let depth = tokens[open].depth;
            (open + 1..tokens.len()).find(|&at| tokens[at].depth == depth && text(at) == ")").unwrap_or(tokens.len())
        };
        let mut definitions = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            if !matches!(token.kind, Kind::Word | Kind::Quoted | Kind::Text) {
                continue;
            }
            let mut next = at + 1;
            if text(next) == "(" {
                next = close(next) + 1;
            }
            if !word(next, "as") {
                continue;
            }
            next += 1;
            while word(next, "not") || word(next, "materialized") {
                next += 1;
            }
            if text(next) == "(" {
                definitions.push(Definition { name: folded(self.text(token)), body: next..close(next) });
            }
        }
        definitions
    }

    /// Names in places where a table may stand: after `FROM`, `JOIN`, `IN`, and after commas and parentheses in a `FROM`.
    fn uses(&self) -> Vec<(usize, String)> {
        let tokens = self.tokens();
        let mut uses = Vec::new();
        // Whether each open level is in a FROM clause.
        let mut levels = vec![false];
        let mut table_next = false;
        for (at, token) in tokens.iter().enumerate() {
            let text = self.text(token);
            let from = levels.last().copied().unwrap_or(false);
            if table_next && matches!(token.kind, Kind::Word | Kind::Quoted | Kind::Text) {
                uses.push((at, folded(text)));
            }
            match text {
                "(" => levels.push(table_next),
                ")" if levels.len() > 1 => drop(levels.pop()),
                _ => {}
            }
            if token.kind == Kind::Word {
                let level = levels.last_mut();
                let keyword = text.to_ascii_lowercase();
                match (keyword.as_str(), level) {
                    ("from" | "join", Some(level)) => *level = true,
                    (
                        "select" | "where" | "group" | "having" | "order" | "limit" | "union" | "except" | "intersect"
                        | "window",
                        Some(level),
                    ) => *level = false,
                    _ => {}
                }
                table_next = matches!(keyword.as_str(), "from" | "join" | "in");
                // `main.name`
            } else if text == "." {
                table_next = at >= 1 && uses.last().is_some_and(|(last, _)| last + 1 == at);
            } else {
                table_next = (text == "," && from) || (text == "(" && table_next);
            }
        }
        uses
    }
}

/// The weight of a use of a name: the largest of the definitions that it may mean. `from` is where the use stands.
fn weigh(name: &str, from: usize, tree: &Tree<'_>, known: &mut HashMap<usize, Weight>, depth: usize) -> usize {
    let Tree { definitions, uses, most } = *tree;
    let mut largest = 0;
    for (index, definition) in definitions.iter().enumerate() {
        if definition.name != name || definition.body.contains(&from) {
            continue;
        }
        let weight = match known.get(&index) {
            Some(Weight::Known(weight)) => *weight,
            Some(Weight::Open) => most + 1,
            // One level per definition on the way; a statement has few.
            None if depth > 200 => most + 1,
            None => {
                known.insert(index, Weight::Open);
                let mut weight = 1_usize;
                for (at, name) in uses {
                    if definition.body.contains(at) {
                        weight = weight.saturating_add(weigh(name, *at, tree, known, depth + 1)).min(most + 1);
                    }
                }
                known.insert(index, Weight::Known(weight));
                weight
            }
        };
        largest = largest.max(weight);
    }
    largest
}

/// A name without its quotes, in lower case.
fn folded(name: &str) -> String {
    name.trim_matches(['"', '`', '[', ']', '\'']).to_ascii_lowercase()
}

//! Formulas of propositional logic over at most six variables, as truth tables.
//!
//! A formula's table is a 64-bit mask: bit `i` is its value where variable `v` is bit `v` of `i`. Six variables have 64
//! assignments, so one integer holds the table.

use crate::draw::Draw;

/// Most variables.
pub(crate) const MAX_VARIABLES: usize = 6;
/// The names that generated formulas use: no `T` and no `F`, which are values.
pub(crate) const NAMES: [char; MAX_VARIABLES] = ['P', 'Q', 'R', 'S', 'U', 'V'];

const MAX_LENGTH: usize = 2000;
const MAX_DEPTH: usize = 40;

/// The tables of the variables themselves.
const COLUMNS: [u64; MAX_VARIABLES] = [
    0xaaaa_aaaa_aaaa_aaaa,
    0xcccc_cccc_cccc_cccc,
    0xf0f0_f0f0_f0f0_f0f0,
    0xff00_ff00_ff00_ff00,
    0xffff_0000_ffff_0000,
    0xffff_ffff_0000_0000,
];

/// The assignments of so many variables, as a mask over tables.
pub(crate) fn assignments(variables: usize) -> u64 {
    if variables >= MAX_VARIABLES { u64::MAX } else { (1 << (1 << variables)) - 1 }
}

fn apply(sign: char, left: u64, right: u64) -> u64 {
    match sign {
        '∧' => left & right,
        '∨' => left | right,
        '→' => !left | right,
        _ => !(left ^ right),
    }
}

/// A formula as text with its table.
pub(crate) struct Formula {
    pub(crate) text: String,
    pub(crate) table: u64,
}

/// A random formula of a depth; 1 is a variable or its negation.
pub(crate) fn random(variables: usize, depth: usize, draw: &mut Draw) -> Formula {
    if depth <= 1 {
        let variable = draw.below(variables);
        let (name, table) = (NAMES[variable], COLUMNS[variable]);
        return if draw.below(3) == 0 {
            Formula { text: format!("¬{name}"), table: !table }
        } else {
            Formula { text: name.to_string(), table }
        };
    }
    let right_depth = 1 + draw.below(depth - 1);
    let mut left = random(variables, depth - 1, draw);
    let mut right = random(variables, right_depth, draw);
    for _ in 0..8 {
        // `P ∨ P` and `P → ¬P` say less than they seem to.
        if left.table != right.table && left.table != !right.table {
            break;
        }
        right = random(variables, right_depth, draw);
    }
    if draw.below(2) == 0 {
        std::mem::swap(&mut left, &mut right);
    }
    let sign = *draw.pick(&['∧', '∨', '→', '↔']);
    let table = apply(sign, left.table, right.table);
    let text = format!("({} {sign} {})", left.text, right.text);
    if draw.below(5) == 0 { Formula { text: format!("¬{text}"), table: !table } } else { Formula { text, table } }
}

/// The table of a formula over the named variables; none where it is malformed.
///
/// `¬` binds tightest, then `∧`, `∨`, `→`, `↔`; all group to the left but `→`.
pub(crate) fn table(text: &str, variables: &[char]) -> Option<u64> {
    if text.len() > MAX_LENGTH || variables.len() > MAX_VARIABLES {
        return None;
    }
    let letters: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut parser = Parser { letters: &letters, at: 0, variables };
    let table = parser.binary(0, 0)?;
    (parser.at == letters.len()).then_some(table)
}

/// The binary signs, the loosest first.
const SIGNS: [char; 4] = ['↔', '→', '∨', '∧'];

struct Parser<'a> {
    letters: &'a [char],
    at: usize,
    variables: &'a [char],
}

impl Parser<'_> {
    fn take(&mut self, letter: char) -> bool {
        let found = self.letters.get(self.at) == Some(&letter);
        self.at += usize::from(found);
        found
    }

    fn binary(&mut self, sign: usize, depth: usize) -> Option<u64> {
        let Some(letter) = SIGNS.get(sign).copied() else {
            return self.unary(depth);
        };
        if depth > MAX_DEPTH {
            return None;
        }
        let mut left = self.binary(sign + 1, depth)?;
        while self.take(letter) {
            let right = if letter == '→' { self.binary(sign, depth + 1)? } else { self.binary(sign + 1, depth)? };
            left = apply(letter, left, right);
        }
        Some(left)
    }

    fn unary(&mut self, depth: usize) -> Option<u64> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.take('¬') {
            return self.unary(depth + 1).map(|table| !table);
        }
        if self.take('(') {
            let table = self.binary(0, depth + 1)?;
            return self.take(')').then_some(table);
        }
        let name = self.letters.get(self.at)?;
        let variable = self.variables.iter().position(|variable| variable == name)?;
        self.at += 1;
        COLUMNS.get(variable).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tables_are_those_of_logic() {
        let table = |text| table(text, &['P', 'Q']).map(|table| table & assignments(2));
        assert_eq!(table("P ∧ Q"), Some(0b1000));
        assert_eq!(table("P ∨ Q"), Some(0b1110));
        assert_eq!(table("P → Q"), Some(0b1101));
        assert_eq!(table("P ↔ Q"), Some(0b1001));
        assert_eq!(table("¬(P ∧ ¬Q)"), table("P → Q"));
        assert_eq!(table("¬P ∨ P ∧ Q"), table("(¬P) ∨ (P ∧ Q)"));
        assert_eq!(table("P → Q → P"), Some(0b1111));
        for text in ["", "P Q", "(P", "P ∧", "X", "¬", "P & Q"] {
            assert_eq!(table(text), None, "{text}");
        }
        assert_eq!(table(&"¬".repeat(500)), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seed in any::<u64>(), variables in 1_usize..=6, depth in 1_usize..5) {
            let formula = random(variables, depth, &mut Draw::new(seed, 0));
            prop_assert_eq!(table(&formula.text, &NAMES), Some(formula.table));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "[PQ()¬∧∨→↔ ]{0,40}") {
            let _ = table(&text, &['P', 'Q']);
        }
    }
}

//! What holds for every text.

use espalier_graders::math::{Truth, equivalent, last_boxed, last_line};
use proptest::prelude::*;

/// Formulas that have a value, and the same ones written otherwise.
fn formula() -> impl Strategy<Value = (String, String)> {
    let leaf = prop_oneof![
        (-99_i32..100).prop_map(|n| (n.to_string(), format!("{n}.0"))),
        (1_u32..60, 1_u32..60).prop_map(|(a, b)| (format!(r"\frac{{{a}}}{{{b}}}"), format!("({}/{})", 2 * a, 2 * b))),
        (2_u32..60).prop_map(|n| (format!(r"\sqrt{{{n}}}"), format!("sqrt({n})"))),
        prop::sample::select(vec!["x", "y", "n"]).prop_map(|name| (name.to_owned(), format!("{{{name}}}"))),
        Just((r"\pi".to_owned(), "\u{3c0}".to_owned())),
        Just(("i".to_owned(), r"\mathrm{i}".to_owned())),
    ];
    leaf.prop_recursive(4, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| { (format!("({}+{})", a.0, b.0), format!(r"\left( {} + {} \right)", b.1, a.1)) }),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| { (format!("({})({})", a.0, b.0), format!(r"({}) \cdot ({})", b.1, a.1)) }),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| { (format!("(({})-({}))", a.0, b.0), format!("(-({}) + ({}))", b.1, a.1)) }),
            (inner, 2_u32..4)
                .prop_map(|(a, n)| { (format!("({})^{n}", a.0), format!("({})^{{{}}}({})", a.1, n - 1, a.1)) }),
        ]
    })
}

/// Pieces of formulas in any order.
fn noise() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        r"\frac",
        r"\sqrt",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "^",
        "_",
        "1",
        "23",
        ".5",
        ",",
        r"\,",
        "x",
        "e",
        "i",
        r"\pi",
        r"\infty",
        r"\cup",
        r"\setminus",
        r"\{",
        r"\}",
        r"\pm",
        "+",
        "-",
        "*",
        "/",
        "!",
        "%",
        r"\%",
        r"\$",
        "$",
        "=",
        "<",
        r"\le",
        r"\in",
        "|",
        r"\text{ cm}",
        r"\text{and}",
        r"\circ",
        r"\sin",
        "log",
        r"\left",
        r"\right",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\\",
        "&",
        r"\overline",
        r"\binom",
        r"\mathbb",
        r"\lfloor",
        r"\rfloor",
        ":",
        "'",
        " ",
        "mod",
        r"\pmod",
        "and",
        "\u{221a}",
        "\u{301}",
        "_2",
        r"\boxed",
        "P(",
        "C(10,3)",
        "{}_",
        "0.(3)",
        r"\text{ten}",
        "[2,5[",
    ]);
    prop::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_panics(text in ".{0,120}", other in noise()) {
        last_boxed(&text);
        last_line(&text);
        for (truth, answer) in [(&text, &other), (&other, &text), (&other, &other)] {
            if let Ok(truth) = Truth::read(truth) {
                truth.check(answer);
            }
        }
    }

    #[test]
    fn a_readable_text_is_itself(text in noise()) {
        if let Ok(truth) = Truth::read(&text) {
            prop_assert!(truth.check(&text).equal);
        }
    }

    #[test]
    fn equality_has_no_direction(left in noise(), right in noise()) {
        if let (Ok(first), Ok(second)) = (Truth::read(&left), Truth::read(&right)) {
            prop_assert_eq!(first.check(&right).equal, second.check(&left).equal);
        }
    }

    #[test]
    fn a_formula_written_otherwise_is_equal((one, other) in formula()) {
        let verdict = equivalent(&one, &other).unwrap();
        prop_assert!(verdict.equal, "{} | {} | {:?}", one, other, verdict);
    }

    #[test]
    fn a_formula_plus_one_is_another((one, other) in formula()) {
        let more = format!("{other} + 1");
        prop_assert!(!equivalent(&one, &more).unwrap().equal, "{} | {}", one, more);
    }

    #[test]
    fn integers_differ(left in any::<i64>(), right in any::<i64>()) {
        let verdict = equivalent(&left.to_string(), &format!("x = {right}")).unwrap();
        prop_assert_eq!(verdict.equal, left == right);
    }
}

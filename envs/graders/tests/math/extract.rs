//! Where a response has its answer.

use espalier_graders::math::{last_boxed, last_line};

#[test]
fn the_last_closed_box_counts() {
    for (text, answer) in [
        (r"so \boxed{5}.", Some("5")),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", Some(r"\frac{1}{2}")),
        (r"\boxed{1} and then \boxed{2", Some("1")),
        (r"\boxed{\boxed{3}}", Some("3")),
        (r"\fbox{4} after \boxed{3}, \fbox{x_{1}}", Some("x_{1}")),
        (r"$\boxed 5$", Some("5")),
        (r"\boxed 17.", Some("17")),
        (r"\boxed {6}", Some("6")),
        (r"\boxed{\{1, 2\}}", Some(r"\{1, 2\}")),
        (r"\boxed{\text{a } b}", Some(r"\text{a } b")),
        (r"\boxedlabel", None),
        (r"boxed{5}", None),
        (r"\boxed{", None),
        (r"\boxed", None),
        ("", None),
    ] {
        assert_eq!(last_boxed(text), answer, "{text}");
    }
}

#[test]
fn boxes_are_found_in_one_pass() {
    // Quadratic work would take minutes here.
    let text = r"\boxed{".repeat(300_000);
    assert_eq!(last_boxed(&text), None);
    let text = format!(r"\boxed{{7}}{}", r"\boxed{x".repeat(300_000));
    assert_eq!(last_boxed(&text), Some("7"));
}

#[test]
fn the_last_line_without_its_decoration() {
    assert_eq!(last_line("so\n\n**The answer is: 5**\n"), Some("5"));
    assert_eq!(last_line("Answer: $x$"), Some("$x$"));
    assert_eq!(last_line(" \n"), None);
}

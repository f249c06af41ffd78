//! Expressions with variables, and equations.

use super::{all_different, all_equal, refused};

#[test]
fn expressions_with_variables() {
    all_equal(&[
        ("x^2+2x+1", "(x+1)^2"),
        ("3(x-2)(x+1)", "3x^2 - 3x - 6"),
        (r"\frac{2x-7}{(x+1)(x-2)}", r"\frac{3}{x+1}-\frac{1}{x-2}"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"36x\sqrt{35x}", r"36\sqrt{35}x^{3/2}"),
        (r"\sqrt{x^2}", "|x|"),
        (r"\sin^2 x + \cos^2 x", "1"),
        (r"2\tan x", r"\frac{2\sin x}{\cos x}"),
        (r"\sin 2x", r"2\sin x\cos x"),
        (r"7p+4e", "4e+7p"),
        ("3 - 2f(x)", "-2f(x) + 3"),
        ("2*x^2 - 3*x", "x(2x-3)"),
        ("32R^2 - 3(a^2 + b^2 + c^2)", "32R^2-3a^2-3b^2-3c^2"),
    ]);
    all_different(&[
        ("x^2", "x^3"),
        ("x+y", "x-y"),
        ("x", "y"),
        ("|x|", "x"),
        (r"\sin x", r"\cos x"),
        (r"\sin 2x", r"2\sin x"),
        ("(x+1)^2", "x^2+1"),
    ]);
}

#[test]
fn equations_and_ratios() {
    all_equal(&[
        ("5", "x=5"),
        ("5", "5 = x"),
        ("5", "AB = 5"),
        ("18", r"9 \cdot 2 = 18"),
        ("2x+3", "y=2x+3"),
        ("y=2x+3", "2x - y + 3 = 0"),
        ("5x-7y+11z+4=0", "-10x+14y-22z=8"),
        ("x^2+y^2=13", "y^2 + x^2 - 13 = 0"),
        ("1:2", r"\frac12"),
        ("1:2", "2:4"),
    ]);
    all_different(&[("x=5", "y=5"), ("10", "2x=10"), ("y=2x+3", "y=2x-3"), ("x^2+y^2=13", "13"), ("1:2", "2:1")]);
}

#[test]
fn an_equation_has_the_zeros_of_the_other() {
    for (truth, answers) in [
        ("x=0", &["y=0", "z=0", "xy=0", "x^2=0", "1=0"][..]),
        ("x=1", &["x^2=x"]),
        ("x=5", &["x^2=5x", "xy=5y"]),
        ("y=x", &["y^2=xy", "x^2=xy", "y/x=1"]),
        ("xy=0", &["x=0", "z=0", "x^2y=0"]),
        ("x^2=4", &["x^3=4x"]),
        ("y=x+1", &[r"\frac{y}{x+1}=1", r"\frac{x+1}{y}=1"]),
        ("f(x)=x+1", &["f(2)=x+1"]),
    ] {
        refused(truth, answers);
    }
    all_equal(&[
        ("y=2/x", "xy=2"),
        (r"y=\frac{2x+1}{x-3}", "y(x-3)=2x+1"),
        ("x=5", "5x=25"),
        (r"\frac{x^2}{4}+y^2=1", "x^2+4y^2=4"),
    ]);
}

#[test]
fn a_calculated_equation_must_hold() {
    for (truth, answers) in
        [("x=18", &["2=18", "0=18", "18=2"][..]), ("x=5", &["0=5", "x=6=5", "5=6=5"]), ("x=1, y=2", &["1=2, 2=2"])]
    {
        refused(truth, answers);
    }
    refused("123", &["5=6=123", "-0=123"]);
    refused("18", &[r"5 \cdot 3 = 15 = 18"]);
    all_equal(&[("x=18", "36/2=18"), ("18", r"x = 9 \cdot 2 = 18"), ("18", r"\frac{36}{2}=9 \cdot 2=18")]);
}

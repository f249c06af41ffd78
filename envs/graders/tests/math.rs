//! Equivalence of answers: what is equal, what is not, and what it may cost.

use std::sync::Arc;

use espalier_graders::math::{Limits, Reason, Stop, Truth, TruthError, equivalent, last_boxed, last_line};
use proptest::prelude::*;

fn equal(truth: &str, answer: &str) -> bool {
    equivalent(truth, answer).unwrap_or_else(|error| panic!("`{truth}`: {error}")).equal
}

fn all_equal(pairs: &[(&str, &str)]) {
    for (left, right) in pairs {
        assert!(equal(left, right), "`{left}` is `{right}`");
        assert!(equal(right, left), "`{right}` is `{left}`");
    }
}

fn all_different(pairs: &[(&str, &str)]) {
    for (left, right) in pairs {
        assert!(!equal(left, right), "`{left}` is not `{right}`");
        assert!(!equal(right, left), "`{right}` is not `{left}`");
    }
}

fn refused(truth: &str, answers: &[&str]) {
    for answer in answers {
        assert!(!equal(truth, answer), "`{answer}` is not `{truth}`");
    }
}

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

#[test]
fn numbers() {
    all_equal(&[
        (r"\frac12", "0.5"),
        (r"\dfrac{3}{4}", ".75"),
        (r"\frac9{19}", "18/38"),
        (r"3\frac12", "3.5"),
        ("3 1/2", "7/2"),
        ("1,234", "1234"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("1.5e3", "1500"),
        (r"1.5 \times 10^{3}", "1500"),
        ("10**3", "1000"),
        (r"0.\overline{3}", "1/3"),
        (r"0.1\overline{6}", "1/6"),
        ("5!", "120"),
        (r"\binom{5}{2}", "10"),
        (r"{5 \choose 2}", "10"),
        (r"\frac{1}{2004!}", r"\frac{1}{2004 \cdot 2003!}"),
        ("2^{10}", "1024"),
        ("2^10", "1024"),
        ("\u{2212}5", "-5"),
        (r"\lfloor 7/2 \rfloor", "3"),
        (r"\text{13}", "13"),
    ]);
    all_different(&[
        ("1", "2"),
        ("5", "-5"),
        ("5", "5!"),
        ("1/3", "0.3333"),
        ("12", "1,2"),
        ("4.2", "42"),
        (r"2^{2005}", r"2^{2006}"),
        (r"\frac{2}{3}", r"\frac{3}{2}"),
    ]);
}

#[test]
fn radicals_and_constants_are_exact() {
    all_equal(&[
        (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\frac{1}{1+\sqrt2}", r"\sqrt2-1"),
        (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        (r"\sqrt[3]{54}", r"3\sqrt[3]{2}"),
        (r"\sqrt[3]{-8}", "-2"),
        ("2√3", r"2\sqrt3"),
        (r"\frac{4}{3}\pi", "4π/3"),
        (r"(1+i)^2", "2i"),
        (r"\frac{1+i}{1-i}", "i"),
        (r"e^{i\pi/3}", r"\frac12+\frac{\sqrt3}{2}i"),
        (r"|3-\pi|", r"\pi-3"),
        (r"|3+4i|", "5"),
        ("2^{n+1}", r"2 \cdot 2^n"),
        (r"\log_2 8", "3"),
        (r"\ln e^2", "2"),
        (r"\log 100", "2"),
        (r"\cos 58^\circ", r"\sin 32^\circ"),
        (r"2\cos 15^{\circ}", r"\frac{\sqrt6+\sqrt2}{2}"),
        (r"\sin 18^\circ", r"\frac{\sqrt5-1}{4}"),
        (r"\arctan 1", r"\frac{\pi}{4}"),
    ]);
    all_different(&[
        (r"\sqrt2", "1.41421356"),
        (r"10\pi", "31.4"),
        (r"10\pi", "10"),
        ("e", "2.718281828459045"),
        ("i", "-i"),
        (r"2\cos 15^\circ", "1.9318516525781366"),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt5"),
        (r"\sqrt{10-2\sqrt5}", r"2.3511410092"),
    ]);
}

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
fn intervals_inequalities_and_unions() {
    all_equal(&[
        (r"(-\infty,3]", r"x \le 3"),
        (r"(5,\infty)", "x>5"),
        (r"(3,\infty)", "2x > 6"),
        ("x > 3", "3 < x"),
        (r"[-2,7)", r"-2 \le x < 7"),
        (r"x \in [-2,7]", "[-2,7]"),
        (r"(-\infty,2)\cup(3,\infty)", r"x<2 \text{ or } x>3"),
        (r"(3,\infty)\cup(-\infty,2)", r"(-\infty,2) \cup (3,\infty)"),
        (r"(-\infty,3)\cup(3,\infty)", r"x \ne 3"),
        (r"(-\infty,-1)\cup(-1,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3,-1\}"),
        (r"\left( 1, 2\right]", "(1,2]"),
        ("f(2) < f(1) < f(4)", "f(4) > f(1) > f(2)"),
    ]);
    all_different(&[
        ("(1,2)", "[1,2)"),
        ("[1,2]", "(1,2)"),
        ("x>5", r"x \ge 5"),
        (r"(5,\infty)", r"[5,\infty)"),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)"),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cap(3,\infty)"),
        ("f(2) < f(1) < f(4)", "f(1) < f(2) < f(4)"),
    ]);
}

#[test]
fn lists_tuples_sets_and_matrices() {
    all_equal(&[
        ("1,2", "2,1"),
        (r"1\pm\sqrt{19}", r"1-\sqrt{19},1+\sqrt{19}"),
        (r"\{1\pm\sqrt{5},-2\}", r"-2, 1-\sqrt5, 1+\sqrt5"),
        (r"12\text{ and }13", "13, 12"),
        (r"7, -2, \text{ and } -5", "-5,-2,7"),
        ("1,2", r"x=1 \text{ or } x=2"),
        ("(1,2)", "x=1, y=2"),
        (r"\{3\}", "3"),
        ("100,200", "200, 100"),
        ("(1, 234)", "(1,234)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
        (r"\begin{pmatrix}1/2 & 0\\ 0&1\end{pmatrix}", r"\frac12\begin{pmatrix}1&0\\0&2\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
    ]);
    all_different(&[
        ("(1,2)", "(2,1)"),
        ("1,2", "1,3"),
        ("1,2", "1"),
        ("x=1,y=2", "2,1"),
        (r"\{1,2\}", "(1,2)"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
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
fn units_percent_degrees_and_bases() {
    all_equal(&[
        (r"\$36", r"36 \text{ dollars}"),
        (r"\$32,\!348", "32348"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"864 \mbox{ inches}^2", "864 in^2"),
        (r"8\sqrt{3} \text { square inches}", r"8\sqrt3"),
        (r"5\text{ cm}", "5 cm"),
        (r"18\text{ ways.}", "18"),
        (r"50\%", "0.5"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"90^\circ", r"\frac{\pi}{2}"),
        (r"90\text{ degrees}", r"90^{\circ}"),
        ("1011_2", "1011"),
        ("1011_2", r"1011_{2}"),
        ("10000_2", r"10000_{\text{two}}"),
        ("152A_{11}", "152A_{11}"),
    ]);
    all_different(&[
        (r"5\text{ cm}", r"5\text{ m}"),
        ("5", r"5 \text{ or 7}"),
        ("5", r"5 \text{ or } 7"),
        (r"9\text{ a.m.}", "9 p.m."),
        (r"50\%", "5"),
        ("1358", "2516_8"),
        ("1011_2", "1011_3"),
        ("1011_2", "11"),
    ]);
}

#[test]
fn words() {
    all_equal(&[
        (r"\text{(C)}", "C"),
        ("C", "(C)"),
        (r"(\text{E})", r"\textbf{(E)}"),
        (r"\text{Evelyn}", "evelyn"),
        (r"\mbox{Saturday}", r"\mathrm{Saturday}"),
        (r"\text{1:03 PM}", "1:03 p.m."),
        (r"\text{B, E, G}", "E, B, G"),
        (r"\text{June 20}", "June 20"),
    ]);
    all_different(&[
        ("even", "neve"),
        (r"\text{even}", "odd"),
        (r"\text{MAKE}", r"\text{KAME}"),
        ("C", "D"),
        (r"\text{Evelyn}", "Dana"),
        (r"\text{June 20}", "June 21"),
    ]);
}

#[test]
fn words_behind_a_number_may_change_it() {
    all_equal(&[
        (r"5\text{ thousand}", "5000"),
        ("5 thousand", "5,000"),
        (r"\text{5 thousand}", "5000"),
        (r"\$1.5\text{ million}", "1500000"),
        (r"3\text{ hundred thousand dollars}", r"\$300,000"),
        (r"2 \text{ dozen eggs}", "24"),
        (r"3\frac12\text{ billion}", "3500000000"),
        (r"5\text{ or more}", "5 or more"),
        (r"5\text{ tenths}", r"\text{5 tenths}"),
        (r"25\text{ cm squared}", "25"),
        (r"5\text{ seconds}", "5"),
        (r"5\text{ one-inch cubes}", "5"),
    ]);
    for words in [
        "thousand",
        "million",
        "hundred",
        "dozen",
        "tenths",
        "sixths",
        "two-thirds",
        "factorial",
        "squared",
        "or more",
        "or fewer",
        "less",
        "is wrong",
        "or six",
        "hundred and six",
        "not",
        "at most",
    ] {
        all_different(&[("5", &format!(r"5\text{{ {words}}}")), ("5", &format!("5 {words}"))]);
    }
    all_different(&[(r"5\text{ thousand}", r"5\text{ million}"), (r"5\text{ or more}", r"5\text{ or less}")]);
    assert_eq!(equivalent("5", r"5\text{ or more}").unwrap().reason.name(), "malformed");
}

#[test]
fn an_approximation_is_near() {
    all_equal(&[(r"4\pi", r"4\pi \approx 12.57"), ("12.57", r"x \approx 12.57"), ("1/3", r"x = 1/3 \approx 0.33")]);
    for (truth, answer) in
        [("5", r"5\approx6"), ("6", r"5\approx6"), ("5", r"5 \approx 5 \approx 6"), ("12.57", r"4\pi \approx 12.57")]
    {
        assert!(!equal(truth, answer), "`{answer}` is not `{truth}`");
    }
    assert!(matches!(Truth::read(r"5\approx6"), Err(TruthError::Unread { stop: Stop::Undefined(_), .. })));
}

#[test]
fn a_list_has_as_many_items_as_the_other() {
    all_equal(&[(r"\{5,5\}", r"\{5\}"), ("1,1", r"\{1,1\}"), ("1,1,2", "2,1,1"), (r"\pm 0", "0")]);
    all_different(&[
        ("1", "1,1"),
        ("(5)", r"\{5,5\}"),
        ("1", r"1 \text{ or } 1"),
        ("1,1,2", "1,2,2"),
        ("1,2", "1,2,2"),
        (r"\{1,2\}", "1,2,2"),
    ]);
}

#[test]
fn roots_of_large_numbers_have_no_tolerance() {
    all_equal(&[
        (r"\sqrt{10^{20}+1}", r"\sqrt{100000000000000000001}"),
        (r"2\sqrt{10^{20}+1}", r"\sqrt{4 \cdot 10^{20}+4}"),
        (r"\sqrt{10^{20}+2\cdot 10^{10}+1}", "10^{10}+1"),
        (r"\sqrt{(10^{13}+37)(10^{13}+51)}", r"\sqrt{10^{13}+37}\sqrt{10^{13}+51}"),
    ]);
    all_different(&[
        (r"\sqrt{10^{20}+1}", "10^{10}"),
        (r"-\sqrt{10^{20}+1}", r"\sqrt{10^{20}+1}"),
        (r"1+\sqrt{10^{20}+1}", "10^{10}+1"),
        (r"\sqrt[3]{10^{30}+1}", "10^{10}"),
        (r"\sqrt{10^{20}+1}", r"\sqrt{10^{20}+3}"),
    ]);
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

#[test]
fn a_decimal_point_in_words_stays() {
    all_different(&[
        ("increases by 1.5 percent", "increases by 15 percent"),
        (r"1.5\text{ or more}", r"15\text{ or more}"),
        (r"\text{Plan B, 2.50 dollars}", r"\text{Plan B, 250 dollars}"),
        ("3.30 pm", "330 pm"),
    ]);
    all_equal(&[(r"\text{1:03 p.m.}", "1:03 PM"), (r"\text{Evelyn.}", "Evelyn")]);
}

#[test]
fn raised_digits_are_one_exponent() {
    all_equal(&[("x^{23}", "x²³"), ("2^{10}", "2¹⁰"), ("x^{-2}", "x⁻²"), ("25", r"25\text{ cm}²"), ("25", "25 cm²")]);
    all_different(&[("x^6", "x²³"), ("x^{230}", "x²³")]);
}

#[test]
fn what_follows_a_number_does_not_turn_it_into_another() {
    for tail in [
        r"\text{!}",
        r"\text{^2}",
        r"\text{ -2}",
        r"\text{ k}",
        r"\text{ twice}",
        r"\text{ squared}",
        r"\%\%",
        r"\text{ gross}",
    ] {
        refused("7", &[&format!("7{tail}")]);
    }
    refused(r"\frac{1}{2}", &[r"\frac{1}{2}1"]);
    refused("5", &[r"\phantom{5}"]);
    refused("51", &[r"5\phantom{1}"]);
    all_equal(&[("700000", r"7\text{ lakh}"), (r"5\phantom{1}", "5"), (r"7\text{-inch boards}", "7")]);
}

#[test]
fn the_same_answer_in_other_clothes() {
    all_equal(&[
        ("5", r"\color{red}5"),
        ("5", r"\textcolor{red}{5}"),
        ("5", r"\underline{5}"),
        ("5", r"\Large 5"),
        ("5", r"\therefore 5"),
        ("5", r"\approx 5"),
        ("5", "= 5"),
        (r"\frac12", r"1\over 2"),
        (r"\frac12", r"x+1 \over 2x+2"),
        (r"\frac12", "½"),
        ("3.5", "3½"),
        (r"\frac12", r"\nicefrac12"),
        (r"\frac12", r"\sfrac{1}{2}"),
        (r"\frac13", r"0.\dot{3}"),
        ("123", "１２３"),
        (r"\{1,2,3\}", r"\lbrace 1,2,3\rbrace"),
        ("[2,5)", r"\lbrack 2,5)"),
        (r"\$5", "USD 5"),
        (r"\$5", r"US\$5"),
        ("5", "5€"),
        ("5", "£5"),
        (r"\emptyset", r"\text{no solution}"),
        (r"\text{No solutions.}", r"\varnothing"),
        (r"\mathbb{R}", r"\text{all real numbers}"),
        (r"(-\infty,\infty)", "all real numbers"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"),
        (r"\text{(B)}", "b"),
        (r"\text{(B)}", "(b)"),
        ("B", "Option B"),
        (r"\textbf{(B)}", r"\text{Choice (B)}"),
        ("3:4", "3 to 4"),
        ("3:4", r"3\text{ to }4"),
    ]);
    assert!(equal(r"\text{(B)}", "B)"));
    all_different(&[
        ("5", r"\color{red}6"),
        (r"\frac12", r"2\over 1"),
        ("2.5", "3½"),
        (r"\emptyset", "all real numbers"),
        (r"\text{(B)}", "C"),
        ("B", "b"),
        (r"\text{(B)}", "(B, C)"),
        ("3:4", "4 to 3"),
        ("5€", r"\$5"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,3],[2,4]]"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4],[5,6]]"),
    ]);
}

#[test]
fn a_truth_that_cannot_be_read_is_an_error() {
    assert!(matches!(Truth::read("  "), Err(TruthError::Empty)));
    assert!(matches!(Truth::read(r"\frac{1}{"), Err(TruthError::Unread { stop: Stop::Syntax { .. }, .. })));
    assert!(matches!(Truth::read(r"\frac{1}{0}"), Err(TruthError::Unread { stop: Stop::Undefined(_), .. })));
    let deep = format!("{}5{}", "(".repeat(200), ")".repeat(200));
    assert!(matches!(Truth::read(&deep), Err(TruthError::Unread { stop: Stop::Budget(_), .. })));
}

/// Texts that hang or crash other graders.
fn hostile() -> Vec<String> {
    let nested = |open: &str, close: &str, times| format!("{}5{}", open.repeat(times), close.repeat(times));
    let fractions: Vec<String> = (0..500).map(|n| format!(r"\frac{{1}}{{x+{n}}}")).collect();
    let factors: Vec<String> = (0..500).map(|n| format!("(x+{n})")).collect();
    let numbers: Vec<String> = (0..1500).map(|n| n.to_string()).collect();
    let fractional: Vec<String> = (2..120).map(|n| format!("(x+1/{n})")).collect();
    let squares = format!("{}x+1/3{}", "((".repeat(15), ")^{2}+1/7)".repeat(15));
    let sines: Vec<String> = (0..100).map(|n| format!(r"\sin({n}x)+\cos x")).collect();
    vec![
        "9^{9^{9^{9}}}".to_owned(),
        "9^9^9^9^9".to_owned(),
        "10**10**10".to_owned(),
        "10^{10^{10}}+1".to_owned(),
        "1000000!".to_owned(),
        "2500!^{100}".to_owned(),
        r"\binom{1000000}{500000}".to_owned(),
        nested("(", ")", 10_000),
        nested("(", ")", 1000),
        nested("{", "}", 1000),
        nested(r"\frac{1}{1+", "}", 400),
        nested(r"\sqrt{2+", "}", 45),
        nested(r"\sin(", ")", 45),
        nested("|", "|", 4000),
        "1".repeat(1_000_000),
        format!("({})^{{9}}", "9".repeat(4000)),
        format!(r"\sqrt{{{}}}", "9".repeat(4001)),
        r"(x+y+z+w)^{32}(a+b+c+d)^{32}".to_owned(),
        r"((x+1)^{31}+1)^{31}".to_owned(),
        fractions.join("+"),
        factors.concat(),
        // Fractions of a few words: reducing them is what costs.
        fractional.concat(),
        squares,
        format!(r"\frac{{{}}}{{{}}}", "7".repeat(3900), "3".repeat(3900)),
        numbers.join(", "),
        sines.join(","),
        "1/3".repeat(2000),
        r"\pm 1 ".repeat(1000),
        "-".repeat(8000),
        "^".repeat(4000),
        "2^".repeat(2000),
        "x_".repeat(3000),
        r"\frac".repeat(1500),
        r"\boxed{".repeat(1000),
        r"\{".repeat(3000),
        r"\begin{pmatrix}&&&\\\\\\".to_owned(),
        r"0.\overline{".to_owned(),
        // A unit where no conversion reaches it.
        r"780\circ^\theta".to_owned(),
        // A bar that closes nothing within a bracket that closes nothing.
        r"|[\cup".to_owned(),
        "\u{0}\u{301}\\".to_owned(),
    ]
}

#[test]
fn hostile_answers_end_within_the_budget_and_are_wrong() {
    let limits = Limits::default();
    for truth in ["5", "x+1", r"\sin x", "(1,2)", r"\text{yes}", r"9^{9^{9^{9}}}+1"] {
        let truth = Truth::read(truth).unwrap();
        for answer in hostile() {
            let verdict = truth.check(&answer);
            let short: String = answer.chars().take(30).collect();
            assert!(verdict.steps <= limits.steps, "`{short}`: {} steps", verdict.steps);
            let balanced = answer.starts_with("((") || answer.starts_with("{{");
            assert!(!verdict.equal || balanced, "`{short}` beside `{}`", truth.text());
        }
    }
}

#[test]
fn a_chain_without_brackets_is_no_deeper_than_they() {
    let truth = Truth::read("5").unwrap();
    for answer in [
        format!("{}1", "1/".repeat(4000)),
        format!("{}1", r"1\div -".repeat(900)),
        format!("5{}", r"\%".repeat(4000)),
        format!("5{}", "%".repeat(8000)),
        format!("x{}", "!".repeat(8000)),
        format!("x{}", r"^\circ".repeat(1300)),
        format!("x{}", "^2".repeat(4000)),
        format!("x{}", r"\bmod 2".repeat(900)),
        format!("(1,2){}", r"\setminus\{1\}".repeat(400)),
        format!("(1,2){}", r"\cap(1,3)".repeat(700)),
        format!("(x+1){}", r"\text{ degrees}".repeat(500)),
    ] {
        let verdict = truth.check(&answer);
        let short: String = answer.chars().take(30).collect();
        // Two signs of percent are refused as such.
        let reason = if answer.contains('%') { "malformed" } else { "over_budget" };
        assert_eq!(verdict.reason.name(), reason, "`{short}`");
        assert!(matches!(Truth::read(&answer), Err(TruthError::Unread { .. })), "`{short}`");
    }
    // Chains that people write are read, and calculated in as little room as any other formula.
    for (answer, times) in [("!", 180), (r"\%", 180), ("/1", 180), (r"^{2}", 40)] {
        let verdict = truth.check(&format!("x{}", answer.repeat(times)));
        assert!(!verdict.equal);
    }
    assert!(equal("1/2/2/2", r"\frac{1}{8}"));
}

#[test]
fn over_the_budget_is_told_from_wrong() {
    let truth = Truth::read("5").unwrap();
    for answer in [format!("{}5{}", "(".repeat(10_000), ")".repeat(10_000)), "((x+1)^{31}+1)^{31}".to_owned()] {
        let verdict = truth.check(&answer);
        assert!(matches!(verdict.reason, Reason::Unread(Stop::Budget(_))), "{:?}", verdict.reason);
        assert_eq!(verdict.reason.name(), "over_budget");
        assert!(!verdict.equal);
    }
    // Fewer steps allowed, fewer spent.
    let tight = Truth::with_limits("5", Limits { steps: 300, ..Limits::default() }).unwrap();
    assert_eq!(tight.check("(x+1)^{20}").steps, 300);
    assert!(tight.check("5.0").equal);
}

#[test]
fn the_same_text_costs_the_same_on_every_thread() {
    let truth = Arc::new(Truth::read(r"\frac{\sqrt{3}}{2}").unwrap());
    let hostile = Arc::new(hostile());
    let alone: Vec<_> = hostile.iter().map(|answer| truth.check(answer)).collect();
    let alone = Arc::new(alone);
    let threads: Vec<_> = (0..64)
        .map(|thread: usize| {
            let (truth, hostile, alone) = (Arc::clone(&truth), Arc::clone(&hostile), Arc::clone(&alone));
            std::thread::spawn(move || {
                assert!(truth.check(r"\sin 60^\circ").equal);
                let at = thread % hostile.len();
                assert_eq!(truth.check(&hostile[at]), alone[at]);
                assert!(truth.check(r"\frac{3}{2\sqrt3}").equal);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

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

//! Numbers, radicals, constants.

use espalier_graders::math::{Stop, Truth, TruthError};

use super::{all_different, all_equal, equal, refused};

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
fn raised_digits_are_one_exponent() {
    all_equal(&[("x^{23}", "x²³"), ("2^{10}", "2¹⁰"), ("x^{-2}", "x⁻²"), ("25", r"25\text{ cm}²"), ("25", "25 cm²")]);
    all_different(&[("x^6", "x²³"), ("x^{230}", "x²³")]);
}

#[test]
fn repeating_decimals_are_exact() {
    all_equal(&[
        (r"\frac13", "0.(3)"),
        (r"\frac13", r"0.\overline{3}"),
        (r"-\frac{5}{11}", "-0.(45)"),
        (r"\frac{16}{3}", "5.(3)"),
        ("1", "0.(9)"),
        (r"\frac17", "0.(142857)"),
        (r"\frac13", r"0.\left(3\right)"),
    ]);
    all_different(&[
        (r"\frac13", "0.(4)"),
        (r"\frac13", "0.3"),
        ("0", "0.(3)"),
        ("12", "3.(4)"),
        (r"\frac16", "0.1(6)"),
    ]);
    refused(r"\frac13", &["0.(x)", "0. (3)", "0.(3", "0.()", "0.(.3)"]);
    // A product, as most who write it mean.
    all_equal(&[("0.6", "0.1(6)"), ("10", "2.5(4)")]);
}

#[test]
fn choices_are_their_number() {
    all_equal(&[
        ("120", "C(10,3)"),
        ("120", r"\binom{10}{3}"),
        ("120", "{}_{10}C_3"),
        ("120", r"{}_{10}\mathrm{C}_{3}"),
        ("120", "_{10}C_{3}"),
        ("120", "{}^{10}C_3"),
        ("120", "C(10, 7)"),
        (r"\binom{10}{3}", "C(10,3)"),
        ("120", "N = C(10,3)"),
        ("120", "C(10,3) = 120"),
        ("240", r"2 \cdot C(10,3)"),
        ("240", "2C(10,3)"),
        ("12", r"\frac{C(10,3)}{C(5,2)}"),
        ("12", "C(10,3)/C(5,2)"),
        ("130", "C(10,3)+C(5,2)"),
        ("240", "2{}_{10}C_3"),
        (r"\frac{n(n-1)(n-2)}{6}", r"\frac{n^3-3n^2+2n}{6}"),
    ]);
    all_different(&[
        ("120", "C(10,4)"),
        ("120", "C(3,10)"),
        ("121", "C(10,3) = 121"),
        ("120", "(10,3)"),
        ("120", "C = (10,3)"),
        ("120", "D(10,3)"),
        ("120", "{}_{10}C_4"),
        ("120", "{}_{3}C_{10}"),
    ]);
    refused("120", &["{}_{10}P_3", "{}_{10}C", "_{10}", "C(10,3,1)", "C(10)"]);
}

//! What stands behind a number: units, signs, bases, words.

use espalier_graders::math::equivalent;

use super::{all_different, all_equal, refused};

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
fn one_digit_with_a_subscript_is_no_number() {
    all_different(&[("5", "5_6"), ("5", "5_{36}")]);
    refused("7", &["7_6", "7_{1}", "7_{40}", "7_x"]);
    refused("19", &["{19}_8", "19_8"]);
    all_equal(&[("5_6", "5_{6}"), ("1011_2", "1011"), ("12", "{12}_{13}"), ("7", "7_{10}")]);
    assert_eq!(equivalent("19", "{19}_8").unwrap().reason.name(), "malformed");
}

#[test]
fn a_percentage_is_no_angle() {
    all_different(&[(r"50\%", r"50^\circ"), (r"50\%", r"50 \text{ degrees}")]);
    all_equal(&[(r"50\%", r"50 \text{ percent}"), (r"50^\circ", "50°")]);
}

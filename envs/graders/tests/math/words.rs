//! Answers in words, and what says nothing.

use super::{all_different, all_equal, equal, refused};

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
fn a_number_may_be_spelled() {
    all_equal(&[
        ("10", r"\text{ten}"),
        ("10", "Ten"),
        ("0", r"\text{zero}"),
        ("42", r"\text{forty-two}"),
        ("105", r"\text{one hundred and five}"),
        ("2300", r"\text{two thousand three hundred}"),
        ("1000005", r"\text{one million and five}"),
        ("-3", r"\text{minus three}"),
        ("10", r"x = \text{ten}"),
        (r"\text{ten}", "10.0"),
        (r"\{2,3\}", r"\{\text{two}, \text{three}\}"),
    ]);
    all_different(&[
        ("10", r"\text{nine}"),
        ("5", r"5\text{ thirteen}"),
        ("15", r"\text{ten five}"),
        ("15", r"\text{five ten}"),
        ("5000", r"\text{two thousand three thousand}"),
        ("100", r"\text{one hundred and}"),
        ("100", r"\text{zero hundred}"),
        ("2000", r"\text{one thousand thousand}"),
        ("0", r"\text{zero zero}"),
        ("10", r"\text{ten or eleven}"),
        ("10", r"\text{not ten}"),
        ("10", r"\text{tens}"),
        ("10", r"\text{tenth}"),
        ("7", r"\text{seven of nine}"),
    ]);
    refused("5", &[r"5\text{ten}"]);
}

//! Intervals, lists, tuples, sets, matrices.

use super::{all_different, all_equal, refused};

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
fn french_intervals_turn_their_brackets() {
    all_equal(&[
        ("[2,5)", "[2,5["),
        ("(2,5]", "]2,5]"),
        ("(2,5)", "]2,5["),
        ("[2,5)", r"\left[2,5\right["),
        (r"(-\infty,2)\cup(3,\infty)", r"]-\infty,2[ \cup ]3,+\infty["),
        ("[2,5)", r"x \in [2,5["),
        ("[2,5)", r"\lbrack 2 ; 5 \lbrack"),
        ("[2,3),(4,5]", r"[2,3[ \text{ and } ]4,5]"),
        (r"[2,\sqrt{5})", r"[2,\sqrt{5}["),
        ("[1234,5678)", "[1{,}234, 5678["),
    ]);
    all_different(&[
        ("[2,5]", "[2,5["),
        ("(2,5)", "[2,5["),
        ("[2,5)", "]2,5]"),
        ("[2,5]", "]2,5["),
        ("[2,5)", "[2,6["),
    ]);
    refused("(2,5)", &["]2,5)", "(2,5[", "]2,5", "]2,5[["]);
    refused("5", &["]5[", "]5]"]);
    refused("(2,5,7)", &["]2,5,7["]);
    // Brackets in brackets are still a matrix, and a product still one.
    all_equal(&[(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"), ("15", "[3][5]")]);
}

#[test]
fn a_point_may_have_a_name() {
    all_equal(&[
        ("(1,2)", "P(1,2)"),
        ("(1,2)", r"P\left(1, 2\right)"),
        ("(1,2,3)", "P_1(1,2,3)"),
        ("P(1,2)", "P = (1,2)"),
        ("P(1,2)", "P(1, 2.0)"),
        ("(1,2),(3,4)", "A(1,2), B(3,4)"),
        ("(10,3)", "C(10,3)"),
        ("(1,2)", "A'(1,2)"),
    ]);
    all_different(&[
        ("(1,2)", "P(2,1)"),
        ("P(1,2)", "Q(1,2)"),
        ("P(1,2)", "Q = (1,2)"),
        ("(1,2)", "P(1,2,3)"),
        ("(1,2)", "f(1,2)"),
        ("(1,2),(3,4)", "A(3,4), B(1,2)"),
        ("[1,2]", "P(1,2)"),
        (r"\{1,2\}", "P(1,2)"),
        ("3", "P(1,2)"),
    ]);
    refused("(1,2)", &["2P(1,2)", "p(1,2)", "PQ(1,2)", "P[1,2]", "P(1,2)+P(1,2)", "-P(1,2)"]);
    // A factor before a bracket is still one.
    all_equal(&[("Px+P", "P(x+1)"), ("A/B", "A(1)/B")]);
}

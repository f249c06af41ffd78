//! The comparison of results obeys the laws of multisets, and of order where the gold query has one.

use espalier_sql::compare::{Difference, Side, distinct, equal, same_set, values_equal};
use espalier_sql::{Row, Value};
use proptest::prelude::*;

fn side(rows: &[Row]) -> Side<'_> {
    Side { columns: rows.first().map_or(2, Vec::len), rows }
}

fn same(gold: &[Row], answer: &[Row]) -> bool {
    equal(side(gold), side(answer), None).is_ok()
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        (-3_i64..4).prop_map(Value::Integer),
        (-3_i64..4).prop_map(|whole| Value::Real(whole as f64 / 2.0)),
        // Rounding noise around the same numbers.
        (-3_i64..4, -2_i64..3).prop_map(|(whole, noise)| Value::Real(whole as f64 + noise as f64 * 4e-10)),
        "[ab1]{0,2}".prop_map(Value::Text),
        proptest::collection::vec(0_u8..3, 0..2).prop_map(Value::Blob),
    ]
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    proptest::collection::vec(proptest::collection::vec(value(), 2), 1..9)
}

/// Whether a perfect pairing exists, by trying all.
fn pairing(gold: &[Row], answer: &[Row]) -> bool {
    let Some((first, rest)) = gold.split_first() else { return answer.is_empty() };
    (0..answer.len()).any(|index| {
        let mut left = answer.to_vec();
        let row = left.remove(index);
        first.iter().zip(&row).all(|(left, right)| values_equal(left, right)) && pairing(rest, &left)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_order_of_the_same_rows_is_equal(rows in rows(), by in 0_usize..9) {
        let mut other = rows.clone();
        other.rotate_left(by % rows.len());
        other.reverse();
        prop_assert!(same(&rows, &other) && same(&rows, &rows));
    }

    #[test]
    fn one_row_more_or_less_is_different(rows in rows(), extra in 0_usize..9) {
        let mut more = rows.clone();
        more.push(rows[extra % rows.len()].clone());
        prop_assert!(!same(&rows, &more) && !same(&more, &rows));
        let doubled_for_another = [&more[1..], &[]].concat();
        prop_assert_eq!(same(&rows, &doubled_for_another), pairing(&rows, &doubled_for_another));
    }

    #[test]
    fn equality_is_the_existence_of_a_pairing(gold in rows(), answer in rows()) {
        let there = gold.len() == answer.len() && pairing(&gold, &answer);
        prop_assert_eq!(same(&gold, &answer), there);
        prop_assert_eq!(same(&answer, &gold), there);
    }

    #[test]
    fn noise_below_the_tolerance_changes_nothing(
        numbers in proptest::collection::vec((0_i64..4, 0_i64..40), 1..60),
        signs in proptest::collection::vec(-1_i8..2, 60),
    ) {
        let row = |first: f64, second: i64| vec![Value::Real(first), Value::Integer(second)];
        let gold: Vec<Row> = numbers.iter().map(|&(first, second)| row(first as f64, second)).collect();
        let mut answer: Vec<Row> = numbers
            .iter()
            .zip(&signs)
            .map(|(&(first, second), sign)| row(first as f64 * (1.0 + f64::from(*sign) * 1e-13), second))
            .collect();
        answer.reverse();
        prop_assert!(same(&gold, &answer));
    }

    #[test]
    fn groups_of_ties_may_be_permuted_within_and_not_across(
        sizes in proptest::collection::vec(1_usize..4, 2..5),
        swap in any::<bool>(),
    ) {
        let rows: Vec<Row> = sizes
            .iter()
            .enumerate()
            .flat_map(|(group, size)| (0..*size).map(move |row| vec![Value::Integer(group as i64), Value::Integer(row as i64)]))
            .collect();
        let mut within = Vec::new();
        let mut from = 0;
        for size in &sizes {
            within.extend(rows[from..from + size].iter().rev().cloned());
            from += size;
        }
        prop_assert_eq!(equal(side(&rows), side(&within), Some(&sizes)), Ok(()));
        if swap {
            within.swap(sizes[0] - 1, sizes[0]);
            prop_assert_eq!(equal(side(&rows), side(&within), Some(&sizes)), Err(Difference::Order));
            prop_assert_eq!(equal(side(&rows), side(&within), None), Ok(()));
        }
    }

    #[test]
    fn sets_forget_order_and_multiplicity(rows in rows()) {
        let doubled: Vec<Row> = rows.iter().rev().chain(&rows).cloned().collect();
        prop_assert!(same_set(&rows, &doubled));
        let kept: Vec<Row> = distinct(&doubled).into_iter().cloned().collect();
        prop_assert!(same_set(&kept, &rows) && kept.len() <= rows.len());
    }
}

#[test]
fn values_are_equal_by_value_within_their_kind() {
    use Value::{Blob, Integer, Null, Real, Text};
    let text = |text: &str| Text(text.to_owned());
    for (left, right) in [
        (Null, Null),
        (Integer(1), Real(1.0)),
        (Real(0.1 + 0.2), Real(0.3)),
        (Real(1e12), Real(1e12 + 1.0)),
        (Real(-0.0), Integer(0)),
        (Real(1e-17), Integer(0)),
        (Real(f64::INFINITY), Real(f64::INFINITY)),
    ] {
        assert!(values_equal(&left, &right) && values_equal(&right, &left), "{left:?} {right:?}");
    }
    for (left, right) in [
        (Null, Integer(0)),
        (Null, text("")),
        (Integer(1), text("1")),
        (text("a"), text("A")),
        (text("a"), text("a ")),
        (text("a"), Blob(b"a".to_vec())),
        (Real(1.0), Real(1.00001)),
        (Integer(i64::MAX), Integer(i64::MAX - 1)),
        (Real(f64::INFINITY), Real(f64::NEG_INFINITY)),
        (Real(f64::INFINITY), Real(1e308)),
    ] {
        assert!(!values_equal(&left, &right) && !values_equal(&right, &left), "{left:?} {right:?}");
    }
}

#[test]
fn differences_are_told() {
    let one: Vec<Row> = vec![vec![Value::Integer(1)]];
    let two: Vec<Row> = vec![vec![Value::Integer(2)]];
    let none: Vec<Row> = Vec::new();
    assert_eq!(equal(side(&one), side(&two), None), Err(Difference::Values));
    assert_eq!(equal(side(&one), Side { columns: 1, rows: &none }, None), Err(Difference::Rows { gold: 1, answer: 0 }));
    let empty = |columns| Side { columns, rows: &none };
    assert_eq!(equal(empty(1), empty(1), None), Ok(()));
    assert_eq!(equal(empty(1), empty(2), None), Err(Difference::Columns { gold: 1, answer: 2 }));
    assert!(same_set(&none, &none) && !same_set(&one, &none));
}

#[test]
fn many_rows_that_rounding_sorts_differently_are_still_paired() {
    let row = |first: f64, second: i64| vec![Value::Real(first), Value::Integer(second)];
    let gold: Vec<Row> = (0..2000).map(|number| row(1.0 + (number % 7) as f64 * 1e-14, number)).collect();
    let answer: Vec<Row> = (0..2000).map(|number| row(1.0 + (number % 5) as f64 * 1e-14, number)).collect();
    assert!(same(&gold, &answer));
}

//! A result as text is bounded and says what it leaves out; databases are found where data sets put them.

use espalier_sql::locate::{Layout, find};
use espalier_sql::render::{Shown, table};
use espalier_sql::{LeftOut, SqlError, Table, Value};
use proptest::prelude::*;

fn numbers(count: i64, left_out: LeftOut) -> Table {
    let rows = (0..count).map(|number| vec![Value::Integer(number)]).collect();
    Table { columns: vec!["n".to_owned()], rows, left_out }
}

#[test]
fn rows_that_are_left_out_are_counted() {
    let shown = Shown { rows: 2, ..Shown::default() };
    for (result, last) in [
        (numbers(0, LeftOut::None), "(0 rows)"),
        (numbers(1, LeftOut::None), "(1 row)"),
        (numbers(2, LeftOut::None), "(2 rows)"),
        (numbers(3, LeftOut::None), "(1 more row left out)"),
        (numbers(3, LeftOut::Exactly(7)), "(8 more rows left out)"),
        (numbers(2, LeftOut::AtLeast(7)), "(at least 7 more rows left out)"),
    ] {
        assert_eq!(table(&result, shown).lines().last(), Some(last));
    }
    assert_eq!(table(&Table::default(), shown), "(no result)");
}

#[test]
fn values_are_told_apart_and_cut() {
    let long = "x".repeat(1000);
    let row = vec![
        Value::Null,
        Value::Integer(-7),
        Value::Real(2.0),
        Value::Text("a\nb\tc".to_owned()),
        Value::Blob(vec![0, 255]),
        Value::Blob(vec![1; 40]),
        Value::Text(long),
    ];
    let columns = (0..row.len()).map(|number| format!("c{number}")).collect();
    let text =
        table(&Table { columns, rows: vec![row], left_out: LeftOut::None }, Shown { value: 5, ..Shown::default() });
    let expected = "NULL | -7 | 2.0 | a\\nb\\… | x'00ff' | x'01010101010101010101010101010101…' (40 bytes) | xxxxx…";
    assert_eq!(text.lines().nth(2), Some(expected));
}

proptest! {
    #[test]
    fn the_text_is_bounded(
        rows in proptest::collection::vec(proptest::collection::vec("[a-zé\n]{0,40}", 3), 0..40),
        chars in 1_usize..400,
        most in 1_usize..30,
    ) {
        let rows: Vec<Vec<Value>> = rows.into_iter().map(|row| row.into_iter().map(Value::Text).collect()).collect();
        let columns = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let text = table(&Table { columns, rows, left_out: LeftOut::None }, Shown { rows: most, chars, value: 20 });
        // The rule below the header and the last line come on top.
        prop_assert!(text.chars().count() <= chars + 80, "{}", text);
        prop_assert!(text.lines().count() <= most + 3);
    }
}

#[test]
fn databases_are_found_where_data_sets_put_them() {
    let root = tempfile::tempdir().unwrap();
    for path in [
        "SynSQL-2.5M/databases/a/a.sqlite",
        "spider/database/a/a.sqlite",
        "bird/train/train_databases/a/a.sqlite",
        "a/a.sqlite",
        "b.sqlite",
    ] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    for (layout, id, path) in [
        ("synsql", "a", "SynSQL-2.5M/databases/a/a.sqlite"),
        ("spider", "a", "spider/database/a/a.sqlite"),
        ("bird", "a", "bird/train/train_databases/a/a.sqlite"),
        ("plain", "a", "a/a.sqlite"),
        ("plain", "b", "b.sqlite"),
    ] {
        assert_eq!(find(root.path(), Layout::named(layout).unwrap(), id), Ok(root.path().join(path)));
    }
    assert!(matches!(find(root.path(), Layout::Spider, "b"), Err(SqlError::NoDatabase { .. })));
    for id in ["", ".", "..", "../a", "a/a", "/a", "a\\a", "a\0"] {
        assert!(matches!(find(root.path(), Layout::Plain, id), Err(SqlError::BadName { .. })), "{id}");
    }
    assert_eq!(Layout::named("other"), None);
}

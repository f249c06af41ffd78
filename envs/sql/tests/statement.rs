//! What is read of a statement before SQLite reads it, and which rows of a gold result tie.

use espalier_sql::statement::{Kind, Statement};
use espalier_sql::{Database, OpenOptions, Request, order};
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_text_has_tokens_that_lie_in_it(text in "([a-z(),;'\"\\[\\]`. 0-9*/\\-\n]|SELECT |FROM |WITH |AS |é){0,60}") {
        let statement = Statement::read(&text);
        let mut end = 0;
        for token in statement.tokens() {
            prop_assert!(token.at.start >= end && token.at.end > token.at.start);
            prop_assert!(!statement.text(token).is_empty());
            end = token.at.end;
        }
        prop_assert!(end <= statement.end && statement.end <= text.len());
        prop_assert!(statement.expanded(1000) <= 1001);
        let _ = order::is_ordered(&text);
    }
}

#[test]
fn statements_are_counted() {
    for (sql, empty, several) in [
        ("", true, false),
        (" ;; -- a\n/* b */ ;", true, false),
        ("SELECT 1", false, false),
        (";SELECT 1;;", false, false),
        ("SELECT 1; -- and\n /* no more", false, false),
        ("SELECT 1; SELECT 2", false, true),
        ("SELECT ';'", false, false),
        ("SELECT ';''' || \";\" || [;] || `;`", false, false),
        ("SELECT 'it''s'; x", false, true),
    ] {
        let statement = Statement::read(sql);
        assert_eq!((statement.is_empty(), statement.several), (empty, several), "{sql}");
    }
    let statement = Statement::read("with x AS (SELECT 'a(b') select [c d] FROM x -- (((");
    assert_eq!((statement.nesting, statement.selects, statement.keyword().as_str()), (1, 2, "WITH"));
    assert!(statement.is_query() && statement.tokens().iter().any(|token| token.kind == Kind::Quoted));
}

#[test]
fn common_table_expressions_are_counted_where_they_are_used() {
    for (sql, selects) in [
        ("SELECT 1", 1),
        ("WITH a AS (SELECT 1) SELECT * FROM a", 3),
        ("WITH a AS (SELECT 1) SELECT * FROM a, a JOIN a", 5),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a, a) SELECT * FROM b, b", 9),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT * FROM c", 4),
        ("WITH a AS (SELECT total AS a FROM t), total AS (SELECT a FROM a) SELECT total.a FROM total", 5),
        ("WITH a AS (SELECT 1) SELECT a.x, a FROM t AS a WHERE x IN a", 3),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a", 1001),
    ] {
        assert_eq!(Statement::read(sql).expanded(1000), selects, "{sql}");
    }
}

#[test]
fn rows_tie_where_what_they_are_ordered_by_is_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sqlite");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(
            "CREATE TABLE t (a TEXT, b INTEGER, c REAL);
             INSERT INTO t VALUES ('x', 1, 0.5), ('X', 1, 0.5), ('y', 2, 1.5), ('z', 2, NULL), ('z', 3, NULL);",
        )
        .unwrap();
    let database = Database::open(&path, OpenOptions::default()).unwrap();
    for (sql, ties) in [
        ("SELECT a FROM t", None),
        ("SELECT * FROM (SELECT a FROM t ORDER BY b)", None),
        ("SELECT a, rank() OVER (ORDER BY b) FROM t", None),
        ("SELECT a, b FROM t ORDER BY b", Some(vec![2, 2, 1])),
        ("SELECT a, b FROM t ORDER BY 2 DESC, 1", Some(vec![1, 1, 1, 1, 1])),
        ("SELECT a AS k, b FROM t ORDER BY k COLLATE NOCASE", Some(vec![2, 1, 2])),
        ("SELECT a FROM t ORDER BY b", Some(vec![2, 2, 1])),
        ("SELECT a FROM t ORDER BY t.b /* so */ DESC NULLS LAST LIMIT 3", Some(vec![1, 2])),
        ("SELECT a FROM t ORDER BY c + 1, length(a), 'k'", Some(vec![2, 2, 1])),
        ("SELECT b, count(*) FROM t GROUP BY b ORDER BY count(*) DESC", Some(vec![2, 1])),
        ("SELECT b FROM t GROUP BY b HAVING count(*) > 0 ORDER BY max(c) DESC", Some(vec![1, 1, 1])),
        ("WITH u AS (SELECT * FROM t ORDER BY c) SELECT a FROM u ORDER BY b;", Some(vec![2, 2, 1])),
        ("SELECT b FROM t UNION SELECT 1 ORDER BY b", Some(vec![1, 1, 1])),
        ("SELECT DISTINCT b FROM t ORDER BY 1", Some(vec![1, 1, 1])),
        // What cannot be known is not required.
        ("SELECT DISTINCT b FROM t ORDER BY b % 2", None),
        ("SELECT a AS k FROM t ORDER BY upper(k) || 1", None),
    ] {
        let gold = order::gold(&database, sql, &Request::default()).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(gold.ties, ties, "{sql}: {:?}", gold.table.rows);
    }
}

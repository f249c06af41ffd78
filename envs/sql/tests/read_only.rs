//! Hostile queries: each ends within its limits, the file stays as it is, and the next query is not affected.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use espalier_sql::{Database, Databases, LeftOut, Limits, OpenOptions, Overflow, Request, SqlError, Value, Writes};

/// A database of three tables in a folder of its own.
fn database(folder: &Path) -> Database {
    let path = folder.join("shop.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL);
             INSERT INTO item VALUES (1, 'nut', 0.5), (2, 'bolt', 1.25), (3, NULL, NULL);
             CREATE TABLE big (n INTEGER);
             WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2000) INSERT INTO big SELECT n FROM c;
             CREATE VIEW cheap AS SELECT * FROM item WHERE price < 1;
             CREATE TRIGGER t AFTER INSERT ON item BEGIN DELETE FROM big; END;",
        )
        .unwrap();
    drop(connection);
    Database::open(&path, OpenOptions::default()).unwrap()
}

fn request(milliseconds: u64) -> Request {
    let time = Duration::from_millis(milliseconds);
    Request { limits: Limits { time, ..Limits::default() }, ..Request::default() }
}

fn nested(times: usize, open: &str, middle: &str, close: &str) -> String {
    format!("{}{middle}{}", open.repeat(times), close.repeat(times))
}

/// Queries that must not write, and that must be refused.
const WRITES: &[&str] = &[
    "DELETE FROM item",
    "INSERT INTO item VALUES (9, 'x', 1)",
    "UPDATE item SET price = 0",
    "REPLACE INTO item VALUES (1, 'x', 1)",
    "WITH gone AS (SELECT 1) DELETE FROM item",
    "WITH gone AS (SELECT id FROM item) UPDATE item SET price = 0 WHERE id IN gone",
    "INSERT INTO item SELECT * FROM item RETURNING *",
    "DELETE FROM item RETURNING id",
    "CREATE TABLE x (y)",
    "CREATE TEMP TABLE x (y)",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE INDEX x ON item (name)",
    "CREATE TRIGGER y AFTER DELETE ON item BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE x USING fts5(y)",
    "DROP TABLE item",
    "DROP VIEW cheap",
    "ALTER TABLE item RENAME TO things",
    "ALTER TABLE item ADD COLUMN x",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "VACUUM INTO 'copy.sqlite'",
    "ATTACH 'other.sqlite' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "BEGIN",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "SAVEPOINT s",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA user_version = 7",
    "PRAGMA database_list",
    "PRAGMA temp_store_directory = '/'",
    "PRAGMA wal_checkpoint",
    "PRAGMA optimize",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_journal_mode",
    "UPDATE sqlite_master SET sql = ''",
    "SELECT load_extension('x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('x', 'y')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT edit('x')",
    "SELECT 1; DROP TABLE item",
    "SELECT 1; SELECT 2",
    ".tables",
    "EXPLAIN DELETE FROM item",
    "",
    " ; -- nothing",
    "SELECT ?",
    "SELECT :name",
    "SELECT 1 \0; DROP TABLE item",
    "SELEC 1",
    "SELECT 'open",
    "SELECT /* open",
];

/// Queries that would take for ever, or take everything.
fn costly() -> Vec<String> {
    let mut ctes = "WITH c0(x) AS (SELECT 1)".to_owned();
    for level in 1..60 {
        let below = level - 1;
        // Writing to a String cannot fail.
        let _ = write!(ctes, ", c{level}(x) AS (SELECT a.x FROM c{below} a, c{below} b)");
    }
    ctes.push_str(" SELECT count(*) FROM c59");
    let endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)";
    let mut costly: Vec<String> = [
        format!("{endless} SELECT count(*) FROM c"),
        format!("{endless} SELECT n FROM c"),
        format!("{endless} SELECT group_concat(n) FROM c"),
        format!("{endless} SELECT zeroblob(200000) FROM c ORDER BY 1"),
        format!("{endless} SELECT DISTINCT randomblob(1000) FROM c"),
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION SELECT n + 1 FROM c UNION SELECT n + 2 FROM c) SELECT max(n) FROM c"
            .into(),
        "SELECT count(*) FROM big a, big b, big c, big d".into(),
        "SELECT count(*) FROM big a JOIN big b ON a.n + b.n = -1 JOIN big c ON c.n * b.n = -1".into(),
        "SELECT a.n FROM big a, big b, big c ORDER BY random()".into(),
        "SELECT randomblob(1000000000)".into(),
        "SELECT zeroblob(1000000000)".into(),
        "SELECT hex(zeroblob(200000))".into(),
        "SELECT printf('%1000000000d', 1)".into(),
        "SELECT printf('%.*c', 1000000000, 'x')".into(),
        "SELECT replace(hex(zeroblob(100000)), '0', hex(zeroblob(100000)))".into(),
        "SELECT group_concat(hex(zeroblob(100000))) FROM big".into(),
        "SELECT length(replace(printf('%.*c', 250000, 'a'), printf('%.*c', 125000, 'a') || 'b', '')) FROM big".into(),
        "SELECT instr(printf('%.*c', 250000, 'a'), printf('%.*c', 125000, 'a') || 'b') FROM big".into(),
        "SELECT count(*) FROM big WHERE printf('%.*c', 250000, 'a') LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%a%a%b'".into(),
        "SELECT count(*) FROM big WHERE printf('%.*c', 250000, 'a') GLOB '*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b'".into(),
        "SELECT sum(json_array_length(json('[' || printf('%.*c', 100000, '[') ))) FROM big".into(),
        format!("SELECT '{}'", "x".repeat(10_000_000)),
        format!("SELECT {}", vec!["1"; 30_000].join(",")),
        format!("SELECT 1 WHERE 1 IN ({})", vec!["1"; 30_000].join(",")),
        format!("SELECT {}", vec!["1"; 20_000].join("+")),
        format!("SELECT {}1", "- ".repeat(20_000)),
        format!("SELECT {}1", "NOT ".repeat(15_000)),
        format!("SELECT 1 {}", "UNION ALL SELECT 1 ".repeat(3_000)),
        format!("SELECT 1 FROM {}", vec!["big"; 10_000].join(",")),
        format!("SELECT 1 FROM {}", vec!["item NATURAL JOIN big"; 60].join(",")),
        format!("SELECT {}", "CASE WHEN 1 THEN ".repeat(3_000)),
        nested(30_000, "(", "1", ")").replacen('(', "SELECT (", 1),
        nested(3_000, "SELECT (", "SELECT 1", ")"),
        nested(2_000, "SELECT * FROM (", "SELECT 1", ")"),
        nested(90, "SELECT * FROM (", "SELECT 1", ")"),
        nested(90, "SELECT (", "SELECT 1", ")"),
        nested(90, "SELECT abs(", "1", ")"),
        ctes,
    ]
    .into();
    let mut chain = "WITH c0(x) AS (SELECT 1)".to_owned();
    for level in 1..98 {
        let _ = write!(chain, ", c{level}(x) AS (SELECT x FROM c{} ORDER BY 1 LIMIT 1)", level - 1);
    }
    costly.push(format!("{chain} SELECT * FROM c97"));
    let shadowed = nested(60, "WITH a AS (", "SELECT 1 AS x", ") SELECT l.x FROM a AS l, a AS r");
    costly.push(shadowed);
    let mut comma = "WITH [c0](x) AS MATERIALIZED (SELECT 1)".to_owned();
    for level in 1..60 {
        let below = level - 1;
        let _ =
            write!(comma, ", \"C{level}\"(x) AS (SELECT 1 FROM (C{below} JOIN c{below} AS y), main.`c{below}` AS z)");
    }
    costly.push(format!("{comma} SELECT count(*) FROM c59"));
    let mut nine = "WITH c0(x) AS (SELECT 1)".to_owned();
    for level in 1..9 {
        let below = level - 1;
        let _ = write!(nine, ", c{level}(x) AS (SELECT a.x FROM c{below} a, c{below} b)");
    }
    costly.push(format!("{nine} SELECT count(*) FROM c8"));
    costly
}

#[test]
fn nothing_is_written_and_every_refusal_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let before = std::fs::read(database.path()).unwrap();
    for sql in WRITES {
        let error = database.query(sql, &request(2000)).expect_err(sql);
        assert!(!error.is_fault() && !error.is_timeout(), "{sql}: {error}");
        assert!(!error.to_string().is_empty());
        let next = database.query("SELECT count(*) FROM item", &request(2000)).unwrap();
        assert_eq!(next.rows, [[Value::Integer(3)]], "after {sql}");
    }
    assert_eq!(std::fs::read(database.path()).unwrap(), before);
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "no file beside the database");
}

#[test]
#[expect(clippy::print_stderr, reason = "how long each took, where the test is run with its output")]
fn a_costly_query_ends_and_the_next_one_is_not_affected() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let before = std::fs::read(database.path()).unwrap();
    for sql in costly() {
        let start: String = sql.chars().take(90).collect();
        let began = Instant::now();
        let ended = match database.query(&sql, &request(300)) {
            Ok(table) => {
                let bytes: usize = table.rows.iter().flatten().map(size).sum();
                assert!(table.rows.len() <= 1000 && bytes <= 17 << 20, "{start}");
                "a result".to_owned()
            }
            Err(error) => {
                assert!(!error.is_fault(), "{start}: {error}");
                error.to_string().chars().take(100).collect()
            }
        };
        eprintln!("{:6} ms  {start}: {ended}", began.elapsed().as_millis());
        let next = database.query("SELECT count(*) FROM big", &request(2000)).unwrap();
        assert_eq!(next.rows, [[Value::Integer(2000)]], "after {start}");
    }
    assert_eq!(std::fs::read(database.path()).unwrap(), before);
}

fn size(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Blob(bytes) => bytes.len(),
        _ => 8,
    }
}

#[test]
fn an_endless_query_ends_by_the_clock_by_its_instructions_or_by_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c";
    assert_eq!(database.query(endless, &request(50)), Err(SqlError::Timeout { milliseconds: 50 }));

    let limits = Limits { instructions: 100_000, time: Duration::from_mins(10), ..Limits::default() };
    let spent = database.query(endless, &Request { limits, ..Request::default() });
    assert_eq!(spent, Err(SqlError::TooManyInstructions { limit: 100_000 }));

    let cancel = Arc::new(AtomicBool::new(false));
    let request = Request { cancel: Arc::clone(&cancel), ..request(600_000) };
    std::thread::scope(|scope| {
        let query = scope.spawn(|| database.query(endless, &request));
        cancel.store(true, Ordering::Relaxed);
        assert_eq!(query.join().unwrap(), Err(SqlError::Cancelled));
    });
}

#[test]
fn rows_beyond_the_limit_are_counted_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let all = "SELECT n FROM big ORDER BY n";
    let limits = Limits { rows: 10, ..Limits::default() };
    let table = database.query(all, &Request { limits, ..Request::default() }).unwrap();
    assert_eq!((table.rows.len(), table.left_out), (10, LeftOut::Exactly(1990)));
    let limits = Limits { rows: 10, counted: 5, ..Limits::default() };
    let table = database.query(all, &Request { limits, ..Request::default() }).unwrap();
    assert_eq!((table.rows.len(), table.left_out), (10, LeftOut::AtLeast(5)));
    let refuse = Request { limits, overflow: Overflow::Refuse, ..Request::default() };
    assert_eq!(database.query(all, &refuse), Err(SqlError::TooManyRows { limit: 10 }));
    let limits = Limits { bytes: 1000, ..Limits::default() };
    let refuse = Request { limits, overflow: Overflow::Refuse, ..Request::default() };
    assert_eq!(database.query(all, &refuse), Err(SqlError::TooManyBytes { limit: 1000 }));
}

#[test]
fn reading_works_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    for (sql, rows) in [
        ("SELECT * FROM item", 3),
        ("SELECT * FROM cheap;", 1),
        ("  ;; SELECT 1 ; ; -- done", 1),
        ("VALUES (1), (2)", 2),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT * FROM c", 5),
        ("SELECT name FROM sqlite_master WHERE type = 'table'", 2),
        ("PRAGMA table_info(item)", 3),
        ("SELECT * FROM pragma_table_info('item')", 3),
        ("EXPLAIN QUERY PLAN SELECT * FROM item", 1),
        ("SELECT ';' || '--' || '/*' AS x -- it's \"odd\"", 1),
        ("SELECT value FROM json_each('[1,2,3]')", 3),
        ("SELECT name, rank() OVER (ORDER BY price) FROM item", 3),
    ] {
        let table = database.query(sql, &request(2000)).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(table.rows.len(), rows, "{sql}");
    }
    let table = database.query("SELECT 1 AS a, 2.5, 'x', x'00ff', NULL", &request(2000)).unwrap();
    assert_eq!(table.columns[0], "a");
    let values = [Value::Integer(1), Value::Real(2.5), Value::Text("x".into()), Value::Blob(vec![0, 255]), Value::Null];
    assert_eq!(table.rows, [values]);
}

#[test]
fn errors_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    for (sql, text) in [
        ("DELETE FROM item", "DELETE is not allowed: the database is read-only"),
        ("VACUUM", "VACUUM is not allowed: the database is read-only"),
        ("PRAGMA user_version", "PRAGMA user_version is not allowed"),
        ("ATTACH 'x' AS y", "ATTACH is not allowed"),
        ("SELECT 1; SELECT 2", "there is more than one statement; send one at a time"),
        ("SELECT nam FROM item", "no such column: nam"),
        ("SELECT * FROM items", "no such table: items"),
        ("SELEC 1", "syntax error: near \"SELEC\": syntax error"),
        ("SELECT zeroblob(1000000)", "a value is too large: at most 262144 bytes are allowed"),
    ] {
        assert_eq!(database.query(sql, &request(2000)).unwrap_err().to_string(), text, "{sql}");
    }
}

#[test]
fn a_write_that_is_only_compiled_gives_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let before = std::fs::read(database.path()).unwrap();
    let pretend = Request { writes: Writes::Pretend, ..request(2000) };
    for sql in
        ["DELETE FROM item", "INSERT INTO item VALUES (9, 'x', 1)", "UPDATE item SET price = 0", "DROP TABLE big"]
    {
        let table = database.query(sql, &pretend).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert!(table.rows.is_empty(), "{sql}");
    }
    assert!(database.query("DELETE FROM nothing", &pretend).is_err());
    assert!(database.query("ATTACH 'x' AS y", &pretend).is_err());
    assert!(database.query("DELETE FROM item", &request(2000)).is_err(), "the next query is refused again");
    assert_eq!(std::fs::read(database.path()).unwrap(), before);
}

#[test]
fn a_file_that_is_replaced_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path()).path().to_owned();
    let databases = Databases::default();
    let count = |sql| databases.open(&path).unwrap().query(sql, &request(2000)).map(|table| table.rows.len());
    assert_eq!(count("SELECT * FROM item"), Ok(3));
    let other = folder.path().join("other");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE fresh (x)").unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(count("SELECT * FROM fresh"), Ok(0));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(databases.open(&path), Err(SqlError::NoDatabase { .. })));
    std::fs::write(&path, "this is no database, only a text that is long enough to be looked at").unwrap();
    assert!(matches!(databases.open(&path), Err(SqlError::Storage { .. })));
    assert!(matches!(databases.open(folder.path()), Err(SqlError::Storage { .. })));
}

#[test]
fn a_path_with_odd_characters_and_an_immutable_file_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("a?b#c %41&mode=rw");
    std::fs::create_dir(&odd).unwrap();
    let path = database(&odd).path().to_owned();
    let immutable = Database::open(&path, OpenOptions { immutable: true }).unwrap();
    assert_eq!(immutable.query("SELECT * FROM item", &request(2000)).unwrap().rows.len(), 3);
}

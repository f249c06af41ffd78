//! The rendering under `compat`, against what pandas printed (`make_pandas_fixture.py`).

use espalier_sql::{Row, Value, pandas};

fn read(value: &serde_json::Value) -> Value {
    let field = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    if let Some(integer) = field("i") {
        Value::Integer(integer.parse().unwrap())
    } else if let Some(real) = field("r") {
        Value::Real(real.parse().unwrap())
    } else if let Some(hex) = field("b") {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        Value::Blob((0..hex.len()).step_by(2).map(byte).collect())
    } else if let Some(text) = value.as_str() {
        Value::Text(text.to_owned())
    } else {
        assert!(value.is_null(), "{value}");
        Value::Null
    }
}

#[test]
fn every_case_is_printed_as_pandas_does() {
    let cases = include_str!("pandas.jsonl");
    assert!(cases.lines().count() > 400);
    for (number, line) in cases.lines().enumerate() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let rows: Vec<Row> = case["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_array().unwrap().iter().map(read).collect())
            .collect();
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(pandas::observation(&rows), case["text"].as_str().unwrap(), "case {number}: {}", case["rows"]);
    }
}

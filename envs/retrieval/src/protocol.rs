//! Requests and answers of `POST /retrieve`, as Search-R1's and skyrl-gym's clients and servers write them.
//!
//! A request is `{"query": TEXT, "topk": N, "return_scores": BOOL}`, or `queries`, a list, in place of `query`. The
//! answer is `{"result": [LIST, ...]}`, one list per query: with scores its items are
//! `{"document": {"contents": TEXT, ...}, "score": NUMBER}`, without them the documents alone. A client accepts both.

use serde_json::{Map, Value, json};

use crate::retriever::Hit;

/// Longest query, bytes. A longer one is refused by the server and cut by nobody.
pub const MAX_QUERY_BYTES: usize = 2 << 20;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The queries; one for the single form.
    pub queries: Vec<String>,
    /// Documents per query, where the request says.
    pub topk: Option<usize>,
    /// Whether items carry their score.
    pub return_scores: bool,
}

/// What a request must stay within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// Most documents per query.
    pub topk: usize,
    /// Most queries in one request.
    pub queries: usize,
}

/// Reads a request's body. The complaint says what was expected and what came.
pub fn read_request(body: &[u8], bounds: RequestBounds) -> Result<Request, String> {
    const FORM: &str = r#"expected {"query": TEXT, "topk": N, "return_scores": true}, or "queries": [TEXT, ...]"#;
    let value: Value = espalier_json::value(body).map_err(|error| match error.classify() {
        // A key that stands twice; all else may be in a value.
        serde_json::error::Category::Data => format!("in the body, {error}; {FORM}"),
        _ => format!("the body is not JSON ({error}); {FORM}"),
    })?;
    let Value::Object(mut fields) = value else {
        return Err(format!("the body is {}; {FORM}", kind(&value)));
    };
    let queries = match (fields.remove("query"), fields.remove("queries")) {
        (Some(_), Some(_)) => return Err(format!("`query` and `queries` exclude each other; {FORM}")),
        (None, None) => return Err(format!("`query` is missing; {FORM}")),
        (Some(Value::String(query)), None) => vec![query],
        (Some(other), None) => return Err(format!("`query` must be a text, got {}; {FORM}", kind(&other))),
        (None, Some(Value::Array(items))) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| match item {
                Value::String(query) => Ok(query),
                other => Err(format!("`queries[{at}]` must be a text, got {}; {FORM}", kind(&other))),
            })
            .collect::<Result<_, _>>()?,
        (None, Some(other)) => return Err(format!("`queries` must be a list of texts, got {}; {FORM}", kind(&other))),
    };
    if queries.len() > bounds.queries {
        return Err(format!(
            "`queries` may hold {} texts, got {}; send several requests",
            bounds.queries,
            queries.len()
        ));
    }
    if let Some(long) = queries.iter().find(|query| query.len() > MAX_QUERY_BYTES) {
        return Err(format!("a query may have {MAX_QUERY_BYTES} bytes, got one of {}", long.len()));
    }
    let topk = match fields.remove("topk") {
        None | Some(Value::Null) => None,
        Some(value) => match value.as_u64().and_then(|topk| usize::try_from(topk).ok()) {
            Some(topk) if (1..=bounds.topk).contains(&topk) => Some(topk),
            _ => return Err(format!("`topk` must be a whole number from 1 to {}, got `{value}`", bounds.topk)),
        },
    };
    let return_scores = match fields.remove("return_scores") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(wanted)) => wanted,
        Some(other) => return Err(format!("`return_scores` must be true or false, got `{other}`")),
    };
    // Other fields are left alone: clients of other servers send some of their own.
    Ok(Request { queries, topk, return_scores })
}

/// The answer to a request, one list per query.
pub fn answer(lists: Vec<Vec<Hit>>, return_scores: bool) -> Value {
    let lists = lists.into_iter().map(|hits| {
        Value::Array(
            hits.into_iter()
                .map(|hit| {
                    if return_scores {
                        json!({"document": hit.document, "score": hit.score})
                    } else {
                        Value::Object(hit.document)
                    }
                })
                .collect(),
        )
    });
    json!({"result": lists.collect::<Vec<_>>()})
}

/// The lists of an answer. The complaint says what was expected and what came.
pub fn read_answer(answer: &Value) -> Result<Vec<Vec<Hit>>, String> {
    const FORM: &str = r#"expected {"result": [[{"document": {"contents": TEXT}, "score": NUMBER}, ...]]}"#;
    let lists = match answer.get("result") {
        Some(Value::Array(lists)) => lists,
        Some(other) => return Err(format!("`result` is {}; {FORM}", kind(other))),
        None if answer.is_object() => return Err(format!("`result` is missing; {FORM}")),
        None => return Err(format!("it is {}; {FORM}", kind(answer))),
    };
    let list = |(at, list): (usize, &Value)| match list {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(item, value)| read_hit(value).map_err(|reason| format!("`result[{at}][{item}]` {reason}; {FORM}")))
            .collect(),
        other => Err(format!("`result[{at}]` is {}; {FORM}", kind(other))),
    };
    lists.iter().enumerate().map(list).collect()
}

fn read_hit(item: &Value) -> Result<Hit, String> {
    let Value::Object(fields) = item else { return Err(format!("is {}", kind(item))) };
    let (document, score) = match fields.get("document") {
        Some(Value::Object(document)) => (document, fields.get("score")),
        Some(other) => return Err(format!("has a `document` that is {}", kind(other))),
        // Without scores servers give the documents alone.
        None => (fields, None),
    };
    let score = match score {
        None | Some(Value::Null) => 0.0,
        Some(value) => value.as_f64().ok_or_else(|| format!("has a `score` that is {}", kind(value)))?,
    };
    hit(document.clone(), score)
}

/// A document as a hit: its `contents` (or `text`), `id` and `title`.
pub(crate) fn hit(document: Map<String, Value>, score: f64) -> Result<Hit, String> {
    let contents = match document.get("contents").or_else(|| document.get("text")) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => return Err(format!("has `contents` that are {}", kind(other))),
        None => return Err("has no `contents`".to_owned()),
    };
    let id = document.get("id").and_then(plain);
    let title = document.get("title").and_then(plain);
    Ok(Hit { contents, id, title, score, document })
}

/// A text or a number as text.
pub(crate) fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What a JSON value is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: RequestBounds = RequestBounds { topk: 100, queries: 3 };

    #[test]
    fn both_forms_of_a_request_are_read() {
        let single = read_request(br#"{"query": "a: \"b\" (c", "topk": 5, "return_scores": true}"#, BOUNDS).unwrap();
        assert_eq!(single, Request { queries: vec!["a: \"b\" (c".into()], topk: Some(5), return_scores: true });
        let list = read_request(br#"{"queries": ["x", ""], "topk": null, "extra": 1}"#, BOUNDS).unwrap();
        assert_eq!(list, Request { queries: vec!["x".into(), String::new()], topk: None, return_scores: false });
    }

    #[test]
    fn what_a_request_lacks_is_said() {
        for (body, said) in [
            ("", "not JSON"),
            ("[]", "the body is a list"),
            ("{}", "`query` is missing"),
            (r#"{"query": 3}"#, "`query` must be a text, got a number"),
            (r#"{"query": "a", "queries": []}"#, "exclude each other"),
            (r#"{"query": "a", "query": "b"}"#, "in the body, the key `query` stands there twice at line 1 column 22"),
            (r#"{"query": "a", "topk": 1e999}"#, "number out of range"),
            (r#"{"queries": ["a", null]}"#, "`queries[1]` must be a text, got null"),
            (r#"{"queries": ["a", "b", "c", "d"]}"#, "may hold 3 texts, got 4"),
            (r#"{"query": "a", "topk": 0}"#, "from 1 to 100, got `0`"),
            (r#"{"query": "a", "topk": 101}"#, "from 1 to 100, got `101`"),
            (r#"{"query": "a", "topk": 1.5}"#, "got `1.5`"),
            (r#"{"query": "a", "return_scores": "yes"}"#, "`return_scores` must be"),
        ] {
            let error = read_request(body.as_bytes(), BOUNDS).unwrap_err();
            assert!(error.contains(said), "{body}: {error}");
        }
    }

    #[test]
    fn an_answer_reads_as_it_was_written() {
        let document = json!({"id": 7, "title": "T", "contents": "text"}).as_object().unwrap().clone();
        let hit = hit(document, 1.5).unwrap();
        assert_eq!((hit.id.as_deref(), hit.title.as_deref()), (Some("7"), Some("T")));
        for scores in [true, false] {
            let lists = read_answer(&answer(vec![vec![hit.clone()], vec![]], scores)).unwrap();
            assert_eq!(lists[0][0], Hit { score: if scores { 1.5 } else { 0.0 }, ..hit.clone() });
            assert!(lists[1].is_empty());
        }
    }

    #[test]
    fn what_an_answer_lacks_is_said() {
        for (body, said) in [
            (json!([1]), "it is a list"),
            (json!({"error": "x"}), "`result` is missing"),
            (json!({"result": null}), "`result` is null"),
            (json!({"result": [3]}), "`result[0]` is a number"),
            (json!({"result": [[{"document": {"id": 1}}]]}), "`result[0][0]` has no `contents`"),
            (
                json!({"result": [[], [{"document": {"contents": 1}}]]}),
                "`result[1][0]` has `contents` that are a number",
            ),
            (json!({"result": [[{"document": {"contents": "a"}, "score": "b"}]]}), "`score` that is a text"),
        ] {
            let error = read_answer(&body).unwrap_err();
            assert!(error.contains(said), "{body}: {error}");
        }
    }
}

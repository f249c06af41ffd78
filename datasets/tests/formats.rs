//! Published sets as rows: what their records become, what is asked, and what is wrong with one.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use espalier_datasets::{FORMATS, Format, NoBuiltins, Prompt, Row, Source};
use serde_json::{Value, json};

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn source(dir: &tempfile::TempDir, format: Format, record: &Value) -> Source {
    Source { format, ..Source::file(file(dir, "a.jsonl", &record.to_string())) }
}

fn rows(source: &Source) -> Vec<Row> {
    source.rows(&NoBuiltins).unwrap().map(Result::unwrap).collect()
}

/// The one row of a record.
fn row(format: Format, record: &Value) -> Row {
    let dir = tempfile::tempdir().unwrap();
    rows(&source(&dir, format, record)).remove(0)
}

/// What is wrong with a record.
fn wrong(format: Format, record: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    let error = source(&dir, format, record).rows(&NoBuiltins).unwrap().find_map(Result::err).unwrap();
    error.to_string().replace(&format!("{}/", dir.path().display()), "")
}

fn text(row: &Row) -> &str {
    match &row.prompt {
        Prompt::Text(text) => text,
        Prompt::Messages(_) => panic!("expected a text, got messages"),
    }
}

fn truth(row: &Row) -> &Value {
    &row.columns["reward_spec"]["ground_truth"]
}

#[test]
fn the_truth_of_math_is_the_last_box_as_it_stands() {
    let record = json!({
        "problem": "How many?", "level": "Level 5", "type": "Algebra",
        "solution": "Not \\boxed{1}, but $\\boxed{\\frac{3 }{4}}$.",
    });
    let row = row(Format::Math, &record);
    assert_eq!((text(&row), row.env.as_deref()), ("How many?", Some("math")));
    assert_eq!(truth(&row), "\\frac{3 }{4}");
    assert_eq!(row.columns["extra_info"]["level"], "Level 5");
    assert_eq!(row.columns["extra_info"]["subject"], "Algebra");
    assert_eq!(
        wrong(Format::Math, &json!({"problem": "x", "solution": "none"})),
        "`a.jsonl`, line 1, column `solution`: must hold its answer in `\\boxed{...}`"
    );
}

#[test]
fn aime_is_read_under_the_names_of_its_mirrors() {
    for record in [
        json!({"id": 60, "problem": "P", "answer": "033", "solution": "S"}),
        json!({"ID": "2024-I-1", "Problem": "P", "Answer": 33, "Solution": "S"}),
        json!({"question": "P", "answer": "33"}),
    ] {
        let row = row(Format::Aime, &record);
        assert_eq!((text(&row), row.env.as_deref()), ("P", Some("aime")));
        assert!(truth(&row) == "33" || truth(&row) == "033");
    }
}

#[test]
fn dapo_keeps_its_messages_and_says_which_prompts_were_there_before() {
    let record = |prompt: &str, truth: i64| {
        json!({
            "data_source": "math_dapo", "ability": "MATH", "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"ground_truth": truth.to_string(), "style": "rule"}, "extra_info": {"index": "x"},
        })
        .to_string()
    };
    let dir = tempfile::tempdir().unwrap();
    let lines = [record("a", 1), record("b", 2), record("a", 1), record("a", 1)].join("\n");
    let path = file(&dir, "a.jsonl", &lines);
    let source = Source { format: Format::Dapo, ..Source::file(&path) };
    let opened = source.open(&NoBuiltins).unwrap();
    let rows: Vec<Row> = opened.rows.map(Result::unwrap).collect();
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert!(matches!(&rows[0].prompt, Prompt::Messages(messages) if messages[0]["content"] == "a"));
    assert_eq!((truth(&rows[1]), rows[1].env.as_deref()), (&json!("2"), Some("aime")));
    assert_eq!(
        opened.left_out.sentences(),
        ["2 rows were left out: the prompt was there before (2 of `math_dapo`; ids 2, 3)"]
    );
    let all = Source { unique: Some(false), ..source };
    assert_eq!(all.rows(&NoBuiltins).unwrap().count(), 4);
}

#[test]
fn humaneval_and_mbpp_become_code() {
    let record = json!({
        "task_id": "HumanEval/0", "prompt": "def f(x):\n    \"\"\"Doubles.\"\"\"\n", "entry_point": "f",
        "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(1) == 2\n",
    });
    let row = row(Format::HumanEval, &record);
    assert_eq!((row.id.as_str(), row.env.as_deref()), ("HumanEval/0", Some("code")));
    assert_eq!(text(&row), "def f(x):\n    \"\"\"Doubles.\"\"\"");
    assert_eq!((&row.columns["entry_point"], &row.columns["test"]), (&json!("f"), &record["test"]));

    let record = json!({"text": "Add.", "code": "c", "task_id": 11, "test_setup_code": "", "test_list": ["assert a()", "assert b()"]});
    let row = self::row(Format::Mbpp, &record);
    assert_eq!((row.id.as_str(), row.env.as_deref()), ("mbpp/11", Some("code")));
    assert_eq!((text(&row), truth(&row)), ("Add.", &json!("assert a()\nassert b()")));
    let sanitised = json!({"prompt": "Add.", "code": "c", "task_id": 11, "test_imports": ["import math"], "test_list": ["assert a()"]});
    assert_eq!(self::row(Format::Mbpp, &sanitised).columns["test_setup_code"], "import math");
    assert_eq!(
        wrong(Format::Mbpp, &json!({"text": "x", "code": "y", "task_id": 1, "test_list": []})),
        "`a.jsonl`, line 1, column `test_list`: must be a list of texts with one at least, got a list"
    );
}

/// Hidden tests as LiveCodeBench packs them.
fn packed(json: &str) -> String {
    let mut pickle = b"\x80\x04X".to_vec();
    pickle.extend(u32::try_from(json.len()).unwrap().to_le_bytes());
    pickle.extend(json.as_bytes());
    pickle.extend(b"\x94.");
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&pickle).unwrap();
    base64::engine::general_purpose::STANDARD.encode(encoder.finish().unwrap())
}

#[test]
fn livecodebench_packs_its_tests_into_one_text() {
    let test = |input: &str| json!({"input": input, "output": "1", "testtype": "functional"});
    let record = json!({
        "question_title": "t", "question_content": "Count.", "question_id": "q1", "starter_code": "class Solution: ...",
        "public_test_cases": json!([test("a")]).to_string(),
        "private_test_cases": packed(&json!([test("b"), test("c")]).to_string()),
        "metadata": "{\"func_name\": \"count\"}",
    });
    let row = row(Format::LiveCodeBench, &record);
    assert_eq!((row.id.as_str(), row.env.as_deref()), ("q1", Some("lcb")));
    let tests: Value = serde_json::from_str(truth(&row).as_str().unwrap()).unwrap();
    assert_eq!(tests.as_array().unwrap().len(), 3);
    assert_eq!(
        tests[2],
        json!({"input": "c", "output": "1", "testtype": "functional", "metadata": {"func_name": "count"}})
    );
    assert!(
        text(&row).contains("from this starter code, within the fences.\n\n```python\nclass Solution: ...\n```"),
        "{}",
        text(&row)
    );

    let prepared = json!({"problem": "Read.", "tests": [{"input": "1", "output": "2", "testtype": "stdin"}]});
    let row = self::row(Format::LiveCodeBench, &prepared);
    assert!(text(&row).contains("Read.\n\n### Format:\nRead the input from stdin"), "{}", text(&row));
    let broken = json!({"question_content": "x", "public_test_cases": "[]", "private_test_cases": "%%%"});
    assert!(wrong(Format::LiveCodeBench, &broken).contains("`private_test_cases`: is neither JSON nor base64"));
}

const TABLES: &str = r#"[{"db_id": "shop", "table_names_original": ["item", "order"],
 "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [1, "item"], [1, "unit price"]],
 "column_names": [[-1, "*"], [0, "id"], [0, "what it is called"], [1, "item"], [1, "unit price"]],
 "column_types": ["text", "number", "text", "number", "number"], "primary_keys": [1], "foreign_keys": [[3, 1]]}]"#;

const SCHEMA: &str = "\
CREATE TABLE item (
    id NUMERIC,
    name TEXT, -- what it is called
    PRIMARY KEY (id)
);

CREATE TABLE order (
    item NUMERIC,
    \"unit price\" NUMERIC,
    FOREIGN KEY (item) REFERENCES item (id)
);";

#[test]
fn spider_and_bird_find_their_schemas_beside_the_file() {
    let spider = json!({"db_id": "shop", "question": "How many?", "query": "SELECT 1", "query_toks": ["SELECT"]});
    let bird = json!({"db_id": "shop", "question": "How many?", "SQL": "SELECT 1", "evidence": "many = 2", "difficulty": "simple"});
    for (format, record, tables) in [(Format::Spider, &spider, "tables.json"), (Format::Bird, &bird, "dev_tables.json")]
    {
        let dir = tempfile::tempdir().unwrap();
        file(&dir, tables, TABLES);
        let path = file(&dir, "dev.json", &format!("[{record}]"));
        // The environment adds the schema to the question.
        let plain = Source { format, ..Source::file(&path) };
        assert!(text(&rows(&plain)[0]).starts_with("How many?") && !text(&rows(&plain)[0]).ends_with('\n'));
        let source = Source { prompt_template: Some("instruct".to_owned()), ..plain };
        let row = rows(&source).remove(0);
        assert_eq!((row.env.as_deref(), truth(&row)), (Some("text2sql"), &json!("SELECT 1")));
        assert_eq!((&row.columns["db_id"], &row.columns["data"]), (&json!("shop"), &json!(format.name())));
        assert!(text(&row).contains(SCHEMA), "{}", text(&row));
        assert_eq!(text(&row).contains("many = 2"), format == Format::Bird);
        // A schema of its own wins, and a file that is named is looked into wherever it lies.
        let own = Source { prompt_template: Some("{{ schema }}|{{ question }}".to_owned()), ..source };
        let mut record = record.clone();
        record["schema"] = json!("CREATE TABLE t (a)");
        std::fs::write(&path, record.to_string()).unwrap();
        assert_eq!(text(&rows(&own)[0]), "CREATE TABLE t (a)|How many?");
    }
    let dir = tempfile::tempdir().unwrap();
    let instruct = |record: &Value, tables: Option<PathBuf>| {
        let prompt_template = Some("instruct".to_owned());
        Source { prompt_template, tables, ..source(&dir, Format::Spider, record) }
    };
    let error = instruct(&spider, None).rows(&NoBuiltins).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("column `schema`: is missing: put the set's `tables.json` beside"), "{error}");
    let tables = Some(file(&dir, "x.json", TABLES));
    assert_eq!(rows(&instruct(&spider, tables.clone())).len(), 1);
    let other = json!({"db_id": "none", "question": "How many?", "query": "SELECT 1"});
    let named = instruct(&other, tables);
    let error = named.rows(&NoBuiltins).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("column `db_id`: no database `none` in"), "{error}");
}

#[test]
fn text2sql_takes_prepared_rows_and_synsql() {
    let prepared = json!({
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "db_id": "d", "data": "bird",
        "reward_model": {"ground_truth": "SELECT 1"}, "max_turns": 5,
    });
    let row = row(Format::Text2Sql, &prepared);
    assert!(matches!(&row.prompt, Prompt::Messages(messages) if messages.len() == 2));
    assert_eq!(
        (row.env.as_deref(), truth(&row), &row.columns["max_turns"]),
        (Some("text2sql"), &json!("SELECT 1"), &json!(5))
    );
    let mut bad = prepared;
    bad["data"] = json!("wikisql");
    assert!(
        wrong(Format::Text2Sql, &bad).contains("column `data`: must be `synsql`, `spider` or `bird`, got `wikisql`")
    );
    let synsql = json!({"question": "q", "sql": "SELECT 2", "db_id": "d", "schema": "CREATE TABLE t (a)", "external_knowledge": "k"});
    let row = self::row(Format::Text2Sql, &synsql);
    assert_eq!((truth(&row), &row.columns["data"]), (&json!("SELECT 2"), &json!("synsql")));
}

#[test]
fn questions_to_search_for_have_lists_of_answers() {
    let published = json!({
        "id": "train_0", "question": "who?", "golden_answers": ["A", "B"], "data_source": "nq", "ability": "fact-reasoning",
        "prompt": [{"role": "user", "content": "long instruction who?"}],
        "reward_model": {"ground_truth": {"target": ["A", "B"]}, "style": "rule"}, "extra_info": {"index": 7, "split": "train"},
    });
    let row = row(Format::NqHotpot, &published);
    assert_eq!((row.env.as_deref(), &row.columns["data_source"]), (Some("search"), &json!("searchR1_nq")));
    assert_eq!(truth(&row), &json!({"target": ["A", "B"]}));
    assert_eq!(row.columns["extra_info"]["index"], 7);
    assert!(matches!(&row.prompt, Prompt::Messages(_)));
    let plain = json!({"question": "who?", "answer": "A"});
    let row = self::row(Format::NqHotpot, &plain);
    assert_eq!((text(&row), truth(&row)), ("who?", &json!({"target": ["A"]})));
    assert!(wrong(Format::NqHotpot, &json!({"question": "who?", "answer": []})).contains("holds no answer"));
}

#[test]
fn papers_become_a_context_and_rows_without_evidence_are_named() {
    let record = |text: &str| {
        json!({
            "question": "why?",
            "papers": json!([{"paperId": "p1", "title": "T", "abstract": "A", "text": "body"}, {"paperId": "p2", "title": "U", "text": "other"}]).to_string(),
            "evidence": json!([{"paperId": "p1", "selections": [{"text": text}]}]).to_string(),
        })
    };
    let row = row(Format::MultiPaper, &record("body"));
    assert_eq!((row.env.as_deref(), &row.columns["max_turns"]), (Some("multipaper_evidence_rlm"), &json!(10)));
    let context: Value = serde_json::from_str(row.columns["extra_info"]["context_text"].as_str().unwrap()).unwrap();
    assert_eq!(context, json!({"p1": "### PAPER: T\n<abstract>\nA\n</abstract>\nbody", "p2": "### PAPER: U\nother"}));
    assert_eq!(row.columns["reward_spec"]["evidence"][0]["paperId"], "p1");
    assert!(text(&row).contains("why?"));
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.jsonl", &format!("{}\n{}", record(" "), record("body")));
    let opened = Source { format: Format::MultiPaper, ..Source::file(path) }.open(&NoBuiltins).unwrap();
    assert_eq!(opened.rows.map(|row| row.unwrap().id).collect::<Vec<_>>(), ["1"]);
    assert_eq!(opened.left_out.reasons()["its evidence holds no text"].rows, 1);
}

#[test]
fn a_record_is_recognised_where_it_is_unmistakable() {
    for (format, record) in [
        (Some(Format::Gsm8k), json!({"question": "q", "answer": "a\n#### 1"})),
        (Some(Format::Math), json!({"problem": "p", "level": "Level 1", "solution": "\\boxed{1}"})),
        (Some(Format::HumanEval), json!({"prompt": "p", "entry_point": "f", "test": "t", "task_id": "x"})),
        (Some(Format::Mbpp), json!({"text": "p", "code": "c", "test_list": ["t"]})),
        (Some(Format::LiveCodeBench), json!({"question_content": "p", "public_test_cases": "[]"})),
        (Some(Format::Spider), json!({"question": "q", "db_id": "d", "query": "s", "sql": {}})),
        (Some(Format::Bird), json!({"question": "q", "db_id": "d", "SQL": "s"})),
        (Some(Format::NqHotpot), json!({"question": "q", "golden_answers": []})),
        (Some(Format::Dapo), json!({"prompt": [], "reward_model": {}, "data_source": "math_dapo"})),
        (Some(Format::Rows), json!({"prompt": "p", "question": "q", "answer": "#### 1"})),
        // Any problem with a number for an answer could be of AIME's form.
        (None, json!({"problem": "p", "answer": "7"})),
        (None, json!({"question": "q", "answer": "7"})),
    ] {
        assert_eq!(Format::of(record.as_object().unwrap()), format, "{record}");
    }
}

#[test]
fn a_file_may_be_recognised_and_one_that_is_read_wrongly_says_what_it_looks_like() {
    let dir = tempfile::tempdir().unwrap();
    let raw = json!({"question": "How many?", "answer": "#### 7"});
    let opened = source(&dir, Format::Auto, &raw).open(&NoBuiltins).unwrap();
    assert_eq!(opened.format, Format::Gsm8k);
    let instruct = Source { prompt_template: Some("instruct".to_owned()), ..source(&dir, Format::Auto, &raw) };
    assert!(text(&rows(&instruct)[0]).contains("like this: #### 7"));
    assert_eq!(
        wrong(Format::Rows, &raw),
        "`a.jsonl`, line 1, column `prompt`: is missing; the row has `question`, `answer`; it looks like gsm8k: say `format = \"gsm8k\"`"
    );
    let error = source(&dir, Format::Auto, &json!({"a": 1})).rows(&NoBuiltins).err().unwrap().to_string();
    assert!(
        error.contains("line 1: has `a`, which is no known set unmistakably; say `format`, one of `rows`, `gsm8k`"),
        "{error}"
    );
}

#[test]
fn templates_know_the_record_and_are_strict() {
    let dir = tempfile::tempdir().unwrap();
    let raw = json!({"question": "How many?", "answer": "#### 7", "note": [1, 2]});
    let of =
        |format, template: &str| Source { prompt_template: Some(template.to_owned()), ..source(&dir, format, &raw) };
    let asked = of(Format::Gsm8k, "{% for n in note %}{{ n }},{% endfor %}{{ question | upper }}<b>");
    assert_eq!(text(&rows(&asked)[0]), "1,2,HOW MANY?<b>");
    let error = |source: Source| match source.rows(&NoBuiltins) {
        Err(error) => error.to_string(),
        Ok(mut rows) => rows.find_map(Result::err).unwrap().to_string(),
    };
    let unknown = error(of(Format::Gsm8k, "{{ questoin }}"));
    assert!(
        unknown.ends_with("column `prompt_template`: no `questoin` here; the record has `question`, `answer`, `note`"),
        "{unknown}"
    );
    assert!(
        error(of(Format::Gsm8k, "{{ question ")).starts_with("data source: `prompt_template` line 1: syntax error")
    );
    assert!(error(of(Format::Gsm8k, "instrct")).contains("must be `question`, `instruct` or a template"));
    assert!(error(of(Format::Rows, "question")).contains("must be a template with `{{ column }}` for format `rows`"));
    let endless =
        error(of(Format::Gsm8k, "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}{{ 1 }}"));
    assert!(endless.contains("`prompt_template`"), "{endless}");
}

#[test]
fn every_template_renders_and_says_what_the_environment_reads() {
    let record = json!({
        "question": "Q?", "answer": "#### 1", "problem": "Q?", "solution": "\\boxed{1}", "prompt": "def f(): ...",
        "entry_point": "f", "test": "t", "task_id": 1, "text": "Q?", "test_list": ["assert f()"], "question_content": "Q?",
        "public_test_cases": [{"input": "", "output": ""}], "db_id": "d", "query": "s", "SQL": "s", "sql": "s",
        "schema": "CREATE TABLE t (a)", "golden_answers": ["a"], "papers": [{"paperId": "p"}],
        "evidence": [{"paperId": "p", "selections": [{"text": "x"}]}],
    });
    for spec in FORMATS.iter().filter(|spec| spec.format.prompts().is_some() && spec.format != Format::Dapo) {
        let mut record = record.clone();
        if matches!(spec.format, Format::Spider | Format::Bird | Format::Text2Sql) {
            record["evidence"] = json!("known");
        }
        for template in ["question", "instruct"] {
            let dir = tempfile::tempdir().unwrap();
            let source = Source { prompt_template: Some(template.to_owned()), ..source(&dir, spec.format, &record) };
            let row = rows(&source).remove(0);
            assert!(text(&row).contains("Q?") || text(&row).contains("def f"), "{}: {}", spec.name, text(&row));
            assert_eq!(row.env.as_deref(), spec.env, "{}", spec.name);
            let said = match spec.env {
                Some("gsm8k") => "####",
                Some("math") => "\\boxed{}",
                Some("aime") => "`Answer: X`",
                Some("code") => "fenced by",
                Some("lcb") => "### Answer:",
                Some("text2sql") => "<solution>",
                Some("search") => "<answer>",
                _ => "word for word",
            };
            assert!(template == "question" || text(&row).contains(said), "{}: {}", spec.name, text(&row));
        }
    }
}

#[test]
fn columns_of_other_sets_are_filled_from_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "query,question,db\nSELECT 1,How many?,shop\n");
    let columns =
        [("reward_spec.ground_truth", "query"), ("db_id", "db")].map(|(to, from)| (to.to_owned(), from.to_owned()));
    let source =
        Source { columns: columns.into(), prompt_template: Some("{{ question }}".to_owned()), ..Source::file(&path) };
    let row = rows(&source).remove(0);
    assert_eq!((text(&row), truth(&row), &row.columns["db_id"]), ("How many?", &json!("SELECT 1"), &json!("shop")));
    let missing = Source { columns: [("uid".to_owned(), "nme".to_owned())].into(), ..source };
    let error = missing.rows(&NoBuiltins).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(
        error.contains(
            "column `nme`: is missing (`columns` fills `uid` from it); the record has `query`, `question`, `db`"
        ),
        "{error}"
    );
}

/// A file of the folder that `ESPALIER_DATA` names.
fn published(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ESPALIER_DATA")?;
    Some(Path::new(&folder).join(name))
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn the_published_sets_are_read_and_recognised() {
    if published("").is_none() {
        println!("skipped: ESPALIER_DATA names no folder with published sets");
        return;
    }
    for (name, format, count) in [
        ("gsm8k/train.jsonl", Format::Gsm8k, 7473),
        ("gsm8k/test.jsonl", Format::Gsm8k, 1319),
        ("math/math_test.json", Format::Math, 5000),
        ("aime/aime24.jsonl", Format::Aime, 30),
        ("code/HumanEval.jsonl.gz", Format::HumanEval, 164),
        ("code/mbpp.jsonl", Format::Mbpp, 974),
    ] {
        let source = Source { format: Format::Auto, ..Source::file(published(name).unwrap()) };
        let opened = source.open(&NoBuiltins).unwrap();
        assert_eq!(opened.format, format, "{name}");
        let rows: Vec<Row> = opened.rows.map(Result::unwrap).collect();
        assert_eq!(rows.len(), count, "{name}");
        assert!(rows.iter().all(|row| truth(row).as_str().is_some_and(|truth| !truth.trim().is_empty())), "{name}");
    }
}

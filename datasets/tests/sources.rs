//! Rows from files: what is read, in which order, and what an error says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use espalier_datasets::order::{Part, Shuffle, Split};
use espalier_datasets::source::Paths;
use espalier_datasets::{Format, NoBuiltins, Prompt, Row, Source};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use serde_json::json;

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn rows(source: &Source) -> Vec<Row> {
    source.rows(&NoBuiltins).unwrap().map(Result::unwrap).collect()
}

/// The first error, without the folder that differs from run to run.
fn error(path: &Path) -> String {
    let error = match Source::file(path).rows(&NoBuiltins) {
        Err(error) => error,
        Ok(mut rows) => rows.find_map(Result::err).unwrap(),
    };
    error.to_string().replace(&format!("{}/", path.parent().unwrap().display()), "")
}

const LINES: &str = r#"{"prompt": "one", "env_class": "rlm", "reward_spec": {"ground_truth": [1, 2]}}

{"prompt": [{"role": "user", "content": "two"}], "uid": "b", "note": null}
"#;

#[test]
fn jsonl_rows_have_prompts_and_columns() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(&Source::file(file(&dir, "a.jsonl", LINES)));
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].id.as_str(), rows[1].id.as_str()), ("0", "b"));
    assert_eq!(rows[0].prompt, Prompt::Text("one".to_owned()));
    assert_eq!(rows[0].env.as_deref(), Some("rlm"));
    assert_eq!(rows[0].columns["reward_spec"]["ground_truth"], json!([1, 2]));
    assert!(matches!(&rows[1].prompt, Prompt::Messages(messages) if messages[0]["content"] == "two"));
}

#[test]
fn json_lists_are_read_item_by_item() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#" [ {"prompt": "a ] } \" {", "extra_info": {"x": [{}]}} , {"prompt": "b"} ] "#;
    let read = rows(&Source::file(file(&dir, "a.json", text)));
    assert_eq!(read[0].prompt, Prompt::Text("a ] } \" {".to_owned()));
    assert_eq!(read.len(), 2);
    // A file of lines is often named `.json`.
    assert_eq!(rows(&Source::file(file(&dir, "b.json", LINES))).len(), 2);
}

#[test]
fn csv_headers_with_dots_fill_objects() {
    let dir = tempfile::tempdir().unwrap();
    let text = "prompt,reward_spec.ground_truth,extra_info.context_text,max_turns\n\"a\nb\",42,\"[1, 2]\",3\nc,x,,\n";
    let rows = rows(&Source::file(file(&dir, "a.csv", text)));
    assert_eq!(rows[0].prompt, Prompt::Text("a\nb".to_owned()));
    assert_eq!(rows[0].columns["reward_spec"], json!({"ground_truth": "42"}));
    assert_eq!(rows[0].columns["extra_info"]["context_text"], json!([1, 2]));
    assert_eq!(rows[0].columns["max_turns"], json!(3));
    assert!(!rows[1].columns.contains_key("extra_info"));
}

/// A file as `datasets` writes it: messages as a list of structs, an object as a struct.
fn parquet(dir: &tempfile::TempDir, contents: &[Option<&str>]) -> PathBuf {
    compressed(dir, contents, Compression::UNCOMPRESSED)
}

fn compressed(dir: &tempfile::TempDir, contents: &[Option<&str>], codec: Compression) -> PathBuf {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let count = contents.len();
    let message = Fields::from(vec![text("role"), text("content")]);
    let messages = StructArray::new(
        message.clone(),
        vec![
            Arc::new(StringArray::from(vec!["user"; count])) as ArrayRef,
            Arc::new(StringArray::from(contents.to_vec())),
        ],
        None,
    );
    let item = Arc::new(Field::new("item", DataType::Struct(message), true));
    let prompt = ListArray::new(item, OffsetBuffer::from_lengths(vec![1; count]), Arc::new(messages), None);
    let spec = StructArray::new(
        Fields::from(vec![text("ground_truth")]),
        vec![Arc::new(StringArray::from((0..count).map(|n| n.to_string()).collect::<Vec<_>>())) as ArrayRef],
        None,
    );
    let turns = Int64Array::from(vec![4; count]);
    let batch = RecordBatch::try_from_iter(vec![
        ("prompt", Arc::new(prompt) as ArrayRef),
        ("reward_spec", Arc::new(spec)),
        ("max_turns", Arc::new(turns)),
    ])
    .unwrap();
    let path = dir.path().join("a.parquet");
    let out = std::fs::File::create(&path).unwrap();
    let properties = WriterProperties::builder().set_compression(codec).build();
    let mut writer = parquet::arrow::ArrowWriter::try_new(out, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn parquet_structs_and_lists_are_objects_and_lists() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(&Source::file(parquet(&dir, &[Some("hello"); 40])));
    assert_eq!(rows.len(), 40);
    assert_eq!(rows[39].columns["reward_spec"], json!({"ground_truth": "39"}));
    assert_eq!(rows[39].columns["max_turns"], json!(4));
    assert!(matches!(&rows[39].prompt, Prompt::Messages(messages) if messages[0]["content"] == "hello"));
}

#[test]
fn parquet_is_read_whatever_it_is_compressed_with() {
    let dir = tempfile::tempdir().unwrap();
    let (gzip, brotli, zstd) = (GzipLevel::default(), BrotliLevel::default(), ZstdLevel::default());
    for codec in [
        Compression::SNAPPY,
        Compression::GZIP(gzip),
        Compression::BROTLI(brotli),
        Compression::ZSTD(zstd),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        let rows = rows(&Source::file(compressed(&dir, &[Some("hello"); 3], codec)));
        assert_eq!(rows.len(), 3, "{codec}");
    }
}

#[test]
fn errors_name_file_place_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| error(&file(&dir, name, text));
    let good = "{\"prompt\": \"x\"}\n";
    assert_eq!(
        of("a.jsonl", &format!("{good}{{\"prompt\": }}\n")),
        "`a.jsonl`, line 2: expected one JSON object, got: expected value (character 12)"
    );
    assert_eq!(
        of("b.jsonl", &format!("{good}\n{{\"promt\": 1}}\n")),
        "`b.jsonl`, line 3, column `prompt`: is missing; the row has `promt`"
    );
    assert_eq!(
        of("c.jsonl", "{\"prompt\": [{\"role\": \"user\"}]}"),
        "`c.jsonl`, line 1, column `prompt[0].content`: must be a text, got nothing"
    );
    assert_eq!(
        of("d.jsonl", "{\"prompt\": \"x\", \"reward_spec\": \"y\"}"),
        "`d.jsonl`, line 1, column `reward_spec`: must be an object, got a text"
    );
    assert_eq!(
        of("null.jsonl", "{\"prompt\": null}"),
        "`null.jsonl`, line 1, column `prompt`: must be a text or a list of messages, got null"
    );
    assert_eq!(
        of("uid.jsonl", "{\"uid\": [1], \"prompt\": \"x\"}"),
        "`uid.jsonl`, line 1, column `uid`: must be a text or a number, got a list"
    );
    assert_eq!(of("bare.jsonl", "{}"), "`bare.jsonl`, line 1, column `prompt`: is missing; the row has no column");
    assert_eq!(
        of("role.jsonl", &format!("{good}{{\"prompt\": [{{\"role\": \"bob\", \"content\": \"x\"}}]}}")),
        "`role.jsonl`, line 2, column `prompt[0].role`: must be `system`, `user`, `assistant` or `tool`, got `bob`"
    );
    assert_eq!(of("e.json", "[{\"prompt\": \"x\"} {}]"), "`e.json`, row 1: expected a comma or the end of the list");
    assert_eq!(of("f.json", "[1]"), "`f.json`, row 1: expected a JSON object, got `1`");
    assert_eq!(of("g.json", "[{\"prompt\": \"x\"}"), "`g.json`: ends within the list");
    assert_eq!(of("h.csv", "prompt,a\nx,1\ny\n"), "`h.csv`, line 3: expected 2 fields as in the header, got 1");
    assert_eq!(
        of("i.csv", "prompt,max_turns\nx,two\n"),
        "`i.csv`, line 2, column `max_turns`: must be a number, got `two`"
    );
    assert_eq!(
        of("j.txt", ""),
        "`j.txt`: cannot tell what `.txt` is; expected `.jsonl`, `.json`, `.csv` or `.parquet`, the first three also \
         with `.gz` or `.zst` behind"
    );
    assert!(of("k.parquet", "not parquet").starts_with("`k.parquet`: "));
    assert!(error(&dir.path().join("none.jsonl")).starts_with("`none.jsonl`: No such file"));
    assert_eq!(
        error(&parquet(&dir, &[Some("x"), None])),
        "`a.parquet`, row 2, column `prompt[0].content`: must be a text, got null"
    );
}

#[test]
fn a_key_that_stands_twice_in_a_row_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| error(&file(&dir, name, text));
    let twice = "{\"prompt\": \"x\", \"extra_info\": {\"a\": 1, \"a\": 2}}";
    let good = "{\"prompt\": \"x\"}";
    assert_eq!(
        of("a.jsonl", &format!("{good}\n{twice}\n")),
        "`a.jsonl`, line 2: expected one JSON object, got: the key `a` stands there twice (character 42)"
    );
    let error = of("b.json", &format!("[{good}, {twice}]"));
    assert!(
        error.starts_with("`b.json`, row 2: expected a JSON object, got: the key `a` stands there twice"),
        "{error}"
    );
    let error = of("c.csv", "prompt,extra_info\nx,\"{\"\"a\"\": 1, \"\"a\"\": 2}\"\n");
    assert!(error.starts_with("`c.csv`, line 2, column `extra_info`: the key `a` stands there twice"), "{error}");
}

#[test]
fn an_object_over_several_lines_is_no_file_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| error(&file(&dir, name, text));
    let expected = "holds an object over several lines; expected a list of objects, or one object per line";
    assert_eq!(
        of("a.json", "{\n  \"prompt\": \"x\"\n}\n"),
        format!("`a.json`: {expected}; put brackets around it, or the whole object on one line")
    );
    assert_eq!(
        of("b.json", "{\n  \"version\": 1,\n  \"data\": [{\"prompt\": \"x\"}]\n}"),
        format!("`b.json`: {expected}; the rows seem to be its `data`: make that list the file")
    );
    assert_eq!(
        of("c.jsonl", "{\n  \"prompt\": \"x\"\n}\n"),
        "`c.jsonl`, line 1: expected one JSON object, got: EOF while parsing an object (character 1); an object must \
         end on the line on which it begins"
    );
    // Lines of which one is broken stay lines.
    assert!(of("d.json", "{\"prompt\": \"x\n{\"prompt\": \"y\"}\n").starts_with("`d.json`, line 1: "));
}

#[test]
fn a_broken_archive_says_how_far_reading_came() {
    let dir = tempfile::tempdir().unwrap();
    // Enough that several buffers come out, and nothing that packs to almost nothing.
    let line = |n: u64| format!("{{\"prompt\": \"{:x}\"}}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let text: String = (0..20_000).map(line).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    let packed =
        [("gz", "gzip", gzip.finish().unwrap()), ("zst", "zstd", zstd::encode_all(text.as_bytes(), 1).unwrap())];
    for (end, kind, bytes) in packed {
        for records in ["jsonl", "json"] {
            let name = format!("a.{records}.{end}");
            let path = dir.path().join(&name);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(rows(&Source::file(&path)).len(), 20_000);
            let half = bytes.len() / 2;
            std::fs::write(&path, &bytes[..half]).unwrap();
            let read = Source::file(&path).rows(&NoBuiltins).unwrap().flatten().count();
            let error = error(&path);
            assert!(read > 5_000, "{read}");
            assert!(error.starts_with(&format!("`{name}`: line {}: is broken {kind} (", read + 1)), "{error}");
            let far = format!("bytes came out of the first {half} of its {half} bytes; fetch or pack the file again");
            assert!(error.ends_with(&far), "{error}");
        }
        let path = dir.path().join(format!("b.csv.{end}"));
        std::fs::write(&path, "prompt\nx\n").unwrap();
        let error = error(&path);
        assert!(error.contains(&format!("is broken {kind} (")) && error.contains("0 bytes came out of"), "{error}");
    }
}

#[test]
fn a_damaged_row_group_of_parquet_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let prompts: Vec<String> = (0..40).map(|n| format!("prompt {n}")).collect();
    let column = Arc::new(StringArray::from(prompts)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("prompt", column)]).unwrap();
    let path = dir.path().join("a.parquet");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(10))
        .build();
    let out = std::fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(out, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let groups = writer.close().unwrap();
    assert_eq!(rows(&Source::file(&path)).len(), 40);
    let chunk = groups.row_group(2).column(0);
    let (start, length) = (chunk.data_page_offset() as usize, chunk.compressed_size() as usize);
    let good = std::fs::read(&path).unwrap();
    // Whichever byte of the group is wrong: rows of other groups are read, and an error names this one, if there is one.
    let mut errors = 0;
    for at in start..start + length {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
        let read: Vec<_> = Source::file(&path).rows(&NoBuiltins).unwrap().collect();
        assert!(read.len() >= 20, "byte {at}: {} rows", read.len());
        let Some(Err(error)) = read.last() else { continue };
        errors += 1;
        let error = error.to_string();
        assert!(error.contains("row group 3 of 4 (rows 21 to 30) cannot be read: "), "{error}");
        assert!(error.ends_with("fetch the file again, or leave it out of `path`"), "{error}");
    }
    assert!(errors > length / 2, "{errors} of {length}");
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(error(&path).contains("cannot be read as Parquet: "), "{}", error(&path));
}

#[test]
fn lines_of_a_table_are_counted_as_editors_do() {
    let dir = tempfile::tempdir().unwrap();
    for (name, end) in [("lf.csv", "\n"), ("crlf.csv", "\r\n"), ("cr.csv", "\r")] {
        for (rows, line) in
            [("prompt,a|x,1|y|", 3), ("\u{feff}prompt,a|\"x|z\",1|y|", 4), ("prompt,a|||x,1||y", 6), ("|prompt,a|y", 3)]
        {
            let path = file(&dir, name, &rows.replace('|', end));
            let expected = format!("`{name}`, line {line}: expected 2 fields as in the header, got 1");
            assert_eq!(error(&path), expected, "{rows:?} with {end:?}");
        }
    }
}

#[test]
fn a_quote_that_is_never_closed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let of = |text: &str| error(&file(&dir, "a.csv", text));
    assert_eq!(of("prompt\n\"open\nand\nso on"), "`a.csv`, line 2: the quote that opens on line 2 is never closed");
    assert_eq!(
        of("prompt,a\nx,1\n\"y\",\"2\n\"\"z\"\"\n"),
        "`a.csv`, line 3: the quote that opens on line 3 is never closed"
    );
    assert_eq!(of("\"prompt\nx\n"), "`a.csv`, line 1: the quote that opens on line 1 is never closed");
    let closed = "prompt,a\n\"x \"\"quoted\"\"\",in \"the middle\n\"y\",\"\"";
    let rows = rows(&Source::file(file(&dir, "b.csv", closed)));
    assert_eq!(rows[0].prompt, Prompt::Text("x \"quoted\"".to_owned()));
    assert_eq!(rows[1].prompt, Prompt::Text("y".to_owned()));
}

#[test]
fn ids_that_are_there_twice_are_refused_with_both_places() {
    let dir = tempfile::tempdir().unwrap();
    let row = |uid: &str| format!("{{\"uid\": {uid}, \"prompt\": \"x\"}}\n");
    let path = file(&dir, "a.jsonl", &[row("\"a\""), row("7"), row("\"a\"")].concat());
    assert_eq!(error(&path), "`a.jsonl`, line 3, column `uid`: `a` is the id of line 1 already; ids must differ");
    // The second row has no id of its own: its number is one.
    let path = file(&dir, "b.jsonl", &format!("{}{{\"prompt\": \"x\"}}\n", row("\"1\"")));
    assert!(error(&path).contains("line 2, column `uid`: `1` is the id of line 1 already"));
    let (one, two) = (file(&dir, "c.jsonl", &row("3")), file(&dir, "d.jsonl", &row("3")));
    let both = Source { path: Some(Paths::Many(vec![one.clone(), two])), ..Source::default() };
    let error = both.rows(&NoBuiltins).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains(&format!("`3` is the id of `{}`, line 1 already", one.display())), "{error}");
}

#[test]
fn files_without_a_row_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| error(&file(&dir, name, text));
    for (name, text) in
        [("a.jsonl", ""), ("b.jsonl", "\n \n"), ("c.csv", ""), ("d.csv", "prompt,a\n"), ("e.json", "[]")]
    {
        assert_eq!(of(name, text), format!("`{name}`: holds no rows; expected at least one"));
    }
    let (empty, full) = (file(&dir, "f.jsonl", ""), numbered(&dir, 2));
    let both = Source { path: Some(Paths::Many(vec![empty, full])), ..Source::default() };
    assert_eq!(ids(&both), ["0", "1"], "an empty file beside one with rows");
    let none = Source { limit: Some(0), ..Source::file("a.jsonl") };
    assert!(none.rows(&NoBuiltins).err().unwrap().to_string().contains("`limit` must be at least 1"));
}

#[test]
fn after_an_error_no_more_rows_come() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.jsonl", "{\"prompt\": 1}\n{\"prompt\": \"x\"}\n");
    assert_eq!(Source::file(path).rows(&NoBuiltins).unwrap().count(), 1);
}

#[test]
fn raw_gsm8k_becomes_rows() {
    let dir = tempfile::tempdir().unwrap();
    let raw = r#"{"question": "How many?", "answer": "20 * 60 = 1,200\n#### 1,200"}"#;
    let source = Source { format: Format::Gsm8k, ..Source::file(file(&dir, "a.jsonl", raw)) };
    let row = &rows(&source)[0];
    assert_eq!(row.prompt, Prompt::Text("How many?".to_owned()));
    assert_eq!(row.env.as_deref(), Some("gsm8k"));
    assert_eq!(row.columns["reward_spec"]["ground_truth"], json!("1200"));
    let bad = Source {
        format: Format::Gsm8k,
        ..Source::file(file(&dir, "b.jsonl", "{\"question\": \"x\", \"answer\": \"7\"}"))
    };
    let error = bad.rows(&NoBuiltins).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.ends_with("line 1, column `answer`: must end with a line `#### number`"), "{error}");
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn the_published_gsm8k_is_read() {
    let Some(folder) = std::env::var_os("ESPALIER_DATA") else {
        println!("skipped: ESPALIER_DATA names no folder with gsm8k/test.jsonl");
        return;
    };
    let path = Path::new(&folder).join("gsm8k/test.jsonl");
    let rows = rows(&Source { format: Format::Gsm8k, ..Source::file(path) });
    assert_eq!(rows.len(), 1319);
    assert_eq!(rows[0].columns["reward_spec"]["ground_truth"], json!("18"));
}

fn numbered(dir: &tempfile::TempDir, count: usize) -> PathBuf {
    let lines: Vec<String> = (0..count).map(|n| format!("{{\"prompt\": \"{n}\"}}")).collect();
    file(dir, "n.jsonl", &lines.join("\n"))
}

fn ids(source: &Source) -> Vec<String> {
    rows(source).into_iter().map(|row| row.id).collect()
}

#[test]
fn a_description_that_contradicts_itself_is_refused() {
    let refused = |source: Source| source.rows(&NoBuiltins).err().unwrap().to_string();
    assert!(refused(Source::default()).contains("`path` is missing"));
    assert!(
        refused(Source { builtin: Some("x".to_owned()), ..Source::file("a.jsonl") }).contains("contradicts `path`")
    );
    let split = Split { part: Part::Test, validation: 0.6, test: 0.6, seed: 0 };
    assert!(refused(Source { split: Some(split), ..Source::file("a.jsonl") }).contains("more than 1 together"));
    let unknown = serde_json::from_value::<Source>(json!({"path": "a", "limt": 1})).unwrap_err().to_string();
    assert!(unknown.contains("unknown field `limt`"), "{unknown}");
}

#[test]
fn several_files_are_read_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = numbered(&dir, 3);
    let source = Source { path: Some(Paths::Many(vec![path.clone(), path])), ..Source::default() };
    assert_eq!(ids(&source), ["0", "1", "2", "3", "4", "5"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_shuffle_keeps_every_row_and_its_seed(count in 1_usize..60, seed in any::<u64>(), buffer in 1_usize..80) {
        let dir = tempfile::tempdir().unwrap();
        let source = Source { shuffle: Some(Shuffle { seed, buffer }), ..Source::file(numbered(&dir, count)) };
        let mut shuffled = ids(&source);
        prop_assert_eq!(&shuffled, &ids(&source));
        shuffled.sort_by_key(|id| id.parse::<usize>().unwrap());
        prop_assert_eq!(shuffled, (0..count).map(|n| n.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn the_parts_of_a_split_are_the_whole(count in 1_usize..60, seed in any::<u64>()) {
        let dir = tempfile::tempdir().unwrap();
        let path = numbered(&dir, count);
        let mut all = Vec::new();
        for part in [Part::Train, Part::Validation, Part::Test] {
            let split = Split { part, validation: 0.2, test: 0.2, seed };
            all.extend(ids(&Source { split: Some(split), ..Source::file(&path) }));
        }
        prop_assert_eq!(all.len(), count);
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), count);
    }
}

#[test]
fn a_limit_counts_what_is_left_after_the_split() {
    let dir = tempfile::tempdir().unwrap();
    let path = numbered(&dir, 50);
    let split = Split { part: Part::Train, validation: 0.5, test: 0.0, seed: 1 };
    let source = Source { split: Some(split), limit: Some(5), ..Source::file(path) };
    assert_eq!(ids(&source).len(), 5);
}

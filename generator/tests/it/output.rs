//! What is written is read back, whatever happened in between.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, LargeStringArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use espalier_envs::{EnvContext, SubQuery};
use espalier_generator::output::schema::{SCHEMA_KEY, to_batch};
use espalier_generator::output::{OutputError, OutputOptions, RunWriter, TrajectoryReader, read_trees};
use espalier_generator::trajectory::SCHEMA;
use espalier_generator::{Players, RolloutStop, Trajectory, TrajectoryId, Tree, TreeOptions, play_tree};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use tokio_util::sync::CancellationToken;

use crate::support::{Scripted, Source, done, observe, player, say, task};
use crate::trees::ask;

/// A played tree with a child, sub-calls, metadata and metrics.
pub(crate) async fn tree(instance: &str) -> Tree {
    let engine =
        Arc::new(Scripted::new(|prompt, _| if prompt.contains("user\nhi<") { say("root \"ü\"\n") } else { say("x") }));
    let source = Source::new(|turn, action, context: EnvContext| async move {
        if turn == 0 && action.text.starts_with("root") {
            let query = SubQuery { prompt: "q".to_owned(), model: None };
            context.services.llm_query(vec![query], context.cancel.child_token()).await;
            context.services.rlm_query(vec![ask("child")], context.cancel.child_token()).await;
            let mut step = observe("out", 0.5);
            step.metadata.insert("outcome".to_owned(), "completed".into());
            return Ok(step);
        }
        Ok(done(1.0))
    });
    let cancel = CancellationToken::new();
    play_tree(task(instance, "hi", source), Players::policy(player(&engine)), TreeOptions::default(), &cancel).await
}

fn write(directory: &Path, options: OutputOptions, trees: &[Tree]) {
    let mut writer = RunWriter::create(directory, options).unwrap();
    for tree in trees {
        writer.write(tree).unwrap();
    }
    writer.finish().unwrap();
}

#[tokio::test]
async fn both_formats_give_the_same_trees_back() {
    let trees = [tree("1").await, tree("2").await];
    for (jsonl, parquet) in [(true, false), (false, true)] {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), OutputOptions { jsonl, parquet, ..OutputOptions::default() }, &trees);
        let (read, warnings) = read_trees(directory.path()).unwrap();
        assert_eq!(read, trees);
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[tokio::test]
async fn parts_are_split_between_trees() {
    let mut trees = Vec::new();
    let one = tree("1").await;
    for number in 0..100 {
        let mut tree = one.clone();
        tree.nodes_mut().for_each(|node| {
            node.instance_id = number.to_string();
            node.root_id = format!("{number}_0");
            node.rollout_id = node.rollout_id.replacen("1_0", &node.root_id, 1);
            node.parent_id = node.parent_id.as_ref().map(|_| format!("{number}_0"));
        });
        trees.push(tree);
    }
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions { jsonl: false, parquet: true, part_trajectories: 64 }, &trees);
    for part in ["trajectories-00000.parquet", "trajectories-00001.parquet", "trajectories-00002.parquet"] {
        assert!(read_trees(directory.path().join(part)).unwrap().1.is_empty(), "{part} holds whole trees");
    }
    assert_eq!(read_trees(directory.path()).unwrap().0, trees);
}

#[tokio::test]
async fn a_run_that_lies_there_is_not_written_over() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions::default(), &[tree("1").await]);
    let error = RunWriter::create(directory.path(), OutputOptions::default()).err().unwrap();
    assert!(matches!(error, OutputError::Exists(_)), "{error}");
}

#[test]
fn two_writers_in_one_directory_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = RunWriter::create(directory.path(), OutputOptions::default()).unwrap();
    let second = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false);
    assert!(matches!(second, Err(OutputError::Busy(_))));
    drop(first);
    assert!(RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).is_ok());
}

/// Leaves a directory as a killed process would: nothing finished, nothing dropped in order.
fn killed(directory: &Path, trees: &[Tree], tail: &str) {
    let mut writer = RunWriter::create(directory, OutputOptions::default()).unwrap();
    for tree in trees {
        writer.write(tree).unwrap();
    }
    // The lock goes with the process; the part that was being written is never renamed.
    drop(writer);
    let jsonl = directory.join("trajectories.jsonl");
    let mut text = std::fs::read_to_string(&jsonl).unwrap();
    text.push_str(tail);
    std::fs::write(&jsonl, text).unwrap();
    std::fs::write(directory.join("trajectories-00000.parquet.tmp"), b"PAR1 half").unwrap();
}

#[tokio::test]
async fn a_killed_run_goes_on_where_it_stopped() {
    let trees = [tree("1").await, tree("2").await, tree("3").await];
    let directory = tempfile::tempdir().unwrap();
    // A child of a tree whose root never came, and a line that was cut.
    let orphan = std::fs::read_to_string({
        let other = tempfile::tempdir().unwrap().keep();
        write(&other, OutputOptions { parquet: false, ..OutputOptions::default() }, &trees[2..]);
        other.join("trajectories.jsonl")
    })
    .unwrap();
    let child = orphan.lines().next().unwrap();
    killed(directory.path(), &trees[..2], &format!("{child}\n{{\"schema\":\"espalier.traj"));

    let (mut writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
    let completed: Vec<String> = resumed.completed.iter().map(ToString::to_string).collect();
    assert_eq!(completed, ["1_0", "2_0"]);
    assert_eq!(resumed.repaired.len(), 3, "{:?}", resumed.repaired);
    writer.write(&trees[2]).unwrap();
    writer.finish().unwrap();

    let (read, warnings) = read_trees(directory.path()).unwrap();
    assert_eq!((read, warnings), (trees.to_vec(), vec![]));
    let parts: Result<Vec<_>, _> = TrajectoryReader::open_parts(directory.path()).unwrap().collect();
    assert_eq!(parts.unwrap().len(), 6, "Parquet has what JSONL has");
}

#[tokio::test]
async fn resuming_what_is_whole_changes_nothing() {
    let trees = [tree("1").await];
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions::default(), &trees);
    let before = std::fs::read(directory.path().join("trajectories.jsonl")).unwrap();
    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
    writer.finish().unwrap();
    assert_eq!(resumed.repaired, Vec::<String>::new());
    assert_eq!(std::fs::read(directory.path().join("trajectories.jsonl")).unwrap(), before);
    let parts: Vec<_> = TrajectoryReader::open_parts(directory.path()).unwrap().collect();
    assert_eq!(parts.len(), 2);
}

/// The ids of each format, in order, with their duplicates.
fn ids(directory: &Path) -> (Vec<String>, Vec<String>) {
    let all = |reader: TrajectoryReader| {
        let mut ids: Vec<String> = reader.map(|node| node.unwrap().rollout_id).collect();
        ids.sort();
        ids
    };
    let jsonl = TrajectoryReader::open(directory.join("trajectories.jsonl")).unwrap();
    (all(jsonl), all(TrajectoryReader::open_parts(directory).unwrap()))
}

#[tokio::test]
async fn trees_that_are_played_again_replace_the_old_ones_in_both_formats() {
    let (one, three) = (tree("1").await, tree("3").await);
    let two = tree("2").await;
    let mut failed = two.clone();
    failed.root.stop = RolloutStop::EngineError;
    failed.root.reward = 0.0;
    let directory = tempfile::tempdir().unwrap();
    // Three parts: one that keeps nothing, one that keeps everything, one that keeps half.
    for trees in [vec![&failed], vec![&one], vec![&failed, &three]] {
        let (mut writer, _) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
        for tree in trees {
            writer.write(tree).unwrap();
        }
        writer.finish().unwrap();
    }
    let again = |root: &Trajectory| root.stop == RolloutStop::EngineError;
    let (mut writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), again).unwrap();
    let names = |ids: &BTreeSet<TrajectoryId>| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (names(&resumed.completed), names(&resumed.replayed)),
        (vec!["1_0".into(), "3_0".into()], vec!["2_0".into()])
    );
    assert!(resumed.repaired.iter().any(|note| note.contains("played again")), "{:?}", resumed.repaired);
    let kept = ["1_0", "1_0/0", "3_0", "3_0/0"].map(str::to_owned).to_vec();
    assert_eq!(ids(directory.path()), (kept.clone(), kept));
    writer.write(&two).unwrap();
    writer.finish().unwrap();
    let all = ["1_0", "1_0/0", "2_0", "2_0/0", "3_0", "3_0/0"].map(str::to_owned).to_vec();
    assert_eq!(ids(directory.path()), (all.clone(), all));
    assert_eq!(read_trees(directory.path()).unwrap(), (vec![one, two, three], vec![]));
}

#[tokio::test]
async fn a_resumed_run_has_the_trees_of_both_formats_once() {
    type Damage = fn(&Path);
    let cases: [(&str, bool, Damage); 6] = [
        ("JSONL was not written", false, |_| {}),
        ("JSONL is gone", true, |it| std::fs::remove_file(it.join("trajectories.jsonl")).unwrap()),
        ("JSONL is empty", true, |it| std::fs::write(it.join("trajectories.jsonl"), "").unwrap()),
        ("JSONL lost a tree and a half", true, |it| {
            let path = it.join("trajectories.jsonl");
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            std::fs::write(path, lines[..3].join("\n") + "\n").unwrap();
        }),
        ("the parts are gone", true, |it| std::fs::remove_file(it.join("trajectories-00000.parquet")).unwrap()),
        ("a part is there twice", true, |it| {
            std::fs::copy(it.join("trajectories-00000.parquet"), it.join("trajectories-00004.parquet"))
                .map(drop)
                .unwrap();
        }),
    ];
    let trees = [tree("1").await, tree("2").await, tree("3").await];
    for (case, jsonl, damage) in cases {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), OutputOptions { jsonl, ..OutputOptions::default() }, &trees[..2]);
        damage(directory.path());
        let (mut writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
        assert_eq!(resumed.completed.len(), 2, "{case}");
        assert!(!resumed.repaired.is_empty(), "{case}");
        writer.write(&trees[2]).unwrap();
        writer.finish().unwrap();
        let all = ["1_0", "1_0/0", "2_0", "2_0/0", "3_0", "3_0/0"].map(str::to_owned).to_vec();
        assert_eq!(ids(directory.path()), (all.clone(), all), "{case}");
        assert_eq!(read_trees(directory.path()).unwrap().0, trees, "{case}");
    }
}

#[tokio::test]
async fn a_format_that_was_written_cannot_be_switched_off() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions::default(), &[tree("1").await]);
    for (jsonl, parquet, key) in [(false, true, "`output.jsonl`"), (true, false, "`output.parquet`")] {
        let options = OutputOptions { jsonl, parquet, ..OutputOptions::default() };
        let error = RunWriter::resume(directory.path(), options, |_| false).err().unwrap().to_string();
        assert!(error.contains(key), "{error}");
    }
    assert_eq!(ids(directory.path()).0.len(), 2, "nothing was touched");
}

#[tokio::test]
async fn files_that_other_programs_wrote_again_are_read() {
    let tree = tree("1").await;
    let directory = tempfile::tempdir().unwrap();
    let nodes = [tree.descendants[0].clone(), tree.root.clone()];
    let batch = to_batch(&nodes);
    // As pandas and polars keep texts.
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    columns[0] = Arc::new(LargeStringArray::from_iter_values(nodes.iter().map(|node| node.rollout_id.as_str())));
    let mut fields: Vec<Field> = batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields[0] = Field::new("rollout_id", DataType::LargeUtf8, false);
    let schema = Arc::new(Schema::new_with_metadata(fields, batch.schema().metadata().clone()));
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    let (gzip, brotli, zstd) = (GzipLevel::default(), BrotliLevel::default(), ZstdLevel::default());
    for codec in [
        Compression::GZIP(gzip),
        Compression::BROTLI(brotli),
        Compression::ZSTD(zstd),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        let path = directory.path().join("again.parquet");
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_key_value_metadata(Some(vec![KeyValue::new(SCHEMA_KEY.to_owned(), SCHEMA.to_owned())]))
            .build();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        assert_eq!(read_trees(&path).unwrap().0, std::slice::from_ref(&tree), "{codec}");
    }

    write(directory.path(), OutputOptions { parquet: false, ..OutputOptions::default() }, std::slice::from_ref(&tree));
    let path = directory.path().join("trajectories.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
    assert_eq!(read_trees(directory.path()).unwrap().0, std::slice::from_ref(&tree), "a byte order mark");
    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
    writer.finish().unwrap();
    assert_eq!(resumed.completed.len(), 1);
    let parts: Vec<_> = TrajectoryReader::open_parts(directory.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(parts, nodes);
}

#[tokio::test]
async fn counts_that_nothing_can_have_counted_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut tree = tree("1").await;
    tree.nodes_mut().for_each(|node| node.usage.sampled_tokens = u64::MAX);
    write(directory.path(), OutputOptions::default(), &[tree]);
    for file in ["trajectories.jsonl", "trajectories-00000.parquet"] {
        let error = read_trees(directory.path().join(file)).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("`usage.sampled_tokens`: expected at most"), "{error}");
    }
}

#[tokio::test]
async fn a_reader_skips_an_unfinished_last_line_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    killed(directory.path(), &[tree("1").await], "{\"schema\":");
    let mut reader = TrajectoryReader::open(directory.path()).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 2);
    assert_eq!(reader.warnings().len(), 1);
    assert!(reader.warnings()[0].contains("line 3"), "{:?}", reader.warnings());
}

#[tokio::test]
async fn a_broken_line_in_the_middle_is_an_error_with_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions { parquet: false, ..OutputOptions::default() }, &[tree("1").await]);
    let path = directory.path().join("trajectories.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        ("\"mask\":[1", "\"mask\":[7", "expected 0 or 1"),
        ("espalier.trajectory.v1", "espalier.trajectory.v9", "espalier.trajectory.v9"),
        ("\"stop\":\"completed\"", "\"stop\":\"finished\"", "finished"),
        ("{\"schema\"", "{\"schema", "not a JSON object"),
    ] {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = TrajectoryReader::open(&path).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("trajectories.jsonl`, line 1: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn files_that_are_not_trajectories_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let error = TrajectoryReader::open(directory.path()).err().unwrap().to_string();
    assert!(error.contains("expected `trajectories.jsonl`"), "{error}");
    let path = directory.path().join("trajectories-00000.parquet");
    std::fs::write(&path, b"not parquet").unwrap();
    let error = TrajectoryReader::open(&path).err().unwrap().to_string();
    assert!(error.contains("expected a Parquet file"), "{error}");
    std::fs::write(&path, b"PAR1 and nothing else").unwrap();
    let error = TrajectoryReader::open(&path).err().unwrap().to_string();
    assert!(error.contains("not a whole Parquet file"), "{error}");
    let error = TrajectoryReader::open(directory.path().join("absent.jsonl")).err().unwrap().to_string();
    assert!(error.contains("cannot open it"), "{error}");
}

#[tokio::test]
async fn rewards_can_be_given_anew_to_what_was_stored() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), OutputOptions::default(), &[tree("1").await]);
    let (mut trees, _) = read_trees(directory.path()).unwrap();
    let root = &mut trees[0].root;
    assert_eq!(root.reward, 1.5);
    root.set_rewards(&[0.0, 2.0]).unwrap();
    assert_eq!(root.reward, 2.0);
    let row = &root.rows[0];
    assert_eq!(row.rewards()[row.len() - 1], 2.0);
    assert_eq!(row.reward(), 2.0);
    assert!(root.set_rewards(&[1.0]).is_err());
    assert!(root.set_rewards(&[f32::NAN, 0.0]).is_err());
    assert_eq!(root.reward, 2.0, "what does not fit changes nothing");
}

/// Names the directory to the process that is killed.
const VICTIM: &str = "ESPALIER_TEST_VICTIM_DIRECTORY";

/// Writes trees until it is killed, where it is told where to; otherwise there is nothing to show.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the parent process listens")]
async fn victim_of_the_kill() {
    let Some(directory) = std::env::var_os(VICTIM) else { return };
    let options = OutputOptions { part_trajectories: 8, ..OutputOptions::default() };
    let mut writer = RunWriter::create(directory, options).unwrap();
    for number in 0.. {
        writer.write(&tree(&number.to_string()).await).unwrap();
        println!("wrote {number}");
    }
}

#[test]
fn a_process_that_is_killed_leaves_every_tree_it_had_written() {
    use std::io::{BufRead, BufReader};
    let directory = tempfile::tempdir().unwrap();
    let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "output::victim_of_the_kill", "--nocapture"])
        .env(VICTIM, directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let told = lines.map(Result::unwrap).find(|line| line.ends_with("wrote 100")).is_some();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(told);
    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
    writer.finish().unwrap();
    assert!(resumed.completed.len() > 100);
    let (trees, warnings) = read_trees(directory.path()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let numbers: Vec<String> = trees.iter().map(|tree| tree.root.instance_id.clone()).collect();
    assert_eq!(numbers, (0..trees.len()).map(|number| number.to_string()).collect::<Vec<_>>(), "without a gap");
    let parts = TrajectoryReader::open_parts(directory.path()).unwrap().map(Result::unwrap);
    assert_eq!(parts.filter(|node| node.parent_id.is_none()).count(), trees.len(), "Parquet has what JSONL has");
}

//! What is written is read back, whatever happened in between.

use std::path::Path;
use std::sync::Arc;

use espalier_envs::{EnvContext, SubQuery};
use espalier_generator::output::{OutputError, OutputOptions, RunWriter, TrajectoryReader, read_trees};
use espalier_generator::{Players, Tree, TreeOptions, play_tree};
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
    let second = RunWriter::resume(directory.path(), OutputOptions::default());
    assert!(matches!(second, Err(OutputError::Busy(_))));
    drop(first);
    assert!(RunWriter::resume(directory.path(), OutputOptions::default()).is_ok());
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

    let (mut writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default()).unwrap();
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
    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default()).unwrap();
    writer.finish().unwrap();
    assert_eq!(resumed.repaired, Vec::<String>::new());
    assert_eq!(std::fs::read(directory.path().join("trajectories.jsonl")).unwrap(), before);
    let parts: Vec<_> = TrajectoryReader::open_parts(directory.path()).unwrap().collect();
    assert_eq!(parts.len(), 2);
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
    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default()).unwrap();
    writer.finish().unwrap();
    assert!(resumed.completed.len() > 100);
    let (trees, warnings) = read_trees(directory.path()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let numbers: Vec<String> = trees.iter().map(|tree| tree.root.instance_id.clone()).collect();
    assert_eq!(numbers, (0..trees.len()).map(|number| number.to_string()).collect::<Vec<_>>(), "without a gap");
    let parts = TrajectoryReader::open_parts(directory.path()).unwrap().map(Result::unwrap);
    assert_eq!(parts.filter(|node| node.parent_id.is_none()).count(), trees.len(), "Parquet has what JSONL has");
}

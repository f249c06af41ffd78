//! Many roots at once.

use std::sync::Arc;
use std::time::Duration;

use espalier_generator::output::{OutputError, OutputOptions, RunWriter, read_trees};
use espalier_generator::rollouts::{NoSink, Progress, RolloutJob, RunError, RunOptions, TreeSink, groups, run};
use espalier_generator::{Players, RolloutStop, Tree, TreeOptions};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{Reply, Scripted, Source, done, player, replies, say, steps, task};

fn job(instance: &str, engine: &Arc<Scripted>, source: Source) -> RolloutJob {
    RolloutJob {
        task: task(instance, "hi", source),
        players: Players::policy(player(engine)),
        options: TreeOptions::default(),
    }
}

#[tokio::test]
async fn one_failing_rollout_among_512_is_one_failing_rollout() {
    let engine = replies(&["a"]);
    let jobs = (0..512).map(|number| {
        let source = Source::new(move |_, _, _| async move {
            assert!(number != 77, "boom");
            Ok(done(1.0))
        });
        job(&number.to_string(), &engine, source)
    });
    let result = run(jobs.collect(), RunOptions::default(), NoSink, &CancellationToken::new()).await.unwrap();
    assert!(!result.cancelled);
    for (number, tree) in result.trees.iter().enumerate() {
        let root = &tree.as_ref().unwrap().root;
        assert_eq!(root.instance_id, number.to_string(), "in the order of the jobs");
        if number == 77 {
            assert_eq!(root.stop, RolloutStop::EnvError);
            assert_eq!(root.trained_tokens(), 0);
        } else {
            assert_eq!(root.stop, RolloutStop::Completed);
            assert_eq!(root.trained_tokens(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_environment_does_not_hold_up_the_others() {
    let engine = replies(&["a"]);
    let jobs = (0..50).map(|number| {
        let source = Source::new(move |_, _, _| async move {
            tokio::time::sleep(Duration::from_secs(if number == 0 { 1000 } else { 10 })).await;
            Ok(done(1.0))
        });
        job(&number.to_string(), &engine, source)
    });
    let (send, mut receive) = mpsc::channel(200);
    let options = RunOptions { in_flight: 5, progress: Some(send) };
    let begun = tokio::time::Instant::now();
    let listener = tokio::spawn(async move {
        let mut ends = Vec::new();
        while let Some(event) = receive.recv().await {
            if let Progress::Ended { job, .. } = event {
                ends.push((job, begun.elapsed().as_secs()));
            }
        }
        ends
    });
    run(jobs.collect(), options, NoSink, &CancellationToken::new()).await.unwrap();
    let ends = listener.await.unwrap();
    assert_eq!(ends.last(), Some(&(0, 1000)));
    assert!(ends[..49].iter().all(|&(_, second)| second <= 130), "four slots did the other 49 in 13 rounds: {ends:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_roots_than_asked_for_are_played_at_once() {
    let engine = Arc::new(Scripted::new(|_, _| Reply::After(Duration::from_secs(1), Box::new(say("a")))));
    let jobs = (0..40).map(|number| job(&number.to_string(), &engine, steps(vec![done(1.0)])));
    let options = RunOptions { in_flight: 7, progress: None };
    run(jobs.collect(), options, NoSink, &CancellationToken::new()).await.unwrap();
    assert_eq!(engine.most_running.load(std::sync::atomic::Ordering::SeqCst), 7);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_keeps_what_ended_and_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Arc::new(Scripted::new(|_, _| say("a")));
    let jobs = |hang: bool| -> Vec<RolloutJob> {
        let jobs = (0..6).map(|number| {
            let source = Source::new(move |_, _, _| async move {
                if hang && number >= 3 {
                    std::future::pending::<()>().await;
                }
                Ok(done(1.0))
            });
            job(&number.to_string(), &engine, source)
        });
        jobs.collect()
    };
    let cancel = CancellationToken::new();
    tokio::spawn({
        let cancel = cancel.clone();
        async move {
            tokio::time::sleep(Duration::from_mins(1)).await;
            cancel.cancel();
        }
    });
    let writer = RunWriter::create(directory.path(), OutputOptions::default()).unwrap();
    let result = run(jobs(true), RunOptions::default(), writer, &cancel).await.unwrap();
    assert!(result.cancelled);
    let ended: Vec<bool> = result.trees.iter().map(Option::is_some).collect();
    assert_eq!(ended, [true, true, true, false, false, false]);
    result.sink.finish().unwrap();
    assert_eq!(read_trees(directory.path()).unwrap().0.len(), 3);

    let (writer, resumed) = RunWriter::resume(directory.path(), OutputOptions::default(), |_| false).unwrap();
    let mut left = jobs(false);
    left.retain(|job| !resumed.completed.contains(&job.task.id));
    assert_eq!(left.len(), 3);
    let result = run(left, RunOptions::default(), writer, &CancellationToken::new()).await.unwrap();
    result.sink.finish().unwrap();
    let (trees, _) = read_trees(directory.path()).unwrap();
    let ids: Vec<&str> = trees.iter().map(|tree| tree.root.instance_id.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn groups_repeat_each_job_with_seeds_of_their_own() {
    let engine = replies(&["a"]);
    let jobs = ["x", "y"].map(|instance| job(instance, &engine, steps(vec![done(1.0)])));
    let grouped = groups(jobs, 3);
    let ids: Vec<String> = grouped.iter().map(|job| job.task.id.to_string()).collect();
    assert_eq!(ids, ["x_0", "x_1", "x_2", "y_0", "y_1", "y_2"]);
    let mut seeds: Vec<u64> = grouped[..3].iter().map(|job| job.task.seed).collect();
    seeds.dedup();
    assert_eq!(seeds.len(), 3);
}

#[tokio::test]
async fn a_sink_that_refuses_stops_the_run_with_its_error() {
    struct Full;
    impl TreeSink for Full {
        fn take(&mut self, _: &Tree) -> Result<(), OutputError> {
            Err(OutputError::File { path: "x".into(), reason: "no space left".to_owned() })
        }
    }
    let engine = replies(&["a"]);
    let jobs = (0..200).map(|number| job(&number.to_string(), &engine, steps(vec![done(1.0)])));
    let result =
        run(jobs.collect(), RunOptions { in_flight: 2, progress: None }, Full, &CancellationToken::new()).await;
    assert!(matches!(result, Err(RunError::Output(_))));
    assert!(engine.requests() < 200, "the rest was not played");
}

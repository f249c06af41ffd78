//! What is shown while a suite runs: a bar per cell at a terminal, a line per cell elsewhere. All on stderr.

use std::io::IsTerminal as _;
use std::time::Duration;

use espalier_generator::rollouts::Progress;
use espalier_generator::suite::SuiteEvent;
use espalier_generator::suite::report::score;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use crate::output::say;

/// Shows events until the suite is over.
pub(super) async fn show(mut events: mpsc::Receiver<SuiteEvent>) {
    let terminal = std::io::stderr().is_terminal();
    let mut bar = ProgressBar::hidden();
    let mut tokens = 0;
    while let Some(event) = events.recv().await {
        match event {
            SuiteEvent::Cell { index, of, task, engine, mode, rollouts, resumed } => {
                let name = format!("[{}/{of}] {task}, {engine}, {}", index + 1, mode.title());
                tokens = 0;
                if terminal {
                    bar = ProgressBar::new(rollouts as u64);
                    bar.set_style(
                        ProgressStyle::with_template("{msg:48} {wide_bar} {pos}/{len} {prefix} {elapsed}")
                            .unwrap_or_else(|_| ProgressStyle::default_bar()),
                    );
                    bar.set_message(name);
                    bar.set_position(resumed as u64);
                    bar.enable_steady_tick(Duration::from_millis(200));
                } else {
                    let done = if resumed > 0 { format!(", {resumed} done before") } else { String::new() };
                    say!("{name}: {rollouts} rollouts{done}");
                }
            }
            SuiteEvent::Rollout(Progress::Ended { sampled_tokens, .. }) => {
                tokens += sampled_tokens;
                bar.inc(1);
                bar.set_prefix(format!("{tokens} tokens"));
            }
            SuiteEvent::Rollout(Progress::Started { .. }) => {}
            SuiteEvent::CellDone(cell) => {
                bar.finish_and_clear();
                if terminal {
                    say!("{}, {}: {}", cell.task, cell.mode.title(), score(&cell));
                } else {
                    say!("    {}, {:.1} s a rollout", score(&cell), cell.seconds);
                }
            }
            SuiteEvent::Note(note) => {
                bar.suspend(|| say!("note: {note}"));
            }
        }
    }
    bar.finish_and_clear();
}

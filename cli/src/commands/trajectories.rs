//! `espalier trajectories`.

use std::path::{Path, PathBuf};

use espalier_generator::output::read_trees;
use espalier_generator::tree_view::{self, ViewOptions, plain};
use espalier_generator::{Trajectory, Tree};
use espalier_inference::Tokenizer;

use crate::arguments::TrajectoriesCommand;
use crate::failure::Failure;
use crate::output::{self, out, outln, say};
use crate::settings::model_folder;

pub(crate) fn run(command: TrajectoriesCommand) -> Result<(), Failure> {
    let TrajectoriesCommand::Show { path, tree, id, mask, lines, json } = command;
    let mut trees: Vec<(PathBuf, Tree)> = Vec::new();
    for run in runs_below(&path)? {
        let (read, notes) = read_trees(&run).map_err(|error| Failure::Data(error.to_string()))?;
        for note in notes {
            say!("note: {note}");
        }
        trees.extend(read.into_iter().map(|tree| (run.clone(), tree)));
    }
    if let Some(id) = &id {
        trees.retain(|(_, tree)| tree.root.rollout_id.contains(id.as_str()));
    }
    if trees.is_empty() {
        return Err(Failure::Input {
            file: path.display().to_string(),
            reason: id.map_or_else(|| "no trajectories".to_owned(), |id| format!("no tree whose id contains `{id}`")),
        });
    }
    if json {
        for node in trees.iter().flat_map(|(_, tree)| tree.nodes()) {
            outln!("{}", serde_json::to_string(node).unwrap_or_default())?;
        }
        return Ok(());
    }
    let view = ViewOptions { colour: output::colour(), lines, ..ViewOptions::default() };
    if tree || mask.is_some() {
        // The tree with most to see: children first, then sub-calls, then turns.
        let richest = trees.iter().max_by_key(|(_, tree)| {
            let calls: usize = tree.nodes().map(|node| node.calls.len()).sum();
            (tree.descendants.len(), calls, tree.root.turns.len())
        });
        if let Some((run, tree)) = richest {
            outln!("{}", run.display())?;
            match mask {
                None => out!("{}", tree_view::tree(tree, view))?,
                Some(model) => show_masks(tree, &model_folder(model), view)?,
            }
        }
        return Ok(());
    }
    let width = trees.iter().map(|(_, tree)| plain(&tree.root.rollout_id).chars().count()).max().unwrap_or(0).max(4);
    outln!(
        "{:width$}  {:>7}  {:16}  {:>5}  {:>8}  {:>8}  {:>9}  {:>8}",
        "tree",
        "reward",
        "stop",
        "turns",
        "children",
        "calls",
        "tokens",
        "time"
    )?;
    // A suite's cells have trees of the same names: each cell says which it is.
    let several = trees.iter().any(|(run, _)| *run != trees[0].0);
    let mut shown = None;
    for (run, tree) in &trees {
        if several && shown != Some(run) {
            outln!("{}", run.strip_prefix(&path).unwrap_or(run).display())?;
            shown = Some(run);
        }
        let root = &tree.root;
        let calls: usize = tree.nodes().map(|node| node.calls.len()).sum();
        let tokens: u64 = tree.nodes().map(|node| node.usage.sampled_tokens).sum();
        outln!(
            "{:width$}  {:>7.3}  {:16}  {:>5}  {:>8}  {:>8}  {:>9}  {:>6.1} s",
            plain(&root.rollout_id),
            root.reward,
            root.stop.name(),
            root.turns.len(),
            tree.descendants.len(),
            calls,
            tokens,
            root.timings.total_us as f64 / 1e6
        )?;
        if let Some(error) = &root.error {
            outln!("{:width$}  {}", "", plain(error))?;
        }
    }
    Ok(())
}

fn show_masks(tree: &Tree, folder: &Path, view: ViewOptions) -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_dir(folder).map_err(|error| Failure::Data(error.to_string()).within("`--mask`"))?;
    if !tree.nodes().all(|node| speaks(&tokenizer, node)) {
        say!(
            "note: `{}` is not the vocabulary that this tree was sampled with (by `{}`): the texts below mean nothing",
            folder.display(),
            tree.root.model
        );
    }
    for node in tree.nodes() {
        for row in &node.rows {
            outln!("{}", plain(&node.rollout_id))?;
            let name = |token| tokenizer.decode_with_special(&[token]);
            outln!("{}", tree_view::mask(row, name, view))?;
        }
    }
    Ok(())
}

/// Whether a tokenizer reads the sampled ids as the text that was recorded of them.
fn speaks(tokenizer: &Tokenizer, node: &Trajectory) -> bool {
    let mut turns = node.turns.iter().filter_map(|turn| {
        let ids = node.rows.get(turn.row? as usize)?.response_ids().get(turn.start as usize..turn.end as usize)?;
        let text = &node.messages.get(turn.message as usize)?.content;
        // A template may trim what it is given.
        Some(tokenizer.decode(ids).trim() == text.trim())
    });
    // One turn that reads right is enough: the vocabulary is the same all through.
    turns.next().is_none_or(|reads| reads || turns.any(|reads| reads))
}

/// The folders at or below `path` that hold trajectories, in order; a file is itself.
fn runs_below(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut pending = vec![path.to_owned()];
    while let Some(folder) = pending.pop() {
        let mut holds = false;
        for entry in std::fs::read_dir(&folder).map_err(|error| Failure::unreadable(&folder, &error))? {
            let entry = entry.map_err(|error| Failure::unreadable(&folder, &error))?;
            let name = entry.file_name();
            // Links are not followed: a folder that holds itself would never end.
            let kind = entry.file_type().map_err(|error| Failure::unreadable(&entry.path(), &error))?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if name.to_string_lossy().starts_with("trajectories") {
                holds = true;
            }
        }
        if holds {
            found.push(folder);
        }
    }
    found.sort();
    Ok(found)
}

//! Questions over a generated repository of Python modules.
//!
//! | module | what lives there |
//! |---|---|
//! | [`plan`] | what the modules hold: imports without cycles, constants, functions that call at most one other |
//! | [`mod@write`] | a module as Python source |
//! | [`mod@scan`] | the answers found again from the text alone |
//!
//! The text is the files one after the other, in the order of their paths, each after a line `=== path ===`. Names are
//! not unique in the repository: only the imports say what a name means. Comments fill the last file to the size.

mod plan;
pub mod scan;
mod write;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Made, filler};
use crate::draw::Draw;
use plan::Plan;

const ABOUT: &str =
    "The text is a repository of Python modules; each file starts after a line with its path, such as === a/b.py ===.";

/// Most functions that an answer lists.
const LISTED: usize = 8;

/// Makes a repository of exactly `size` characters and a question over it.
pub(super) fn make(size: usize, draw: &mut Draw) -> Made {
    let mut plan = Plan::new(size, draw);
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut taken = 0;
    while let Some(module) = plan.next_module(draw) {
        let (path, source) = write::module(&plan, &module, draw);
        let file = format!("=== {path} ===\n{source}");
        if taken + file.len() > size {
            break;
        }
        taken += file.len();
        files.insert(path, file);
        plan.add(module);
    }
    let mut text = String::with_capacity(size);
    for file in files.into_values() {
        text.push_str(&file);
    }
    fill(&mut text, size, draw);
    let (question, truth, unordered) = question(&plan, draw);
    Made { text, question: format!("{ABOUT} {question}"), truth, unordered }
}

/// Comments up to the size.
fn fill(text: &mut String, size: usize, draw: &mut Draw) {
    const WIDTH: usize = 96;
    while text.len() < size {
        let room = (size - text.len()).min(WIDTH);
        match room {
            1 => text.push('\n'),
            2 => text.push_str("#\n"),
            _ => {
                text.push_str("# ");
                text.push_str(&filler::prose(room - 3, draw));
                text.push('\n');
            }
        }
    }
}

/// A question, its answer, and whether the answer's order counts for nothing.
fn question(plan: &Plan, draw: &mut Draw) -> (String, Value, bool) {
    let first = draw.below(4);
    // A small repository may have nothing to ask of a kind; a value or a result can always be asked for.
    for kind in (0..4).map(|step| (first + step) % 4) {
        let asked = match kind {
            0 => callers(plan, draw),
            1 => importers(plan, draw),
            2 => constant(plan, draw),
            _ => result(plan, draw),
        };
        if let Some(asked) = asked {
            return asked;
        }
    }
    (String::new(), Value::Null, false)
}

type Asked = Option<(String, Value, bool)>;

fn callers(plan: &Plan, draw: &mut Draw) -> Asked {
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); plan.functions.len()];
    for (caller, function) in plan.functions.iter().enumerate() {
        if let Some(call) = &function.call {
            callers[call.function].push(caller);
        }
    }
    // Several where there are such functions.
    let with = |least: usize| -> Vec<usize> {
        (0..callers.len()).filter(|function| (least..=LISTED).contains(&callers[*function].len())).collect()
    };
    let candidates = [3, 2, 1].into_iter().map(with).find(|found| !found.is_empty())?;
    let function = *draw.pick(&candidates);
    let mut names: Vec<String> = callers[function].iter().map(|caller| plan.function_name(*caller)).collect();
    names.sort_unstable();
    let question = format!(
        "Which functions call the function `{}`? Answer with a list of their dotted names, such as \
         [\"a.b.first\", \"a.c.second\"].",
        plan.function_name(function)
    );
    Some((question, json!(names), true))
}

fn importers(plan: &Plan, draw: &mut Draw) -> Asked {
    let mut counts = vec![0_usize; plan.modules.len()];
    for module in &plan.modules {
        for imported in module.imports.keys() {
            counts[*imported] += 1;
        }
    }
    let candidates: Vec<usize> = (0..counts.len()).filter(|module| counts[*module] > 0).collect();
    let module = if candidates.is_empty() { return None } else { *draw.pick(&candidates) };
    let question =
        format!("How many other modules import the module `{}` or something from it?", plan.modules[module].dotted);
    Some((question, json!(counts[module]), false))
}

fn constant(plan: &Plan, draw: &mut Draw) -> Asked {
    let with = |least: usize| -> Vec<usize> {
        (0..plan.constants.len()).filter(|constant| plan.constants[*constant].hops >= least).collect()
    };
    let candidates = [3, 2, 1].into_iter().map(with).find(|found| !found.is_empty())?;
    let constant = &plan.constants[*draw.pick(&candidates)];
    let question = format!(
        "What is the value of `{}` in the module `{}`, through all re-exports?",
        constant.name, plan.modules[constant.module].dotted
    );
    Some((question, json!(constant.value), false))
}

fn result(plan: &Plan, draw: &mut Draw) -> Asked {
    let with = |least: usize| -> Vec<usize> {
        (0..plan.functions.len()).filter(|function| (least..=6).contains(&plan.functions[*function].depth)).collect()
    };
    let least = 1 + draw.below(3);
    let candidates = (0..=least).rev().map(with).find(|found| !found.is_empty())?;
    let function = *draw.pick(&candidates);
    let argument = draw.between(1, 50);
    let question = format!("What does `{}({argument})` return?", plan.function_name(function));
    Some((question, json!(plan.value(function, argument)), false))
}

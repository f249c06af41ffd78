//! The rows of the tasks' data sets; what a text and a question are is [`espalier_procedural::long`].

use espalier_datasets::{Prompt, Row};
use espalier_procedural::long::{Shape, make};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use espalier_procedural::long::{LongTask, MAX_SIZE, MIN_SIZE};

/// The parameters of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LongParams {
    /// How many rows.
    pub rows: u64,
    /// Characters of a text.
    pub size: usize,
    /// Sizes that rows take in turn, instead of `size`.
    pub sizes: Vec<usize>,
    /// The seed.
    pub seed: u64,
    /// Sentences like the needle that answer other questions.
    pub distractors: usize,
    /// Codes that `long_multi_needle` asks for.
    pub needles: usize,
}

impl Default for LongParams {
    fn default() -> Self {
        Self { rows: 16, size: 1 << 13, sizes: Vec::new(), seed: 0, distractors: 3, needles: 4 }
    }
}

impl LongParams {
    /// Refuses sizes that no text can have: the parameter and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for size in self.sizes.iter().chain([&self.size]) {
            if !(MIN_SIZE..=MAX_SIZE).contains(size) {
                return Err((
                    if self.sizes.is_empty() { "size" } else { "sizes" },
                    format!("must be from {MIN_SIZE} to {MAX_SIZE} characters, got {size}"),
                ));
            }
        }
        // A tenth of the smallest text at most is not prose.
        let most = 100;
        if self.distractors > most {
            return Err(("distractors", format!("must be at most {most}, got {}", self.distractors)));
        }
        if !(2..=32).contains(&self.needles) {
            return Err(("needles", format!("must be from 2 to 32, got {}", self.needles)));
        }
        Ok(())
    }

    /// The size of a row's text.
    fn size_of(&self, index: u64) -> usize {
        match self.sizes.len() as u64 {
            0 => self.size,
            count => self.sizes.get((index % count) as usize).copied().unwrap_or(self.size),
        }
    }
}

/// Row `index` of a task's data set.
pub fn row(task: LongTask, params: &LongParams, index: u64) -> Row {
    let size = params.size_of(index);
    let shape = Shape { size, needles: params.needles, distractors: params.distractors };
    let made = make(task, shape, &mut task.draw(params.seed, index));
    let name = task.name();
    let mut columns = Map::new();
    columns.insert("data_source".to_owned(), json!(format!("espalier/{name}")));
    columns.insert(
        "reward_spec".to_owned(),
        json!({"method": "exact", "ground_truth": made.truth, "unordered": made.unordered}),
    );
    let mut extra = Map::new();
    extra.insert("task".to_owned(), json!(name));
    extra.insert("size".to_owned(), json!(size));
    extra.insert("seed".to_owned(), json!(params.seed));
    extra.insert("index".to_owned(), json!(index));
    extra.insert("question".to_owned(), json!(made.question));
    extra.insert("context_text".to_owned(), Value::String(made.text));
    columns.insert("extra_info".to_owned(), Value::Object(extra));
    Row {
        id: format!("{name}-{}-{size}-{index}", params.seed),
        prompt: Prompt::Text(made.question),
        env: None,
        columns,
    }
}

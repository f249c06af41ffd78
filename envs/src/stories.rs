//! The data set of generated word problems of the kind that GSM8K asks, for machines without the real one.

use espalier_datasets::{Prompt, Row};
use espalier_procedural::draw::Draw;
use espalier_procedural::stories::story;
use serde::Deserialize;
use serde_json::{Map, json};

/// The name of the data set.
pub const NAME: &str = "stories";

/// The parameters of the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoryParams {
    /// How many rows.
    pub rows: u64,
    /// The seed.
    pub seed: u64,
}

impl Default for StoryParams {
    fn default() -> Self {
        Self { rows: 16, seed: 0 }
    }
}

/// Row `index` of the data set.
pub fn row(params: StoryParams, index: u64) -> Row {
    let story = story(&mut Draw::new(params.seed, index));
    let (question, answer) = (story.question, story.answer);
    let mut columns = Map::new();
    columns.insert("data_source".to_owned(), json!("espalier/stories"));
    columns.insert("reward_spec".to_owned(), json!({"method": "numeric", "ground_truth": answer.to_string()}));
    columns.insert(
        "extra_info".to_owned(),
        json!({
            "index": index, "seed": params.seed, "question": question,
            "answer": format!("{}\n#### {answer}", story.steps.join("\n")),
        }),
    );
    Row { id: format!("{NAME}-{}-{index}", params.seed), prompt: Prompt::Text(question), env: None, columns }
}

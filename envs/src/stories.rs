//! Word problems of the kind that GSM8K asks, generated: a few arithmetic steps told as a story, with an exact answer.
//!
//! For machines without the real data set. Numbers, names and things are seeded; every quantity on the way is a
//! positive whole number.

use espalier_datasets::{Prompt, Row};
use serde::Deserialize;
use serde_json::{Map, json};

use crate::long::draw::Draw;

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

const NAMES: [&str; 12] =
    ["Mina", "Oskar", "Priya", "Tomas", "Leila", "Jonas", "Ama", "Felix", "Rosa", "Kenji", "Nadia", "Emil"];

const THINGS: [&str; 10] =
    ["apples", "pencils", "stickers", "marbles", "eggs", "postcards", "muffins", "buttons", "seashells", "tickets"];

/// Row `index` of the data set.
pub fn row(params: StoryParams, index: u64) -> Row {
    let mut draw = Draw::new(params.seed, index);
    let (question, answer, steps) = story(&mut draw);
    let mut columns = Map::new();
    columns.insert("data_source".to_owned(), json!("espalier/stories"));
    columns.insert("reward_spec".to_owned(), json!({"method": "numeric", "ground_truth": answer.to_string()}));
    columns.insert(
        "extra_info".to_owned(),
        json!({
            "index": index, "seed": params.seed, "question": question,
            "answer": format!("{}\n#### {answer}", steps.join("\n")),
        }),
    );
    Row { id: format!("{NAME}-{}-{index}", params.seed), prompt: Prompt::Text(question), env: None, columns }
}

/// A question, its answer, and the steps to it.
fn story(draw: &mut Draw) -> (String, i64, Vec<String>) {
    let name = *draw.pick(&NAMES);
    let thing = *draw.pick(&THINGS);
    match draw.below(6) {
        0 => {
            let (boxes, each, given) = (draw.between(3, 12), draw.between(4, 15), draw.between(2, 10));
            let total = boxes * each;
            (
                format!(
                    "{name} has {boxes} boxes with {each} {thing} in each. {name} gives {given} {thing} to a friend. \
                     How many {thing} are left?"
                ),
                total - given,
                vec![format!("{boxes} * {each} = {total}"), format!("{total} - {given} = {}", total - given)],
            )
        }
        1 => {
            let (price, count, paid_extra) = (draw.between(2, 9), draw.between(3, 12), draw.between(1, 20));
            let cost = price * count;
            let paid = cost + paid_extra;
            (
                format!(
                    "{name} buys {count} {thing} for ${price} each and pays with ${paid}. How many dollars does {name} \
                     get back?"
                ),
                paid_extra,
                vec![format!("{price} * {count} = {cost}"), format!("{paid} - {cost} = {paid_extra}")],
            )
        }
        2 => {
            let (first, factor, days) = (draw.between(5, 30), draw.between(2, 4), draw.between(2, 7));
            let second = first * factor;
            let week = second * days;
            (
                format!(
                    "A shop sells {first} {thing} on a normal day and {factor} times as many on a holiday. How many \
                     {thing} does it sell on {days} holidays?"
                ),
                week,
                vec![format!("{first} * {factor} = {second}"), format!("{second} * {days} = {week}")],
            )
        }
        3 => {
            let (speed, hours, more) = (draw.between(20, 80), draw.between(2, 6), draw.between(5, 60));
            let way = speed * hours;
            (
                format!(
                    "A train travels {hours} hours at {speed} kilometres per hour and then another {more} kilometres. \
                     How many kilometres does it travel in all?"
                ),
                way + more,
                vec![format!("{speed} * {hours} = {way}"), format!("{way} + {more} = {}", way + more)],
            )
        }
        4 => {
            let (people, each, spare) = (draw.between(3, 9), draw.between(3, 14), draw.between(1, 9));
            let total = people * each + spare;
            (
                format!(
                    "{name} collects {total} {thing}, keeps {spare} and shares the rest equally among {people} \
                     children. How many {thing} does each child get?"
                ),
                each,
                vec![
                    format!("{total} - {spare} = {}", people * each),
                    format!("{} / {people} = {each}", people * each),
                ],
            )
        }
        _ => {
            let (weeks, pocket, spent) = (draw.between(4, 12), draw.between(5, 15), draw.between(3, 18));
            let saved = weeks * pocket;
            let doubled = (saved - spent) * 2;
            (
                format!(
                    "{name} saves ${pocket} a week for {weeks} weeks and spends ${spent} of it. An aunt then doubles \
                     what is left. How many dollars does {name} have?"
                ),
                doubled,
                vec![
                    format!("{weeks} * {pocket} = {saved}"),
                    format!("{saved} - {spent} = {}", saved - spent),
                    format!("{} * 2 = {doubled}", saved - spent),
                ],
            )
        }
    }
}

//! Word problems of the kind that GSM8K asks, generated: a few arithmetic steps told as a story, with an exact answer.
//!
//! Numbers, names and things are seeded; every quantity on the way is a positive whole number.

use crate::draw::Draw;

/// A word problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// What is asked.
    pub question: String,
    /// The answer.
    pub answer: i64,
    /// The steps to it, such as `3 * 4 = 12`.
    pub steps: Vec<String>,
}

const NAMES: [&str; 12] =
    ["Mina", "Oskar", "Priya", "Tomas", "Leila", "Jonas", "Ama", "Felix", "Rosa", "Kenji", "Nadia", "Emil"];

const THINGS: [&str; 10] =
    ["apples", "pencils", "stickers", "marbles", "eggs", "postcards", "muffins", "buttons", "seashells", "tickets"];

/// A word problem.
pub fn story(draw: &mut Draw) -> Story {
    let (question, answer, steps) = told(draw);
    Story { question, answer, steps }
}

fn told(draw: &mut Draw) -> (String, i64, Vec<String>) {
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

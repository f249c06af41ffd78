//! Lines that are about something without saying it: what a line is about follows from what its words mean.
//!
//! No label can be searched for, so a program alone does not count them: somebody has to read.

use serde_json::json;

use super::Made;
use crate::draw::Draw;

/// What lines are about, with the words that only such lines have.
pub const TOPICS: [(&str, [&str; 12]); 8] = [
    (
        "animals",
        [
            "badger", "beetle", "donkey", "falcon", "ferret", "heron", "lizard", "magpie", "otter", "rabbit", "turtle",
            "weasel",
        ],
    ),
    (
        "clothes",
        ["apron", "belt", "cloak", "coat", "glove", "jacket", "mitten", "sandal", "scarf", "shirt", "skirt", "vest"],
    ),
    (
        "food",
        [
            "biscuit", "cheese", "cookie", "dumpling", "muffin", "noodle", "omelette", "pancake", "pickle", "radish",
            "waffle", "yogurt",
        ],
    ),
    (
        "furniture",
        [
            "armchair", "bench", "bookcase", "cradle", "cupboard", "desk", "dresser", "mattress", "shelf", "sofa",
            "stool", "wardrobe",
        ],
    ),
    (
        "music",
        [
            "accordion",
            "banjo",
            "cello",
            "clarinet",
            "flute",
            "guitar",
            "harp",
            "oboe",
            "piano",
            "trumpet",
            "tuba",
            "violin",
        ],
    ),
    (
        "plants",
        ["birch", "cactus", "clover", "daisy", "fern", "ivy", "lily", "maple", "oak", "orchid", "poppy", "tulip"],
    ),
    (
        "tools",
        [
            "anvil", "axe", "chisel", "clamp", "crowbar", "drill", "hammer", "ladder", "mallet", "rake", "spade",
            "wrench",
        ],
    ),
    (
        "vehicles",
        ["bicycle", "bus", "canoe", "ferry", "kayak", "raft", "scooter", "sled", "tractor", "train", "truck", "yacht"],
    ),
];

const NAMES: [&str; 16] = [
    "Ada", "Ben", "Cleo", "Dov", "Eva", "Finn", "Gia", "Hugo", "Iris", "Jon", "Kira", "Leo", "Mia", "Nils", "Orla",
    "Pam",
];

/// What somebody did, with `_` for the thing.
const DEEDS: [&str; 16] = [
    "saw the _",
    "asked about the _",
    "drew the old _",
    "wrote of the _",
    "has no _",
    "missed the _",
    "found the small _",
    "dreamt of the _",
    "pointed at the _",
    "spoke of the _",
    "took a photo of the _",
    "wants one more _",
    "lost sight of the _",
    "would not share the _",
    "thanked us for the _",
    "paid for the _",
];

/// What else is said, of nothing in particular.
const REST: [&str; 16] = [
    "Nobody else was there, and the street was quiet by then.",
    "It was late, and we talked about it for an hour.",
    "That was on Monday, as far as anybody remembers.",
    "The rest of the day went by without any news.",
    "I was told of it twice, and wrote it down twice.",
    "We did not ask why, and nobody gave us a reason.",
    "It came up again at the end of the evening.",
    "Nothing more was said of it in all those weeks.",
    "The others laughed, but not for very long.",
    "All of us knew, though few of us said so.",
    "It took longer than it should have, as always.",
    "There is a letter about it, which I have not read.",
    "Whoever was in the room looked up for a moment.",
    "In the morning it had been forgotten by most.",
    "I would have done the same, and so would you.",
    "This has happened before, and will happen again.",
];

/// How many lines are about something.
pub(super) fn topics(size: usize, draw: &mut Draw) -> Made {
    // A line is shorter than this.
    const LINE: usize = 128;
    // Topics differ in how frequent they are, so that a guess by chance is a bad one.
    let weights: Vec<usize> = TOPICS.iter().map(|_| 1 + draw.below(6)).collect();
    let mut counts = [0_usize; TOPICS.len()];
    let mut text = String::with_capacity(size);
    while size - text.len() > LINE {
        let topic = draw.weighted(&weights);
        counts[topic] += 1;
        let thing = *draw.pick(&TOPICS[topic].1);
        let name = *draw.pick(&NAMES);
        let deed = *draw.pick(&DEEDS);
        let rest = *draw.pick(&REST);
        text.extend([name, " ", &deed.replace('_', thing), ". ", rest, "\n"]);
    }
    // A rule ends the text; it is about nothing.
    text.extend(std::iter::repeat_n('-', size - text.len()));
    let present: Vec<usize> = (0..TOPICS.len()).filter(|topic| counts[*topic] > 0).collect();
    let topic = *draw.pick(&present);
    Made {
        text,
        question: format!("How many lines are about {}?", TOPICS[topic].0),
        truth: json!(counts[topic]),
        unordered: false,
    }
}

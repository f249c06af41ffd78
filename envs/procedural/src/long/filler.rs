//! Seeded prose of any length: sentences of many shapes over a few hundred words of our own.
//!
//! The prose is ASCII and holds no digit, no `|`, no `[` and none of the words that tasks plant, so whatever a task
//! hides in it occurs exactly where it was put.

use crate::draw::Draw;

const WHO: [&str; 40] = [
    "the miller",
    "a surveyor",
    "the night porter",
    "an old pilot",
    "the apprentice",
    "a travelling judge",
    "the gardener",
    "a clockmaker",
    "the ferryman",
    "my neighbour",
    "a retired teacher",
    "the librarian",
    "a young cooper",
    "the postmaster",
    "an island doctor",
    "the second cook",
    "a map seller",
    "the choirmaster",
    "a patient fisherman",
    "the stationer",
    "a weaver from the valley",
    "the bell founder",
    "an honest grocer",
    "the harbour pilot",
    "a botanist",
    "the glazier",
    "a shy accountant",
    "the town crier",
    "a beekeeper",
    "the stonemason",
    "an astronomer",
    "the innkeeper",
    "a bookbinder",
    "the signalman",
    "a careful saddler",
    "the interpreter",
    "a wandering poet",
    "the dentist",
    "a shepherd",
    "the caretaker",
];

const DID: [&str; 40] = [
    "repaired",
    "sold",
    "counted",
    "described",
    "forgot",
    "painted",
    "measured",
    "carried",
    "borrowed",
    "admired",
    "inherited",
    "weighed",
    "polished",
    "sketched",
    "wrapped",
    "returned",
    "collected",
    "buried",
    "cleaned",
    "exchanged",
    "examined",
    "praised",
    "ordered",
    "lost",
    "found",
    "mended",
    "arranged",
    "lifted",
    "guarded",
    "displayed",
    "tested",
    "delivered",
    "catalogued",
    "covered",
    "traded",
    "moved",
    "varnished",
    "copied",
    "loaded",
    "stored",
];

const WHAT: [&str; 40] = [
    "a copper kettle",
    "the larger ladder",
    "several jars of honey",
    "an unfinished quilt",
    "the brass telescope",
    "a crate of lemons",
    "the parish ledger",
    "two wooden oars",
    "a map of the marshes",
    "the cracked mirror",
    "a basket of plums",
    "the oldest violin",
    "a coil of rope",
    "some dried lavender",
    "the iron weathervane",
    "a set of chisels",
    "the silver whistle",
    "a bundle of letters",
    "the long table",
    "an empty birdcage",
    "a roll of canvas",
    "the spare anchor",
    "a tin of varnish",
    "the quiet clock",
    "a sack of barley",
    "the painted screen",
    "a pair of boots",
    "the stage curtain",
    "a glass lantern",
    "the heavy trunk",
    "a loaf of rye bread",
    "the garden gate",
    "a box of nails",
    "the winter coats",
    "an oil portrait",
    "a wheel of cheese",
    "the choir stalls",
    "a string of onions",
    "the field drum",
    "a stone basin",
];

const WHERE: [&str; 32] = [
    "behind the mill",
    "near the north quay",
    "at the edge of the orchard",
    "under the arcade",
    "on the upper terrace",
    "beside the canal",
    "in the back room",
    "across the square",
    "by the old toll house",
    "along the towpath",
    "in the shade of the elms",
    "outside the bakery",
    "at the foot of the stairs",
    "between the warehouses",
    "on the far shore",
    "above the stables",
    "in the hay loft",
    "opposite the theatre",
    "near the reservoir",
    "below the ramparts",
    "at the crossroads",
    "inside the boathouse",
    "around the fountain",
    "past the brickworks",
    "in the churchyard",
    "on the covered bridge",
    "within the walled garden",
    "at the railway halt",
    "off the main road",
    "on the common",
    "in the drying shed",
    "beyond the last farm",
];

const WHEN: [&str; 24] = [
    "before sunrise",
    "late in the afternoon",
    "during the thaw",
    "after the harvest",
    "on a windless evening",
    "in the middle of winter",
    "while the rain held off",
    "once the guests had gone",
    "at the end of the fair",
    "in early spring",
    "as the fog lifted",
    "without telling anyone",
    "for the third time",
    "on the eve of the feast",
    "when the tide turned",
    "in a great hurry",
    "as quietly as possible",
    "between two journeys",
    "long after midnight",
    "at the first frost",
    "under a pale moon",
    "during the long drought",
    "on market day",
    "by candlelight",
];

const WHY: [&str; 24] = [
    "because the road was closed",
    "to please a distant cousin",
    "although nobody had asked",
    "as custom required",
    "since the prices had fallen",
    "in the hope of better weather",
    "to settle an old quarrel",
    "for reasons of thrift",
    "so that the children could see it",
    "out of plain curiosity",
    "despite the warnings",
    "to keep a promise",
    "because the cellar was damp",
    "as the council had advised",
    "for want of anything better",
    "to win a small wager",
    "since the cart was broken",
    "to make room for the piano",
    "though it took most of the day",
    "by mistake",
    "in exchange for a favour",
    "to spare the horses",
    "as a matter of pride",
    "with some reluctance",
];

const REMARK: [&str; 24] = [
    "nobody thought it strange",
    "the neighbours talked about it for weeks",
    "it was cheaper than it looked",
    "the weather changed soon afterwards",
    "a dog barked somewhere in the distance",
    "most people had expected worse",
    "the accounts were never quite clear",
    "it smelled of tar and apples",
    "the rest of the week was uneventful",
    "a thin layer of dust covered everything",
    "there was soup and bread for everyone",
    "the dispute ended amicably",
    "even the mayor seemed satisfied",
    "the younger ones laughed",
    "it had always been done that way",
    "the light was already failing",
    "letters went unanswered that season",
    "the river stayed within its banks",
    "someone had left the window open",
    "the musicians arrived early",
    "all the chairs had to be moved",
    "the recipe was never written down",
    "a second opinion was not sought",
    "the paint took days to dry",
];

/// Appends one sentence with its full stop.
pub fn sentence(out: &mut String, draw: &mut Draw) {
    let start = out.len();
    let (who, did, what) = (*draw.pick(&WHO), *draw.pick(&DID), *draw.pick(&WHAT));
    let (place, when, why) = (*draw.pick(&WHERE), *draw.pick(&WHEN), *draw.pick(&WHY));
    let (other, did_too, what_too) = (*draw.pick(&WHO), *draw.pick(&DID), *draw.pick(&WHAT));
    let form = draw.below(7);
    let remark = *draw.pick(&REMARK);
    let parts: &[&str] = match form {
        0 => &[who, " ", did, " ", what, " ", place],
        1 => &[when, ", ", who, " ", did, " ", what],
        2 => &[who, " ", did, " ", what, " ", when, ", ", why],
        3 => &[place, ", ", who, " and ", other, " ", did, " ", what],
        4 => &[remark],
        5 => &[why, ", ", who, " ", did, " ", what, " ", place],
        _ => &[who, " ", did, " ", what, ", and ", other, " ", did_too, " ", what_too],
    };
    for part in parts {
        out.push_str(part);
    }
    out.push('.');
    // Every word above starts with an ASCII letter.
    let first = out[start..=start].to_ascii_uppercase();
    out.replace_range(start..=start, &first);
}

/// Prose of exactly `size` bytes, on one line. The last sentence is cut where the size is reached.
pub fn prose(size: usize, draw: &mut Draw) -> String {
    let mut text = String::with_capacity(size + 256);
    while text.len() < size {
        if !text.is_empty() {
            text.push(' ');
        }
        sentence(&mut text, draw);
    }
    text.truncate(size);
    text
}

/// Every word of the prose, in lower case; some occur more than once.
pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    let parts = WHO.iter().chain(&DID).chain(&WHAT).chain(&WHERE).chain(&WHEN).chain(&WHY).chain(&REMARK);
    parts.flat_map(|part| part.split(' '))
}

//! Patterns over file names, as the hub's own tools take them: `*` is any run of characters (slashes too), `?` one.

/// Whether a text is more than a name.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether a name fits a pattern. Linear in memory, at worst the product of the lengths in time.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut position) = (0, 0);
    // The last star, and up to where it has eaten.
    let mut star: Option<(usize, usize)> = None;
    while position < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, position));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[position] => {
                at += 1;
                position += 1;
            }
            _ => match &mut star {
                Some((back, eaten)) => {
                    *eaten += 1;
                    (at, position) = (*back + 1, *eaten);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|left| *left == '*')
}

/// The words by which files say which split they belong to.
pub const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval"]),
];

/// The words of a file's name: `data/train-00000-of-00002.parquet` has `data`, `train`, `of`, `parquet`.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

/// Whether a file's name says that it belongs to a split.
pub fn is_split(name: &str, split: &str) -> bool {
    let known = SPLITS.iter().find(|(_, names)| names.contains(&split));
    let parts = || name.split(['/', '-', '_', '.']);
    match known {
        Some((_, names)) => words(name).any(|word| names.contains(&word.to_ascii_lowercase().as_str())),
        None => parts().any(|part| part.eq_ignore_ascii_case(split)),
    }
}

/// The split that a file's name says, if it says one.
pub fn split_of(name: &str) -> Option<&'static str> {
    SPLITS.iter().map(|(split, _)| *split).find(|split| is_split(name, split))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_are_told_by_words() {
        assert!(is_split("data/train-00000-of-00002.parquet", "train") && is_split("dev.jsonl", "validation"));
        assert!(is_split("main/test_1.json", "test") && !is_split("latest.json", "test"));
        assert!(is_split("data/hard-1.json", "hard") && !is_split("data/harder.json", "hard"));
        assert_eq!((split_of("a/TEST.csv"), split_of("contest.csv")), (Some("test"), None));
    }

    proptest! {
        #[test]
        fn a_pattern_made_of_a_name_fits_it(name in "[a-c/]{0,12}", from in 0_usize..12, to in 0_usize..12) {
            let (from, to) = (from.min(name.len()), to.min(name.len()));
            if from <= to {
                let starred = format!("{}*{}", &name[..from], &name[to..]);
                prop_assert!(matches(&starred, &name));
                let marked = format!("{}{}{}", &name[..from], "?".repeat(to - from), &name[to..]);
                prop_assert!(matches(&marked, &name));
            }
            let more = format!("{name}d");
            prop_assert!(matches(&name, &name) && !matches(&more, &name));
        }
    }
}

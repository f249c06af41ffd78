//! Answers in words, and the units behind numbers.

/// Commands around words.
const WRAPPERS: [&str; 9] =
    [r"\textbf", r"\textit", r"\textrm", r"\textnormal", r"\text", r"\mbox", r"\mathrm", r"\operatorname", r"\mathbf"];

/// A text without the command around all of it: `\text{(C)}` is `(C)`.
pub(super) fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        for (open, close) in [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")] {
            if let Some(inside) = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close))
                && !inside.replace("\\$", "").contains('$')
            {
                text = inside.trim();
            }
        }
        for wrapper in WRAPPERS.iter().chain(&[r"\boxed", r"\fbox"]) {
            if let Some(rest) = text.strip_prefix(wrapper)
                && let Some(inside) = rest.trim_start().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
                && balanced(inside)
            {
                text = inside.trim();
            }
        }
        text = text
            .strip_suffix('.')
            .filter(|rest| !rest.ends_with(r"\right") && !rest.ends_with(r"\left"))
            .unwrap_or(text)
            .trim_end();
        if text.len() == before.len() {
            return text;
        }
    }
}

/// Whether every brace closes one that was opened.
fn balanced(text: &str) -> bool {
    let mut depth = 0_i64;
    for byte in text.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0
}

/// A text without wrappers, white space runs, points and case: what two answers in words are compared as. `None` where
/// there is anything but words, digits and the punctuation of words, or no word at all.
pub(super) fn plain(text: &str) -> Option<String> {
    if text.contains(r"\textcolor") {
        return None;
    }
    let mut open = text.to_owned();
    for wrapper in WRAPPERS {
        if open.contains(wrapper) {
            open = open.replace(wrapper, "");
        }
    }
    for space in [r"\ ", r"\,", r"\;", r"\!", r"\quad", "~", "$"] {
        if open.contains(space) {
            open = open.replace(space, if space == r"\!" { "" } else { " " });
        }
    }
    let inside = open.trim();
    // `(C)` and `C`, `{east}` and `east`.
    let inside = inside.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(inside);
    let mut words = String::with_capacity(inside.len());
    let mut letters = false;
    let mut run = 0;
    let mut following = inside.chars();
    while let Some(c) = following.next() {
        match c {
            // A decimal point is no full stop.
            '.' if words.ends_with(|c: char| c.is_ascii_digit())
                && following.as_str().starts_with(|c: char| c.is_ascii_digit()) =>
            {
                words.push(c);
            }
            '{' | '}' | '.' | '"' => {}
            c if c.is_alphabetic() => {
                run += 1;
                letters |= run >= 2;
                words.extend(c.to_lowercase());
            }
            c if c.is_ascii_digit() || matches!(c, ':' | '\'' | '-' | ',' | ' ' | '\n' | '\t') => {
                run = 0;
                let c = if c.is_whitespace() { ' ' } else { c };
                if c != ' ' || !(words.is_empty() || words.ends_with(' ')) {
                    words.push(c);
                }
            }
            _ => return None,
        }
    }
    letters.then(|| words.trim_end().to_owned())
}

/// Whether a text says something in words rather than in symbols: `east`, `Evelyn`, `MAKE`, `1:03 PM`, but neither `xy`
/// nor `sin x`.
pub(super) fn speaks(text: &str) -> bool {
    let Some(plain) = plain(text) else { return false };
    let wrapped = WRAPPERS.iter().any(|wrapper| text.contains(wrapper)) || unwrapped(text).len() < text.trim().len();
    let mut words = plain.split(|c: char| !c.is_alphabetic()).filter(|word| word.chars().count() >= 2).peekable();
    if words.peek().is_none() {
        return false;
    }
    let mut mathematical = words.clone();
    if mathematical.all(is_math) {
        return false;
    }
    // What starts with a digit and goes on in words is a number with its unit, but for times and dates.
    if plain.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == ',') {
        return plain.contains(':') || matches!(words.last(), Some("am" | "pm"));
    }
    let capitals = text.chars().filter(char::is_ascii_uppercase).count() >= 2;
    words.any(|word| {
        word.chars().count() >= 4
            || matches!(word, "odd" | "yes" | "no" | "all" | "one" | "two" | "six" | "ten" | "red")
    }) || (capitals && !plain.contains(','))
        || (wrapped && text.contains(r"\text") && !plain.contains(',') && plain.chars().count() >= 3)
}

/// What a phrase says that a sign says as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phrase {
    /// `no solution`: the empty set.
    Nothing,
    /// `all real numbers`
    Reals,
    /// `ten`
    Number(i64),
}

/// The phrase that a text is.
pub(super) fn phrase(text: &str) -> Option<Phrase> {
    let plain = plain(text)?;
    Some(match plain.strip_prefix("the ").unwrap_or(&plain) {
        "no solution" | "no solutions" | "no real solution" | "no real solutions" | "empty set" | "none" => {
            Phrase::Nothing
        }
        "all real numbers" | "all reals" | "real numbers" | "set of all real numbers" | "set of real numbers" => {
            Phrase::Reals
        }
        words => Phrase::Number(spelled(words)?),
    })
}

const DIGITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// The whole number that a text in small letters spells and nothing else: `ten`, `forty-two`, `one hundred and five`,
/// `minus three`.
pub(super) fn spelled(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, text) = match text.strip_prefix("minus ").or_else(|| text.strip_prefix("negative ")) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut words = text.split([' ', '-']).filter(|word| !word.is_empty()).peekable();
    let (mut total, mut bound) = (0_i64, i64::MAX);
    while words.peek().is_some() {
        // A group below a thousand, then how many of what it counts.
        let mut group = below_hundred(&mut words);
        if group.is_some_and(|group| (1..=9).contains(&group)) && words.next_if_eq(&"hundred").is_some() {
            let tail = words.clone();
            let and = words.next_if_eq(&"and").is_some();
            let rest = below_hundred(&mut words).filter(|rest| *rest > 0);
            if and && rest.is_none() {
                words = tail;
            }
            group = group.map(|group| 100 * group + rest.unwrap_or_default());
        }
        let group = group?;
        let scale = match words.peek() {
            Some(&"thousand") => 1000,
            Some(&"million") => 1_000_000,
            Some(&"billion") => 1_000_000_000,
            Some(&"trillion") => 1_000_000_000_000,
            _ => 1,
        };
        // `zero` stands alone, and what is counted only falls: `two thousand three thousand` is nothing.
        if scale >= bound || group == 0 && (scale > 1 || bound < i64::MAX || words.peek().is_some()) {
            return None;
        }
        total += group * scale;
        bound = scale;
        if scale == 1 {
            break;
        }
        words.next();
        if words.next_if_eq(&"and").is_some() && words.peek().is_none() {
            return None;
        }
    }
    let read = bound < i64::MAX && words.next().is_none();
    read.then_some(if negative { -total } else { total })
}

/// `seven`, `seventeen`, `seventy`, `seventy seven`
fn below_hundred<'t>(words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> Option<i64> {
    let word = *words.peek()?;
    if let Some(value) = DIGITS.iter().position(|name| *name == word) {
        words.next();
        return Some(value as i64);
    }
    let tens = 10 * (2 + TENS.iter().position(|name| *name == word)? as i64);
    words.next();
    let ones = words.peek().and_then(|word| DIGITS[1..10].iter().position(|name| name == word));
    if ones.is_some() {
        words.next();
    }
    Some(tens + ones.map_or(0, |ones| ones as i64 + 1))
}

/// The letter of a choice, and whether the text says that it is one: `(B)`, `B)`, `\text{B}`, `Option B`, but of `b` and
/// `B` only the letter.
pub(super) fn choice(text: &str) -> Option<(char, bool)> {
    let mut inside = text.trim();
    let mut said = false;
    loop {
        let before = inside.len();
        for wrapper in WRAPPERS {
            if let Some(rest) = inside.strip_prefix(wrapper) {
                inside = rest.trim_start();
                said = true;
            }
        }
        for word in ["Option", "option", "Choice", "choice"] {
            if let Some(rest) = inside.strip_prefix(word).filter(|rest| rest.starts_with([' ', '~', '(', '{'])) {
                inside = rest.trim_start_matches([' ', '~']);
                said = true;
            }
        }
        said |= inside.starts_with('(') || inside.ends_with(')');
        inside = inside.strip_prefix(['{', '(']).unwrap_or(inside).trim_start();
        inside = inside.strip_suffix(['}', ')', '.']).unwrap_or(inside).trim_end();
        if inside.len() == before {
            break;
        }
    }
    let mut letters = inside.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) if letter.is_ascii_alphabetic() && letter.to_ascii_uppercase() <= 'H' => {
            Some((letter.to_ascii_uppercase(), said))
        }
        _ => None,
    }
}

fn is_math(word: &str) -> bool {
    super::ast::Function::named(word).is_some()
        || matches!(word, "pi" | "usd" | "sqrt" | "inf" | "infinity" | "oo" | "and" | "or" | "frac")
        || starts_with_function(word)
}

/// `sinx`
pub(super) fn starts_with_function(word: &str) -> bool {
    ["sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "pi"]
        .iter()
        .any(|name| word.strip_prefix(name).is_some_and(|rest| rest.len() <= 1))
}

/// The one name of a unit that is written in several ways, and `None` for words that say only what is counted.
pub(super) fn unit(word: &str) -> Option<&'static str> {
    let word = word.trim().trim_end_matches('.').to_lowercase().replace('.', "");
    let known: &[(&str, &[&str])] = &[
        ("cm", &["cm", "centimeter", "centimeters", "centimetre", "centimetres"]),
        ("mm", &["mm", "millimeter", "millimeters"]),
        ("km", &["km", "kilometer", "kilometers", "kilometre", "kilometres"]),
        ("m", &["m", "meter", "meters", "metre", "metres"]),
        ("in", &["in", "inch", "inches"]),
        ("ft", &["ft", "foot", "feet"]),
        ("yd", &["yd", "yard", "yards"]),
        ("mi", &["mi", "mile", "miles"]),
        ("mph", &["mph", "miles per hour"]),
        ("s", &["s", "sec", "second", "seconds"]),
        ("min", &["min", "minute", "minutes"]),
        ("h", &["h", "hr", "hrs", "hour", "hours"]),
        ("day", &["day", "days"]),
        ("week", &["week", "weeks"]),
        ("year", &["year", "years"]),
        ("g", &["g", "gm", "gram", "grams"]),
        ("kg", &["kg", "kilogram", "kilograms"]),
        ("lb", &["lb", "lbs", "pound", "pounds"]),
        ("oz", &["oz", "ounce", "ounces"]),
        ("dollar", &["dollar", "dollars", "usd"]),
        ("euro", &["euro", "euros", "eur"]),
        ("yen", &["yen", "jpy"]),
        ("rupee", &["rupee", "rupees", "inr"]),
        ("cent", &["cent", "cents"]),
        ("am", &["am"]),
        ("pm", &["pm"]),
        ("liter", &["liter", "liters", "litre", "litres"]),
    ];
    known.iter().find(|(_, spellings)| spellings.contains(&word.as_str())).map(|(name, _)| *name)
}

/// Whether a bare word behind a number is what is counted, not a product of letters.
pub(super) fn counted(word: &str) -> bool {
    (word.len() >= 2 && unit(word).is_some())
        || matches!(word, "degree" | "degrees" | "deg" | "percent" | "square" | "cubic" | "sq" | "cu")
        || (word.len() >= 4 && word.chars().all(|c| c.is_ascii_lowercase()) && !is_math(word))
}

/// The number words that a text behind a number starts with, as one factor, and the rest: `hundred thousand dollars` is
/// 100,000 and `dollars`.
pub(crate) fn multiplied(text: &str) -> (u128, &str) {
    let (mut factor, mut rest) = (1_u128, text.trim());
    loop {
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let word = rest[..end].to_ascii_lowercase();
        let size: u128 = match word.strip_suffix('s').unwrap_or(&word) {
            "dozen" => 12,
            "score" => 20,
            "gross" | "gros" => 144,
            "lakh" => 100_000,
            "crore" => 10_000_000,
            "quadrillion" => 1_000_000_000_000_000,
            "quintillion" => 1_000_000_000_000_000_000,
            "hundred" => 100,
            "thousand" => 1000,
            "million" => 1_000_000,
            "billion" => 1_000_000_000,
            "trillion" => 1_000_000_000_000,
            _ => return (factor, rest),
        };
        let Some(larger) = factor.checked_mul(size) else { return (factor, rest) };
        factor = larger;
        rest = rest[end..].trim_start_matches([' ', '.']);
    }
}

/// Words behind a number that make another value of it, or none.
const CHANGING: [&str; 70] = [
    "or",
    "not",
    "no",
    "isn't",
    "never",
    "wrong",
    "false",
    "incorrect",
    "least",
    "most",
    "between",
    "plus",
    "minus",
    "negative",
    "about",
    "around",
    "roughly",
    "nearly",
    "almost",
    "approximately",
    "approx",
    "factorial",
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "twenty",
    "dozen",
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
    "k",
    "couple",
    "double",
    "twice",
    "triple",
    "inverse",
    "reciprocal",
    "root",
    "sqrt",
    "opposite",
    "hex",
    "hexadecimal",
    "octal",
    "binary",
    "rounded",
    "either",
    "half",
    "halves",
    "hundreds",
    "thousands",
    "millions",
    "billions",
    "trillions",
    "dozens",
    "except",
    "without",
    "modulo",
    "mod",
];

/// Words that compare a number with another: `18 more than` states 18 where a difference was asked for.
const COMPARING: [&str; 13] = [
    "less", "more", "fewer", "greater", "smaller", "larger", "higher", "lower", "than", "above", "below", "over",
    "under",
];

/// Fractions by name; a second is a unit of time, a quarter a coin.
const FRACTIONS: [&str; 16] = [
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "twentieth",
    "hundredth",
    "thousandth",
    "millionth",
    "billionth",
    "trillionth",
];

/// Whether words behind a number say more than what is counted: `or more`, `tenths`, `is wrong`. `squared` does where
/// it stands first: 25 `cm squared` is an area.
pub(super) fn changes(text: &str) -> bool {
    let text = text.to_lowercase();
    words_of(&text).any(|word| COMPARING.contains(&word) || word == "beyond" || spelled(word).is_some())
        || alters(&text)
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphabetic() || matches!(c, '-' | '\''))).filter(|word| !word.is_empty())
}

/// [`changes`] in a sentence, where a comparison may be what was asked for.
pub(crate) fn alters(text: &str) -> bool {
    let text = text.to_lowercase();
    words_of(&text).enumerate().any(|(at, word)| {
        let fraction = |word: &str| FRACTIONS.contains(&word.strip_suffix('s').unwrap_or(word));
        CHANGING.contains(&word) || word.split('-').any(fraction) || (at == 0 && matches!(word, "squared" | "cubed"))
    })
}

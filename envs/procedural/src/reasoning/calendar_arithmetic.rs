//! `calendar_arithmetic`: weekdays, dates and counts of days in the proleptic Gregorian calendar.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::calendar::{Day, LAST, MONTHS, WEEKDAYS, is_leap, month_days};
use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, integer};
use crate::draw::Draw;

pub(crate) struct CalendarArithmetic;

/// What is asked. Dates are `YYYY-MM-DD`, weekdays English names; ranges include both ends but for `days_between`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Facts {
    /// The weekday so many days after a date (before it, where negative).
    Weekday { date: String, days: i64 },
    /// The weekday of a day of a year whose first day is told.
    WeekdayInYear { first: String, leap: bool, month: i64, day: i64 },
    /// The date so many days after a date.
    Date { date: String, days: i64 },
    /// Days from one date to another.
    DaysBetween { from: String, to: String },
    /// How often a weekday occurs.
    CountWeekday { from: String, to: String, weekday: String },
    /// How many days from Monday to Friday there are.
    BusinessDays { from: String, to: String },
    /// The day of the month of an ordinal weekday, -1 where there is none; `ordinal` 1 to 5, or -1 for the last.
    NthWeekday { year: i64, month: i64, ordinal: i64, weekday: String },
    /// How many years from one to another are leap years.
    LeapYears { from: i64, to: i64 },
    /// Whether a year is a leap year.
    LeapYear { year: i64 },
}

/// A right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    Weekday(usize),
    Date(Day),
    Number(i64),
    Yes(bool),
}

fn date(key: &str, text: &str) -> Result<Day, String> {
    Day::parse(text).ok_or_else(|| format!("`{key}` must be a date such as 2024-02-29, got `{text}`"))
}

fn weekday(text: &str) -> Result<usize, String> {
    WEEKDAYS
        .iter()
        .position(|name| *name == text)
        .ok_or_else(|| format!("`weekday` must be one such as Monday, got `{text}`"))
}

/// How many of the days from `from` to `to` fall on a weekday.
fn occurrences(from: Day, to: Day, weekday: usize) -> i64 {
    // Days 1, 8, 15... are Mondays: so many days up to `day` fall on the weekday.
    let up_to = |day: i64| (day + 6 - weekday as i64) / 7;
    up_to(to.0) - up_to(from.0 - 1)
}

fn leap_years(from: i64, to: i64) -> i64 {
    let up_to = |year: i64| year / 4 - year / 100 + year / 400;
    up_to(to) - up_to(from - 1)
}

impl Facts {
    fn truth(&self) -> Result<Truth, String> {
        let range = |from: &str, to: &str| {
            let (from, to) = (date("from", from)?, date("to", to)?);
            if from > to { Err(format!("`from` must not be after `to`, got {from} and {to}")) } else { Ok((from, to)) }
        };
        let years = |years: &[i64]| match years.iter().find(|year| !(1..=9999).contains(*year)) {
            Some(year) => Err(format!("years must be from 1 to 9999, got {year}")),
            None => Ok(()),
        };
        let later = |start: &str, days: i64| {
            date("date", start)?.after(days).ok_or_else(|| format!("`days` {days} lead out of the calendar"))
        };
        Ok(match self {
            Self::Weekday { date, days } => Truth::Weekday(later(date, *days)?.weekday()),
            Self::WeekdayInYear { first, leap, month, day } => {
                let year = if *leap { 2024 } else { 2023 };
                let day = Day::new(year, *month, *day).ok_or("there is no such day")?;
                let start = Day::new(year, 1, 1).ok_or("there is no such day")?;
                Truth::Weekday((weekday(first)? + (day.0 - start.0) as usize) % 7)
            }
            Self::Date { date, days } => Truth::Date(later(date, *days)?),
            Self::DaysBetween { from, to } => range(from, to).map(|(from, to)| Truth::Number(to.0 - from.0))?,
            Self::CountWeekday { from, to, weekday: name } => {
                let (from, to) = range(from, to)?;
                Truth::Number(occurrences(from, to, weekday(name)?))
            }
            Self::BusinessDays { from, to } => {
                let (from, to) = range(from, to)?;
                Truth::Number((0..5).map(|weekday| occurrences(from, to, weekday)).sum())
            }
            Self::NthWeekday { year, month, ordinal, weekday: name } => {
                years(&[*year])?;
                let first = Day::new(*year, *month, 1).ok_or("`month` must be from 1 to 12")?;
                let length = month_days(*year, *month);
                let offset = (weekday(name)? as i64 - first.weekday() as i64).rem_euclid(7);
                let day = match ordinal {
                    1..=5 => 1 + offset + 7 * (ordinal - 1),
                    -1 => 1 + offset + 7 * ((length - 1 - offset) / 7),
                    other => return Err(format!("`ordinal` must be 1 to 5 or -1, got {other}")),
                };
                Truth::Number(if day > length { -1 } else { day })
            }
            Self::LeapYears { from, to } => {
                years(&[*from, *to])?;
                Truth::Number(leap_years(*from, *to))
            }
            Self::LeapYear { year } => {
                years(&[*year])?;
                Truth::Yes(is_leap(*year))
            }
        })
    }

    fn question(&self) -> String {
        let long = |text: &str| Day::parse(text).map(in_words).unwrap_or_default();
        match self {
            Self::Weekday { date, days: 0 } => format!("Which day of the week is {}?", long(date)),
            Self::Weekday { date, days } if *days < 0 => {
                format!("Which day of the week is it {} days before {}?", -days, long(date))
            }
            Self::Weekday { date, days } => format!("Which day of the week is it {days} days after {}?", long(date)),
            Self::WeekdayInYear { first, leap, month, day } => format!(
                "A {} begins on a {first}. Which day of the week is {} {day} of that year?",
                if *leap { "leap year" } else { "year that is no leap year" },
                MONTHS[(*month - 1) as usize % 12]
            ),
            Self::Date { date, days } if *days < 0 => {
                format!("Which date is {} days before {}? Answer in the form YYYY-MM-DD.", -days, long(date))
            }
            Self::Date { date, days } => {
                format!("Which date is {days} days after {}? Answer in the form YYYY-MM-DD.", long(date))
            }
            Self::DaysBetween { from, to } => format!("How many days after {} is {}?", long(from), long(to)),
            Self::CountWeekday { from, to, weekday } => {
                format!("How many {weekday}s are there from {} to {}, both included?", long(from), long(to))
            }
            Self::BusinessDays { from, to } => format!(
                "How many days from Monday to Friday are there from {} to {}, both included?",
                long(from),
                long(to)
            ),
            Self::NthWeekday { year, month, ordinal, weekday } => format!(
                "On which day of the month does the {} {weekday} of {} {year} fall? Answer -1 if there is none.",
                match ordinal {
                    1 => "first",
                    2 => "second",
                    3 => "third",
                    4 => "fourth",
                    5 => "fifth",
                    _ => "last",
                },
                MONTHS[(*month - 1) as usize % 12]
            ),
            Self::LeapYears { from, to } => {
                format!("How many leap years are there from the year {from} to the year {to}, both included?")
            }
            Self::LeapYear { year } => format!("Is the year {year} a leap year? Answer yes or no."),
        }
    }
}

/// `March 5, 2024`
fn in_words(day: Day) -> String {
    let (year, month, day) = day.date();
    format!("{} {day}, {year}", MONTHS[(month - 1) as usize % 12])
}

impl Generator for CalendarArithmetic {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let (low, high) = level.of([(2000, 2030), (1900, 2100), (1600, 2400), (1000, 3000), (1, 9999)]);
        let span = level.of([30, 400, 4_000, 40_000, 400_000]);
        let bound = |year: i64, month: i64, day: i64| Day::new(year, month, day).map_or(1, |day| day.0);
        let (earliest, latest) = (bound(low, 1, 1), bound(high, 12, 31).min(LAST));
        let start = draw.between(earliest, latest);
        // A second day within the span and the years.
        let shift = draw.between(1, span);
        let other = if draw.below(2) == 0 { start + shift } else { start - shift }.clamp(earliest, latest);
        let text = |day: i64| Day(day).to_string();
        let (from, to) = (text(start.min(other)), text(start.max(other)));
        let weekday = (*draw.pick(&WEEKDAYS)).to_owned();
        let (year, month) = (draw.between(low, high), draw.between(1, 12));
        let facts = match draw.below(8) {
            0 => Facts::Weekday { date: text(start), days: 0 },
            1 => Facts::Weekday { date: text(start), days: other - start },
            2 => {
                let leap = draw.below(2) == 0;
                let day = draw.between(1, month_days(if leap { 2024 } else { 2023 }, month));
                Facts::WeekdayInYear { first: weekday, leap, month, day }
            }
            3 => Facts::Date { date: text(start), days: other - start },
            4 => Facts::DaysBetween { from, to },
            5 => Facts::CountWeekday { from, to, weekday },
            6 => Facts::BusinessDays { from, to },
            _ if draw.below(2) == 0 => Facts::LeapYears { from: year, to: draw.between(year, high) },
            _ => Facts::NthWeekday { year, month, ordinal: *draw.pick(&[1, 2, 3, 4, 5, -1]), weekday },
        };
        let answer: Value = match facts.truth() {
            Ok(Truth::Weekday(index)) => json!(WEEKDAYS[index % 7]),
            Ok(Truth::Date(day)) => json!(day.to_string()),
            Ok(Truth::Number(number)) => json!(number),
            Ok(Truth::Yes(yes)) => json!(if yes { "yes" } else { "no" }),
            Err(_) => Value::Null,
        };
        Draft { question: facts.question(), answer, facts }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let truth = facts.truth()?;
        let Some(line) = answer.line() else { return Ok(Score::WRONG) };
        Ok(Score::of(match truth {
            Truth::Weekday(index) => read_name(line, &WEEKDAYS) == Some(index),
            Truth::Date(day) => read_date(line) == Some(day),
            Truth::Number(number) => integer(line) == Some(number),
            Truth::Yes(yes) => line.eq_ignore_ascii_case(if yes { "yes" } else { "no" }),
        }))
    }
}

/// The place of a name or its first three letters, whatever their case.
fn read_name(text: &str, names: &[&str]) -> Option<usize> {
    names.iter().position(|name| {
        text.eq_ignore_ascii_case(name) || name.get(..3).is_some_and(|short| text.eq_ignore_ascii_case(short))
    })
}

/// Reads `2024-03-05`, `March 5, 2024` and `5 March 2024`.
fn read_date(text: &str) -> Option<Day> {
    if let Some(day) = Day::parse(text) {
        return Some(day);
    }
    let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [first, second, year] = words[..] else { return None };
    let (month, day) = match read_name(first, &MONTHS) {
        Some(month) => (month, second),
        None => (read_name(second, &MONTHS)?, first),
    };
    let number = |text: &str| text.parse::<u16>().ok().map(i64::from);
    Day::new(number(year)?, month as i64 + 1, number(day)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_weekdays_are_read_in_many_forms() {
        let day = Day::new(2024, 3, 5);
        for text in ["2024-03-05", "2024-3-5", "March 5, 2024", "5 Mar 2024", "5 march 2024"] {
            assert_eq!(read_date(text), day, "{text}");
        }
        for text in ["03/05/2024", "2024-05", "March 2024", "5 5 2024", "+5 March 2024x"] {
            assert_eq!(read_date(text), None, "{text}");
        }
        assert_eq!(read_name("wed", &WEEKDAYS), Some(2));
        assert_eq!(read_name("Wednes", &WEEKDAYS), None);
    }

    /// The closed forms against counting day by day and year by year.
    #[test]
    fn counts_are_those_of_counting() {
        for from in [1, 2, 700_000, 730_123, LAST - 50] {
            for length in 0..50 {
                for weekday in 0..WEEKDAYS.len() {
                    let counted = (from..=from + length).filter(|day| Day(*day).weekday() == weekday).count();
                    assert_eq!(occurrences(Day(from), Day(from + length), weekday), counted as i64);
                }
            }
        }
        for (from, to) in [(1, 9999), (4, 4), (1896, 1904), (1999, 2000), (2001, 2003)] {
            assert_eq!(leap_years(from, to), (from..=to).filter(|year| is_leap(*year)).count() as i64);
        }
    }

    #[test]
    fn ordinal_weekdays_are_those_of_counting() {
        for year in [1999, 2000, 2023, 2024] {
            for month in 1..=12 {
                for (weekday, name) in WEEKDAYS.iter().enumerate() {
                    let days: Vec<i64> = (1..=month_days(year, month))
                        .filter(|day| Day::new(year, month, *day).is_some_and(|day| day.weekday() == weekday))
                        .collect();
                    for ordinal in [1, 2, 3, 4, 5, -1] {
                        let facts = Facts::NthWeekday { year, month, ordinal, weekday: (*name).to_owned() };
                        let counted = if ordinal == -1 { days.last() } else { days.get(ordinal as usize - 1) };
                        assert_eq!(facts.truth(), Ok(Truth::Number(counted.copied().unwrap_or(-1))));
                    }
                }
            }
        }
    }
}

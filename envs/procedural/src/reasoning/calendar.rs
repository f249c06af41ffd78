//! The proleptic Gregorian calendar, exactly, for the years 1 to 9999.

use std::fmt;

/// English names, Monday first.
pub(crate) const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// English names, January first.
pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The last day that has a date.
pub(crate) const LAST: i64 = 3_652_059;

/// A day by its number: 0001-01-01, a Monday, is day 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Day(pub(crate) i64);

/// Whether a year has 366 days.
pub(crate) fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days of a month, 1 to 12.
pub(crate) fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days before a year.
fn before_year(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400
}

impl Day {
    /// The day of a date; none where there is no such date.
    pub(crate) fn new(year: i64, month: i64, day: i64) -> Option<Self> {
        let exists =
            (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=month_days(year, month)).contains(&day);
        exists.then(|| Self(before_year(year) + (1..month).map(|month| month_days(year, month)).sum::<i64>() + day))
    }

    /// Reads `2024-02-29`; leading zeros may be left out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| {
            let digits = !part.is_empty() && part.len() <= 4 && part.bytes().all(|digit| digit.is_ascii_digit());
            digits.then(|| part.parse::<i64>().ok()).flatten()
        });
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() { None } else { Self::new(year, month, day) }
    }

    /// Year, month and day of the month.
    pub(crate) fn date(self) -> (i64, i64, i64) {
        // A guess that is never too late, and at most a year or two too early.
        let mut year = (self.0 * 400 / 146_097).max(1);
        while before_year(year + 1) < self.0 {
            year += 1;
        }
        while before_year(year) >= self.0 {
            year -= 1;
        }
        let mut left = self.0 - before_year(year);
        let mut month = 1;
        while left > month_days(year, month) {
            left -= month_days(year, month);
            month += 1;
        }
        (year, month, left)
    }

    /// 0 for Monday to 6 for Sunday.
    pub(crate) fn weekday(self) -> usize {
        (self.0 - 1).rem_euclid(7) as usize
    }

    /// The day so many days later.
    pub(crate) fn after(self, days: i64) -> Option<Self> {
        let day = self.0.checked_add(days)?;
        (1..=LAST).contains(&day).then_some(Self(day))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every day from the first to the last, counted one by one.
    #[test]
    fn every_day_has_its_date_and_its_weekday() {
        let (mut year, mut month, mut day, mut weekday) = (1, 1, 1, 0);
        for number in 1..=LAST {
            let date = Day(number);
            assert_eq!((date.date(), date.weekday()), ((year, month, day), weekday));
            assert_eq!(Day::new(year, month, day), Some(date));
            weekday = (weekday + 1) % 7;
            day += 1;
            let length = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            if day > length + i64::from(month == 2 && leap) {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        assert_eq!((year, month, day), (10_000, 1, 1));
    }

    #[test]
    fn dates_are_read_and_written() {
        for text in ["2024-02-29", "0001-01-01", "9999-12-31", "1582-10-10"] {
            assert_eq!(Day::parse(text).unwrap().to_string(), text);
        }
        // A Saturday, and the day of the first landing on the moon.
        assert_eq!(WEEKDAYS[Day::parse("2000-1-1").unwrap().weekday()], "Saturday");
        assert_eq!(WEEKDAYS[Day::parse("1969-07-20").unwrap().weekday()], "Sunday");
        for text in ["2023-02-29", "2024-13-01", "2024-00-10", "10000-01-01", "2024-1", "2024-1-1-1", "-5-1-1", "a-b-c"]
        {
            assert_eq!(Day::parse(text), None, "{text}");
        }
    }
}

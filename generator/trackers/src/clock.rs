//! The time and the name of this machine, as the formats want them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// `YYYYMMDD_HHMMSS`, in UTC.
pub(crate) fn stamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}_{hour:02}{minute:02}{second:02}")
}

/// Year, month and day of a day since 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`): years begin in March, so that the day that may be missing is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The name of this machine, of letters, digits, `-` and `.` only, so that it can be part of a file name.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_before_and_after_leap_days_have_their_dates() {
        let dates = [
            (0, "19700101_000000"),
            (951_782_399, "20000228_235959"),
            (951_782_400, "20000229_000000"),
            (951_868_800, "20000301_000000"),
            (1_796_096_085, "20261201_033445"),
            (4_107_542_399, "21000228_235959"),
            (4_107_542_400, "21000301_000000"),
        ];
        for (seconds, expected) in dates {
            assert_eq!(stamp(Duration::from_secs(seconds)), expected);
        }
    }
}

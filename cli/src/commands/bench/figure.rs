//! A figure, the table for people, the lines for programs.

use owo_colors::OwoColorize as _;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, outln};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

/// One measured number and what it must reach.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// Its name, stable across versions.
    pub(crate) figure: &'static str,
    /// What was measured.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// What it must reach.
    pub(crate) must: f64,
    /// Which way is better.
    pub(crate) better: Better,
}

impl Figure {
    fn holds(&self) -> bool {
        match self.better {
            Better::Lower => self.value <= self.must,
            Better::Higher => self.value >= self.must,
        }
    }
}

/// Shows figures as they are measured.
pub(crate) struct Report {
    json: bool,
    only: Option<String>,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(json: bool, only: Option<String>) -> Self {
        Self { json, only, figures: Vec::new() }
    }

    /// Whether a figure of this name is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Shows one figure.
    pub(crate) fn add(&mut self, figure: Figure) -> Result<(), Failure> {
        if self.json {
            outln!("{}", serde_json::to_string(&figure).unwrap_or_default())?;
        } else {
            if self.figures.is_empty() {
                outln!("{:26} {:>12}  {:10} {:>12}", "figure", "measured", "unit", "must reach")?;
            }
            let sign = if figure.better == Better::Lower { "<=" } else { ">=" };
            let mark = if figure.holds() { "ok".green().to_string() } else { "missed".red().to_string() };
            outln!(
                "{:26} {:>12}  {:10} {sign} {:>9}  {mark}",
                figure.figure,
                number(figure.value),
                figure.unit,
                number(figure.must),
            )?;
        }
        output::flush()?;
        self.figures.push(figure);
        Ok(())
    }

    /// Says which figures missed.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        if let (true, Some(only)) = (self.figures.is_empty(), self.only) {
            return Err(Failure::Usage {
                what: "`--only`".to_owned(),
                expected: "a part of a figure's name".to_owned(),
                got: format!("`{only}`, which is in none"),
            });
        }
        let missed: Vec<_> = self.figures.iter().filter(|figure| !figure.holds()).map(|figure| figure.figure).collect();
        if missed.is_empty() { Ok(()) } else { Err(Failure::Missed(format!("missed: {}", missed.join(", ")))) }
    }
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The middle of what was measured; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}

//! Curves of runs, as SVG: held-out reward by training step.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::Failure;

/// What is drawn.
const METRIC: &str = "eval/all/avg_score";

const COLOURS: [&str; 4] = ["#1b6ca8", "#c4501b", "#3a7d44", "#7a4fa3"];
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (56.0, 24.0, 24.0, 48.0);

/// The points of a file of metrics: step and value.
fn points(file: &Path) -> Result<Vec<(f64, f64)>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    let mut points = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let row: Value = serde_json::from_str(line)
            .map_err(|error| format!("`{}`: line {}: {error}", file.display(), number + 1))?;
        if let (Some(step), Some(value)) = (row["step"].as_f64(), row[METRIC].as_f64()) {
            points.push((step, value));
        }
    }
    if points.is_empty() {
        return Err(format!("`{}` has no `{METRIC}`", file.display()).into());
    }
    Ok(points)
}

/// Draws curves given as `NAME=FILE`.
pub fn write(out: &Path, curves: &[String]) -> Result<(), Failure> {
    let mut by_name: BTreeMap<&str, Vec<Vec<(f64, f64)>>> = BTreeMap::new();
    for curve in curves {
        let (name, file) = curve.split_once('=').ok_or_else(|| format!("expected NAME=FILE, got `{curve}`"))?;
        by_name.entry(name).or_default().push(points(Path::new(file))?);
    }
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot create `{}`: {error}", folder.display()))?;
    }
    std::fs::write(out, picture(&by_name)?).map_err(|error| format!("cannot write `{}`: {error}", out.display()))?;
    Ok(())
}

fn picture(curves: &BTreeMap<&str, Vec<Vec<(f64, f64)>>>) -> Result<String, std::fmt::Error> {
    let last = curves.values().flatten().flatten().map(|(step, _)| *step).fold(1.0, f64::max);
    let (left, top, right, bottom) = MARGIN;
    let x = |step: f64| left + step / last * (WIDTH - left - right);
    let y = |value: f64| HEIGHT - bottom - value * (HEIGHT - top - bottom);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for tenth in (0..=10).step_by(2) {
        let value = f64::from(tenth) / 10.0;
        writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/><text x=\"{2:.1}\" \
             y=\"{3:.1}\" text-anchor=\"end\">{value:.1}</text>",
            WIDTH - right,
            y(value),
            left - 8.0,
            y(value) + 4.0,
        )?;
    }
    let mut steps: Vec<f64> = (0..=4).map(|part| (last * f64::from(part) / 4.0).round()).collect();
    steps.dedup();
    for step in steps {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>",
            x(step),
            HEIGHT - bottom + 18.0
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">training step</text>",
        (left + WIDTH - right) / 2.0,
        HEIGHT - 10.0
    )?;
    writeln!(
        svg,
        "<text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">mean reward, held-out</text>",
        (top + HEIGHT - bottom) / 2.0
    )?;
    for (place, (name, runs)) in curves.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        for run in runs {
            let line: Vec<String> =
                run.iter().map(|(step, value)| format!("{:.1},{:.1}", x(*step), y(*value))).collect();
            writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                line.join(" ")
            )?;
        }
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            left + 12.0,
            top + 14.0 + 16.0 * place as f64
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

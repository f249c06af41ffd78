//! Steps on a console, for people.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Numbers, Tracker, TrackerError};

/// How a step looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One line: `step 3  policy/loss=0.0312  timing/step=1.5000`.
    Line,
    /// A heading, and a line a number, values aligned.
    Block,
}

/// What a console shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsoleOptions {
    /// `None` shows blocks on a terminal and lines elsewhere.
    pub layout: Option<Layout>,
    /// Shows only numbers whose names start with one of these; all if there are none.
    pub prefixes: Vec<String>,
}

/// The longest text that is shown, in characters; longer ones lose their end.
const LONGEST_TEXT: usize = 4000;
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Writes steps for people.
pub struct Console<W> {
    out: W,
    layout: Layout,
    prefixes: Vec<String>,
    colour: bool,
}

impl Console<io::Stdout> {
    /// On stdout, with colours where it is a terminal that wants them.
    pub fn stdout(options: ConsoleOptions) -> Self {
        let out = io::stdout();
        let usual = if out.is_terminal() { Layout::Block } else { Layout::Line };
        let colour = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
        Self { layout: options.layout.unwrap_or(usual), prefixes: options.prefixes, colour, out }
    }
}

impl<W: Write + Send> Console<W> {
    /// On `out`, in lines unless a layout is given, without colours.
    pub fn new(out: W, options: ConsoleOptions) -> Self {
        Self { out, layout: options.layout.unwrap_or(Layout::Line), prefixes: options.prefixes, colour: false }
    }

    /// With colours, or without.
    #[must_use]
    pub fn with_colour(self, colour: bool) -> Self {
        Self { colour, ..self }
    }

    fn style(&self, code: &'static str) -> (&'static str, &'static str) {
        if self.colour { (code, PLAIN) } else { ("", "") }
    }

    fn write(&mut self, text: &str) -> Result<(), TrackerError> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(TrackerError::io(Path::new("the console"), "write to it"))
    }
}

impl<W: Write + Send> Tracker for Console<W> {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        let wanted = |name: &str| {
            self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
        };
        let shown: Vec<(String, String)> = numbers
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, value)| (printable(name), short(*value)))
            .collect();
        let ((bold, plain), (dim, _)) = (self.style(BOLD), self.style(DIM));
        let mut text = format!("{bold}step {step}{plain}");
        match self.layout {
            Layout::Line => {
                for (name, value) in &shown {
                    let _ = write!(text, "  {dim}{name}={plain}{value}");
                }
            }
            Layout::Block => {
                let width = |of: fn(&(String, String)) -> &String| {
                    shown.iter().map(|pair| of(pair).chars().count()).max().unwrap_or_default()
                };
                let (names, values) = (width(|pair| &pair.0), width(|pair| &pair.1));
                for (name, value) in &shown {
                    let _ = write!(text, "\n  {dim}{name:names$}{plain}  {value:>values$}");
                }
            }
        }
        text.push('\n');
        self.write(&text)
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        let ((bold, plain), (dim, _)) = (self.style(BOLD), self.style(DIM));
        let mut shown = format!("{bold}step {step}{plain}  {dim}{}:{plain}\n", printable(name));
        let kept: String = text.chars().take(LONGEST_TEXT).collect();
        for line in kept.lines() {
            let _ = writeln!(shown, "  {}", printable(line));
        }
        if kept.len() < text.len() {
            let _ = writeln!(shown, "  ... {} more bytes", text.len() - kept.len());
        }
        self.write(&shown)
    }

    fn finish(&mut self, _exit_code: i32) -> Result<(), TrackerError> {
        self.out.flush().map_err(TrackerError::io(Path::new("the console"), "write to it"))
    }
}

/// Four decimals or four significant digits, whole numbers whole.
fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{value}");
    }
    if !value.is_finite() || (1e-3..1e6).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Without characters that could steer a terminal: names and texts may come from environments and models.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\t' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

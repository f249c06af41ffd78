//! What every backend does.

use std::collections::BTreeMap;

use crate::TrackerError;

/// Numbers by name, such as `policy/loss` or `timing/step`.
pub type Numbers = BTreeMap<String, f64>;

/// Takes the numbers of a run, step by step.
///
/// Backends that keep rows make one of each call of [`log`](Self::log): a caller has the numbers of a step together.
/// Steps rise; a run that goes back is opened again as resumed.
pub trait Tracker: Send {
    /// Logs the numbers of a step. They are with the operating system when this returns.
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError>;

    /// Logs a text of a step, such as a sample.
    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError>;

    /// Says how the run ended, 0 for success, and syncs what was written. The last call.
    ///
    /// A run that ends without it reads as crashed where a backend tells the two apart.
    fn finish(&mut self, exit_code: i32) -> Result<(), TrackerError>;
}

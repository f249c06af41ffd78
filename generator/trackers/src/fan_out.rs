//! All backends of a run as one tracker.

use std::borrow::Cow;

use crate::{Console, Jsonl, Logger, Numbers, RunSpec, TensorBoard, Tracker, TrackerError, Wandb};

/// The longest text that is passed on, in bytes; longer ones lose their end.
pub const LONGEST_TEXT: usize = 1 << 20;

/// Passes what a run logs to its backends.
///
/// A backend that fails, be it when it is opened, is dropped with one warning; the others go on. So no method fails.
#[derive(Default)]
pub struct Trackers {
    backends: Vec<(String, Box<dyn Tracker>)>,
    dropped: Vec<Dropped>,
    run_id: Option<String>,
}

/// A backend that failed.
#[derive(Debug)]
pub struct Dropped {
    /// Its name.
    pub backend: String,
    /// Why.
    pub error: TrackerError,
}

impl Trackers {
    /// Opens the backends of a run.
    ///
    /// # Errors
    ///
    /// When a backend could not take the names of the specification. What the system refuses drops a backend instead.
    pub fn open(spec: &RunSpec) -> Result<Self, TrackerError> {
        spec.check()?;
        let mut trackers = Self::default();
        for logger in spec.logger.iter() {
            match trackers.backend(logger, spec) {
                Ok(backend) => trackers.add(logger.name(), backend),
                Err(error) => trackers.drop_backend(logger.name().to_owned(), error),
            }
        }
        Ok(trackers)
    }

    fn backend(&mut self, logger: Logger, spec: &RunSpec) -> Result<Box<dyn Tracker>, TrackerError> {
        Ok(match logger {
            Logger::Console => Box::new(Console::stdout(spec.console.clone())),
            Logger::Jsonl => Box::new(Jsonl::open_run(spec)?),
            Logger::TensorBoard => Box::new(TensorBoard::open(spec)?),
            Logger::Wandb => {
                let wandb = Wandb::open(spec)?;
                self.run_id = Some(wandb.run_id().to_owned());
                Box::new(wandb)
            }
        })
    }

    /// Adds a backend of the caller's own.
    pub fn add(&mut self, name: &str, backend: Box<dyn Tracker>) {
        self.backends.push((name.to_owned(), backend));
    }

    /// The names of the backends that have not failed.
    pub fn active(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(|(name, _)| name.as_str())
    }

    /// The backends that failed, in the order in which they did.
    pub fn dropped(&self) -> &[Dropped] {
        &self.dropped
    }

    /// The id of the run at Weights & Biases, for a checkpoint to keep.
    pub fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    fn each(&mut self, mut act: impl FnMut(&mut dyn Tracker) -> Result<(), TrackerError>) {
        for (name, mut backend) in std::mem::take(&mut self.backends) {
            match act(backend.as_mut()) {
                Ok(()) => self.backends.push((name, backend)),
                Err(error) => self.drop_backend(name, error),
            }
        }
    }

    fn drop_backend(&mut self, backend: String, error: TrackerError) {
        tracing::warn!("`{backend}` gets no more numbers of this run: {error}");
        self.dropped.push(Dropped { backend, error });
    }
}

impl Tracker for Trackers {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        self.each(|backend| backend.log(step, numbers));
        Ok(())
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        let text = bounded(text);
        self.each(|backend| backend.text(step, name, &text));
        Ok(())
    }

    fn finish(&mut self, exit_code: i32) -> Result<(), TrackerError> {
        self.each(|backend| backend.finish(exit_code));
        self.backends.clear();
        Ok(())
    }
}

fn bounded(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_TEXT {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(LONGEST_TEXT)];
    Cow::Owned(format!("{kept}\n... {} more bytes", text.len() - kept.len()))
}

//! The clock tick that lets the host look at running guests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use wasmtime::Engine;

/// Time between two looks at a running guest.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a running guest after which the thread parks.
const IDLE_TICKS: u32 = 50;

/// A thread that advances the engine's epoch while any guest runs, and sleeps otherwise.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
    handle: Thread,
}

#[derive(Default)]
struct Shared {
    running: AtomicUsize,
    parked: AtomicBool,
    stop: AtomicBool,
}

impl Ticker {
    pub(crate) fn new(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let weak = Arc::downgrade(&shared);
        let engine = engine.weak();
        let thread = thread::Builder::new().name("espalier-tick".to_owned()).spawn(move || run(&weak, &engine))?;
        let handle = thread.thread().clone();
        Ok(Self { shared, thread: Some(thread), handle })
    }

    /// A guest begins to run on this thread.
    pub(crate) fn enter(&self) {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst) {
            self.handle.unpark();
        }
    }

    /// It stopped.
    pub(crate) fn leave(&self) {
        self.shared.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.handle.unpark();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Weak<Shared>, engine: &wasmtime::EngineWeak) {
    let mut idle = 0;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if shared.running.load(Ordering::SeqCst) > 0 {
            idle = 0;
        } else {
            idle += 1;
        }
        if idle > IDLE_TICKS {
            shared.parked.store(true, Ordering::SeqCst);
            // A guest that began between the load above and this store saw no parked thread: look again.
            if shared.running.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.parked.store(false, Ordering::SeqCst);
            idle = 0;
        }
        let Some(engine) = engine.upgrade() else { return };
        engine.increment_epoch();
        drop((engine, shared));
        thread::sleep(TICK);
    }
}

//! Guests that were set up already, for others to start from.
//!
//! Setting up costs a guest some hundred pages and most of the time to its first block, and differs from REPL to REPL
//! in the seed only. So it happens once for each configuration: the memory afterwards becomes an image like the booted
//! interpreter's, and who starts from it is only seeded anew.
//!
//! Invariants: whether a REPL starts from a template depends on how it is set up, never on what ran before in this
//! process; a template holds nothing that a seed decided.

use std::sync::{Arc, Mutex, PoisonError};

use espalier_sandbox_protocol::{Decode, Encode, ExecuteRequest, ReplConfig, Reply, Request};
use tokio::sync::{OnceCell, oneshot};

use crate::Limits;
use crate::instance::{Core, Live};
use crate::journal::HostState;
use crate::memory::Checkpoint;
use crate::meter::Meter;
use crate::pool::Pool;
use crate::run::{Link, Run};

/// Templates that are kept. Each holds a copy of the interpreter's memory.
const MAX_TEMPLATES: usize = 8;

/// The configuration (encoded, without its seed) and what was made of it.
type Slot = (Vec<u8>, Arc<OnceCell<Arc<Checkpoint>>>);

/// The templates of a process, most recently used last.
#[derive(Default)]
pub(crate) struct Templates {
    slots: Mutex<Vec<Slot>>,
}

impl Templates {
    /// The template of `config`, made if need be. `None` where a guest must be set up on its own: an author's Python
    /// source runs while a tool is set up and may ask for randomness, and a configuration may be refused.
    pub(crate) async fn get(&self, core: &Arc<Core>, pool: &Pool, config: &ReplConfig) -> Option<Arc<Checkpoint>> {
        if !config.python_tools.is_empty() {
            return None;
        }
        let config = ReplConfig { seed: 0, ..config.clone() };
        let slot = self.slot(config.to_bytes());
        let made = slot.get_or_try_init(|| async {
            let meter = Arc::new(Meter::default());
            let (sender, receiver) = oneshot::channel();
            let (core, counted) = (Arc::clone(core), Arc::clone(&meter));
            pool.spawn(meter, async move {
                let _ = sender.send(make(&core, config, counted).await);
            });
            receiver.await.unwrap_or_else(|_| Err(wasmtime::Error::msg("a thread of the sandbox failed")))
        });
        match made.await {
            Ok(template) => Some(Arc::clone(template)),
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "a REPL is set up without a template");
                None
            }
        }
    }

    fn slot(&self, key: Vec<u8>) -> Arc<OnceCell<Arc<Checkpoint>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match slots.iter().position(|slot| slot.0 == key) {
            Some(index) => slots.remove(index),
            None => (key, Arc::default()),
        };
        let cell = Arc::clone(&slot.1);
        slots.push(slot);
        if slots.len() > MAX_TEMPLATES {
            slots.remove(0);
        }
        cell
    }
}

async fn make(core: &Core, config: ReplConfig, meter: Arc<Meter>) -> wasmtime::Result<Arc<Checkpoint>> {
    let limit = core.image.length() * 2;
    let mut live = Live::open(core, &core.booted, HostState::new(0), limit)?;
    serve(&mut live, Request::Configure(config), &meter).await?;
    if live.state().host.has_given() {
        return Err(wasmtime::Error::msg("setting up asked for randomness"));
    }
    let mut template = live.template()?;
    drop(live);
    // What a first block writes is made each guest's own at once.
    let mut live = Live::open(core, &template, HostState::new(0), limit)?;
    serve(&mut live, Request::Reseed { seed: 1 }, &meter).await?;
    serve(&mut live, empty_block(), &meter).await?;
    live.teach(&mut template)?;
    Ok(Arc::new(template))
}

fn empty_block() -> Request {
    Request::Execute(ExecuteRequest { code: String::new(), block: 0, echo: false, max_host_calls: 0 })
}

/// Serves what needs nothing from outside.
async fn serve(live: &mut Live, request: Request, meter: &Arc<Meter>) -> wasmtime::Result<()> {
    let limits = Limits::default();
    let run = Run::new(Arc::clone(meter), &limits, Link::None, Arc::default(), Arc::default(), false);
    let reply = live.serve(&request.to_bytes(), run).await?;
    let run = live.finish();
    match Reply::from_bytes(&reply) {
        Ok(Reply::Done | Reply::Executed(_)) if run.record.is_empty() => Ok(()),
        Ok(Reply::Done | Reply::Executed(_)) => Err(wasmtime::Error::msg("setting up asked for the time")),
        other => Err(wasmtime::Error::msg(format!("the interpreter is not set up: {other:?}"))),
    }
}

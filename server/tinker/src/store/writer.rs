//! The one writer: what many tasks write at the same time is committed together.
//!
//! Each piece of work has a savepoint of its own, so one that fails takes nothing else with it. Nobody hears of a success
//! before it is committed.

use futures::future::BoxFuture;
use sqlx::Connection as _;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{mpsc, oneshot};

use super::StoreError;

/// Most pieces of work in one commit.
const GROUP: usize = 256;
/// Most pieces of work that wait; more wait to be taken in.
const QUEUE: usize = 4096;

/// Tells a task how its work ended, given how the commit did.
type Acknowledge = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Work on the database; whether it stays, and who is told.
type Job = Box<dyn for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, (bool, Acknowledge)> + Send>;

/// Hands work to the writer.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Starts the writer. It ends when every handle is dropped.
    pub(super) fn start(connection: SqliteConnection) -> Self {
        let (jobs, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(run(connection, waiting));
        Self { jobs }
    }

    /// Does work in a transaction; comes back when it is committed.
    pub(super) async fn write<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let (answer, result) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            Box::pin(async move {
                let outcome = work(connection).await;
                let stays = outcome.is_ok();
                let acknowledge: Acknowledge = Box::new(move |committed| {
                    let _ = answer.send(committed.and(outcome));
                });
                (stays, acknowledge)
            })
        });
        let ended = || StoreError::Database("the writer has ended".to_owned());
        self.jobs.send(job).await.map_err(|_| ended())?;
        result.await.map_err(|_| ended())?
    }
}

async fn run(mut connection: SqliteConnection, mut waiting: mpsc::Receiver<Job>) {
    let mut group = Vec::with_capacity(GROUP);
    while waiting.recv_many(&mut group, GROUP).await > 0 {
        let mut told = Vec::with_capacity(group.len());
        let committed = commit(&mut connection, &mut group, &mut told).await;
        if let Err(error) = &committed {
            tracing::error!(%error, "a group of writes was not committed");
        }
        for acknowledge in told {
            acknowledge(committed.clone());
        }
        // What was not begun is dropped: whoever waits for it is told that nothing happened.
        group.clear();
    }
    let _ = connection.close().await;
}

async fn commit(
    connection: &mut SqliteConnection,
    group: &mut Vec<Job>,
    told: &mut Vec<Acknowledge>,
) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for job in group.drain(..) {
        let mut part = transaction.begin().await?;
        let (stays, acknowledge) = job(&mut part).await;
        told.push(acknowledge);
        if stays {
            part.commit().await?;
        } else {
            part.rollback().await?;
        }
    }
    transaction.commit().await?;
    Ok(())
}

//! Connections: bounded in number, and closed when nothing moves.
//!
//! A peer whose machine vanished sends nothing, not even an end. Its connection must not stay for good.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Accepts at most so many connections at once; more wait to be accepted.
pub struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    idle: Duration,
}

impl Bounded {
    /// At most `connections` at once, each closed when nothing moved for `idle`.
    pub fn new(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        let room = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { listener, room, idle }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok(permit) = Arc::clone(&self.room).acquire_owned().await else {
                // Nobody closes the semaphore.
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let _ = stream.set_nodelay(true);
                    let silence = Box::pin(tokio::time::sleep(self.idle));
                    return (Connection { stream, silence, idle: self.idle, _permit: permit }, address);
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    // Out of files, as a rule: they come back when others close.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing moved for a while.
pub struct Connection {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    idle: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// `polled`, unless nothing moved for too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let idle = self.idle;
            self.silence.as_mut().reset(Instant::now() + idle);
            return polled;
        }
        match self.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watch(context, polled)
    }
}

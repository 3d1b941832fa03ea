//! The task that drives a connection, and its end.

use std::{future::Future, pin::pin, time::Duration};
use tokio::{sync::oneshot, task::AbortHandle, time::sleep};

/// How long a connection that nobody wants any more may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);

/// Ends a connection's task when it is dropped: at once, or when it was idle,
/// after its farewell.
#[derive(Debug)]
pub(super) struct Task {
    abort: AbortHandle,
    idle: bool,
    _open: oneshot::Sender<()>,
}

impl Task {
    pub(super) fn spawn<F>(connection: F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, closed) = oneshot::channel::<()>();
        let driven = async move {
            let connection = pin!(connection);
            let farewell = pin!(async {
                // It fails, when the other half is dropped.
                let _ = closed.await;
                sleep(FAREWELL).await;
            });
            futures::future::select(connection, farewell).await;
        };
        Self {
            abort: tokio::spawn(driven).abort_handle(),
            idle: false,
            _open: open,
        }
    }

    /// Sets whether there is nothing on the connection that would have to be
    /// cut.
    pub(super) fn set_idle(&mut self, yes: bool) {
        self.idle = yes;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.idle {
            self.abort.abort();
        }
    }
}

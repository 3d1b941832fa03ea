use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

pin_project! {
    /// Runs from when it is first asked until it is stopped.
    ///
    /// The sleep is set anew only when it has ended too early, so stopping and
    /// starting for each token costs a look at the clock.
    #[derive(Debug, Default)]
    pub(super) struct Timer {
        #[pin]
        sleep: Option<Sleep>,
        due: Option<Instant>,
    }
}

impl Timer {
    /// It begins anew when it is asked next.
    pub(super) fn stop(self: Pin<&mut Self>) {
        *self.project().due = None;
    }

    /// Starts it unless it runs, and completes `limit` after that.
    pub(super) fn poll_passed(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        limit: Duration,
    ) -> Poll<()> {
        let mut this = self.project();
        let due = match *this.due {
            Some(due) => due,
            None => match Instant::now().checked_add(limit) {
                Some(due) => *this.due.insert(due),
                // The clock does not go that far.
                None => return Poll::Pending,
            },
        };
        loop {
            let Some(mut sleep) = this.sleep.as_mut().as_pin_mut() else {
                this.sleep.set(Some(sleep_until(due)));
                continue;
            };
            if sleep.deadline() > due {
                sleep.as_mut().reset(due);
            }
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() == due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}

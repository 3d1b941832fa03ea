use futures::future::BoxFuture;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::Mutex;
use tower::{BoxError, Service, ServiceExt};

/// One service for many callers, who take turns.
///
/// Does what `Buffer` does, in its order, and without a task in between: a
/// request that finds the service ready goes on from where it is, where a
/// buffer wakes another thread and is woken by it. It has no bound of its own:
/// a caller waits with its request.
///
/// A caller that goes away ends its turn; what was made ready is there for the
/// next one.
pub(super) struct Turns<S> {
    // Fair, so the callers are the queue: whoever is in front waits for the
    // service, the others for their turn.
    service: Arc<Mutex<S>>,
}

impl<S> Turns<S> {
    pub(super) fn new(service: S) -> Self {
        Self {
            service: Arc::new(Mutex::new(service)),
        }
    }
}

impl<S> Clone for Turns<S> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
        }
    }
}

impl<S> fmt::Debug for Turns<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl<S, R> Service<R> for Turns<S>
where
    S: Service<R, Error = BoxError> + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move {
            let mut turn = service.lock_owned().await;
            let response = turn.ready().await?.call(request);
            drop(turn);
            response.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::{convert::Infallible, future::Ready};
    use tokio::sync::watch;
    use tokio_test::{assert_pending, assert_ready, task};

    /// Ready while a flag is set; answers with the number of its call.
    struct Gated {
        open: watch::Receiver<bool>,
        waiting: Option<BoxFuture<'static, ()>>,
        calls: u32,
    }

    impl Service<()> for Gated {
        type Response = u32;
        type Error = BoxError;
        type Future = Ready<Result<u32, BoxError>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            let mut open = self.open.clone();
            let waiting = self.waiting.get_or_insert_with(|| {
                Box::pin(async move { drop(open.wait_for(|open| *open).await) })
            });
            waiting.poll_unpin(cx).map(Ok)
        }

        fn call(&mut self, (): ()) -> Self::Future {
            assert!(self.waiting.take().is_some(), "called unready");
            self.calls += 1;
            std::future::ready(Ok(self.calls))
        }
    }

    fn turns() -> (watch::Sender<bool>, Turns<Gated>) {
        let (open, opened) = watch::channel(false);
        let gated = Gated {
            open: opened,
            waiting: None,
            calls: 0,
        };
        (open, Turns::new(gated))
    }

    #[test]
    fn callers_are_served_in_their_order_once_the_service_is_ready() {
        let (open, mut turns) = turns();
        let mut first = task::spawn(turns.call(()));
        let mut second = task::spawn(turns.clone().call(()));
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        open.send_replace(true);
        assert!(first.is_woken() && !second.is_woken());
        assert_eq!(assert_ready!(first.poll()).unwrap(), 1);
        assert!(second.is_woken());
        assert_eq!(assert_ready!(second.poll()).unwrap(), 2);
    }

    #[test]
    fn a_caller_that_goes_away_gives_its_turn_to_the_next() {
        let (open, mut turns) = turns();
        let mut first = task::spawn(turns.call(()));
        let mut second = task::spawn(turns.call(()));
        let mut third = task::spawn(turns.call(()));
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        assert_pending!(third.poll());
        drop(second);
        drop(first);
        assert!(third.is_woken());
        assert_pending!(third.poll());
        open.send_replace(true);
        assert!(
            third.is_woken(),
            "by the service that another one had asked"
        );
        assert_eq!(assert_ready!(third.poll()).unwrap(), 1);
    }

    #[test]
    fn an_error_ends_one_turn_and_not_the_service() {
        struct Broken(bool);
        impl Service<()> for Broken {
            type Response = Infallible;
            type Error = BoxError;
            type Future = Ready<Result<Infallible, BoxError>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
                self.0 = !self.0;
                Poll::Ready(if self.0 { Ok(()) } else { Err("ready".into()) })
            }

            fn call(&mut self, (): ()) -> Self::Future {
                std::future::ready(Err("call".into()))
            }
        }
        let mut turns = Turns::new(Broken(true));
        let mut ask = || match turns.call(()).now_or_never() {
            Some(Err(error)) => error.to_string(),
            _ => panic!("no error"),
        };
        assert_eq!([ask(), ask()], ["ready", "call"]);
    }
}

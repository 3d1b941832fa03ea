use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

/// Sends each of `arrivals` when it is due, whether or not earlier ones have
/// ended, and tells `ended` of each that has. Completes when all have, or when
/// `stop` has: what is still running then is cancelled.
///
/// The arrivals are in the order of their times.
pub async fn open_loop<A, F>(
    arrivals: impl IntoIterator<Item = (Instant, A)>,
    mut send: impl FnMut(Instant, A) -> F,
    mut ended: impl FnMut(Result<F::Output, JoinError>),
    stop: impl Future<Output = ()>,
) where
    F: Future<Output: Send> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut arrivals = arrivals.into_iter();
    let mut next = arrivals.next();
    let mut stop = std::pin::pin!(stop);
    while next.is_some() || !running.is_empty() {
        let due = next.as_ref().map(|(due, _)| *due);
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some((due, arrival)) = next {
                    running.spawn(send(due, arrival));
                }
                next = arrivals.next();
            }
            Some(end) = running.join_next() => ended(end),
        }
    }
}

//! Which workers take requests, and what a request gets that none takes.
//!
//! A balancer that waits until something is ready makes requests pile up when
//! everything is busy, and hangs when nothing is there. Here every worker of a
//! [`BusySet`] has *marks* that exclude it. A
//! [`WorkerPool`](crate::pool::WorkerPool) honours them and answers by itself.
//! For tower's own `Balance`, or any other balancer, this module has the layers
//! that do: [`BusyDiscover`] around the discovery makes a marked worker one
//! that is not ready, and [`BusyFilterLayer`] above the balancer gives the
//! *verdict* when nothing is ready:
//!
//! | the members | a request gets |
//! |---|---|
//! | none is usable: there are none, or all are unreachable, failing or draining | [`Unavailable`](crate::Unavailable) |
//! | some are usable, and all of those are busy or leased | [`ServiceOverloaded`](crate::ServiceOverloaded) |
//! | some have no mark and are not ready yet | to wait, for at most `max_wait` |
//!
//! ```
//! use http::{Request, Response};
//! use std::convert::Infallible;
//! use tower::{
//!     Service, ServiceBuilder, ServiceExt,
//!     balance::p2c::Balance, load::PendingRequestsDiscover, service_fn,
//! };
//! use tower_overload::{
//!     BoxError, ServiceOverloaded, Unavailable,
//!     busy::{BusyDiscover, BusyFilterLayer, BusySet, roster},
//!     completion::CompleteOnBody,
//! };
//!
//! # type Body = http_body_util::Empty<bytes::Bytes>;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let set = BusySet::new();
//! let (roster, changes) = roster();
//! let discover = BusyDiscover::new(changes, set.clone());
//! let mut workers = ServiceBuilder::new()
//!     .layer(BusyFilterLayer::new(discover.members()))
//!     .service(Balance::new(PendingRequestsDiscover::new::<Request<()>>(
//!         discover,
//!         CompleteOnBody::new(),
//!     )));
//!
//! // Nobody is there.
//! let request = || Request::new(());
//! let error = workers.ready().await?.call(request()).await.unwrap_err();
//! assert!(Unavailable::find_in(&*error).is_some());
//!
//! // One worker: any service, an HTTP client in real life.
//! let worker = service_fn(|_: Request<()>| async {
//!     Ok::<_, Infallible>(Response::new(Body::new()))
//! });
//! roster.insert("worker-0", worker);
//! assert!(workers.ready().await?.call(request()).await.is_ok());
//!
//! // It is busy, says whoever watches its load.
//! let mut mark = set.busy_mark("worker-0");
//! mark.set(None);
//! let error = workers.ready().await?.call(request()).await.unwrap_err();
//! assert!(ServiceOverloaded::find_in(&*error).is_some());
//!
//! mark.clear();
//! assert!(workers.ready().await?.call(request()).await.is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! # Marks
//!
//! | mark | set by | ends |
//! |---|---|---|
//! | busy | the owner of the [`BusyMark`], a [`WorkerMonitor`](crate::load::WorkerMonitor) as a rule | when cleared or dropped, or at the time it was set until |
//! | leased | a refusal of the worker, see [`RefusalPolicy`] | after 1 s, or the time that the worker named, or early when a response that is no refusal completes there |
//! | unreachable | a connection that could not be made, or was lost before any byte of a response while nothing else of ours ran there | after 1 s, twice as long after each further failure, up to 30 s; a connection or any answer ends it |
//! | failing | 5 requests in a row that failed, or 16 of the last 32 | after 1 s, twice as long after each further failure, up to 30 s |
//! | draining | [`BusySet::drain`] | when its [`DrainMark`] is dropped |
//!
//! Marks that somebody owns belong to the worker's id, and outlive its
//! connection. Leases and failures belong to the connection: a successor under
//! the same id starts without them, and what comes late from the old one
//! touches nothing.
//!
//! ## Leases
//!
//! The time that a refusal names is for its client. The worker knew its queue
//! as it was then, and has room as soon as a request completes. So a completion
//! ends every lease; a refusal that was sent before the last completion leases
//! nothing; and where none of our requests runs that could complete, a lease is
//! no longer than [`lease`](BusySetBuilder::lease).
//!
//! ## Failures
//!
//! A request has failed if its answer is a 5xx that is no refusal, if a
//! [time limit](crate::limits) has passed, or if the body broke off. A refusal
//! and a 4xx are no failures. Below the mark each failure counts as load: for as
//! long as a success takes there, the worker is taken to have one request more.
//! So one that fails in no time looks no less loaded than one that serves, and
//! gets no more than its share.
//!
//! If more than half of the members that can be reached are failing, it is more
//! likely the requests, or something behind all workers, and the mark keeps no
//! request away: see [`Members::ignores_failing`].
//!
//! ## Probes
//!
//! After it was unreachable or failing, a worker is on *probation*: one request
//! at a time is sent to it until one is answered, or answered well. Otherwise a
//! worker that fails fast would get every request that comes within a round
//! trip. Such a *probe* holds the others back for at most
//! [`probe_timeout`](BusySetBuilder::probe_timeout); then the next request
//! probes too. A worker on probation counts as usable while it can be probed:
//! if it is busy or leased as well, nothing is known of it, and it counts as
//! unreachable.
//!
//! The first frame of a good answer ends the probation of a failing worker:
//! the whole of it may take a minute. Until five requests have ended well,
//! though, one that fails excludes the worker again, for twice as long as the
//! last time. So a worker whose answers break off in the middle does not get
//! its share over and over.
//!
//! A busy worker is asked too. A gauge may be stuck: an engine that gets nothing
//! reports the same for ever. So a worker that was busy for
//! [`probe_after`](BusySetBuilder::probe_after) by counts that did not change,
//! and that runs nothing of ours, gets one request, and another one each time
//! that passes.
//!
//! ## Signs of life
//!
//! Whoever sees more of a worker than its requests do says so:
//! [`BusySet::reached`] if a connection was made, [`BusySet::alive`] if it
//! registered or reported, [`BusySet::well`] if it served something. And, the
//! other way round, [`BusySet::unreachable`] and [`BusySet::failed`]. A worker
//! that fails although it says that it lives is believed once. A worker
//! that comes, or comes back, is [started slowly](crate::pool::WorkerPoolBuilder::slow_start)
//! by a pool.
//!
//! # What a stock balancer cannot promise
//!
//! A balancer is asked whether it is ready before it has the request, so the
//! wait is that of whoever asks. Callers that share the balancer by a `Buffer`
//! stand in its queue, and only the first one asks:
//!
//! * A request in the queue has no deadline of its own. It is answered with
//!   the first one, or by its own turn. With several waits in a row it may be
//!   there for longer than `max_wait`.
//! * A request is not seen before a worker is chosen: no choice by key, by
//!   size, or by the workers that it has been to.
//! * Between `poll_ready` and `call` things can change. If anything has, the
//!   filter asks again in `call`: a worker that became busy gets nothing while
//!   another one is ready, and an answer that is stale is not given. If nothing
//!   is ready by then and no verdict is due, the request gets *busy at
//!   dispatch*, which [`RetryRefused`] sends again.
//!
//! A [`WorkerPool`](crate::pool::WorkerPool) has none of this. What is promised
//! here as there: marked workers get nothing, a verdict is given at once, and
//! nobody hangs.
//!
//! # No hangs
//!
//! Everything that can wait has somebody who wakes it:
//!
//! * An excluded endpoint leaves its waker with the worker's marks, and arms a
//!   timer for the earliest end among them.
//! * A filter with a waiting caller is woken by every change of its members.
//! * Callers queued in a `Buffer` are answered as soon as the first is: while
//!   nothing changes, a verdict is repeated without asking anybody. The same
//!   holds for a wait that ended in vain, for as long as it lasted. A probe
//!   that is dispatched does not begin the wait of those behind it anew.
//!
//! A `Pending` of the balancer alone decides nothing: it is asked outside of
//! tokio's cooperative budget, and the verdict comes from the counts of the
//! members.
//!
//! # In async blocks
//!
//! The future of tower's `Balance` names a function that maps boxed errors, and
//! an async block that is sent between threads cannot hold it: rustc says that
//! an implementation of `FnOnce` or `From` *is not general enough*. Mounted by
//! `route_service` the stack works as it is; to call it from a handler, erase
//! its type once with `tower::util::BoxCloneSyncService`.
//!
//! # Cost
//!
//! While a worker has no mark, its endpoint costs one atomic load in
//! `poll_ready`. A verdict that is repeated costs two, whatever the number of
//! workers. `benches/` has the figures.
//!
//! # Panics
//!
//! Timers are tokio's, so an endpoint with a mark that ends, and a filter with a
//! caller that waits, have to be polled within a tokio runtime with time
//! enabled.

mod answer;
mod attempt;
mod builder;
mod filter;
mod health;
#[cfg(all(test, tower_overload_loom))]
mod loom;
mod marks;
mod members;
mod notify;
mod owned;
mod place;
mod policy;
mod probation;
mod retry;
mod roster;
mod seat;
mod set;
mod shared;
mod state;
mod trail;
mod worker;

pub(crate) use self::{
    answer::{Answer, Answers},
    attempt::Attempt,
    marks::{Outlook, Standing, Stands},
    notify::{Notifier, Observation},
    seat::{InFlight, Rows, Seat},
    worker::Watch,
};
pub use self::{
    attempt::{Completion, JudgeBody, WorkerFuture},
    builder::{BusySetBuilder, BusySetError},
    filter::{BusyDiscover, BusyFilter, BusyFilterLayer, Endpoint, ResponseFuture},
    marks::Mark,
    members::{Members, Verdict},
    owned::{BusyMark, DrainMark},
    policy::{
        Classify, ErrorsOnly, Fault, OnlyThisRequest, Refusal, RefusalPolicy, Unavailable503,
    },
    retry::{RetryBudget, RetryRefused},
    roster::{Roster, RosterChanges, roster},
    set::{BusySet, MarkState, WorkerMarks},
    trail::{AnyRequest, Carry, InExtensions, Trail},
};

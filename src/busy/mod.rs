//! New requests go to workers that can take them, and a request that no worker
//! can take is answered at once.
//!
//! A balancer that waits until something is ready makes requests pile up when
//! everything is busy, and hangs when nothing is there. Here every worker has
//! *marks* that exclude it, the balancer sees a marked worker as not ready, and
//! [`BusyFilterLayer`] gives the *verdict* when nothing is ready:
//!
//! | the members | a request gets |
//! |---|---|
//! | none is usable: there are none, or all are unreachable or draining | [`Unavailable`](crate::Unavailable) |
//! | some are usable, and all of those are busy or leased | [`ServiceOverloaded`](crate::ServiceOverloaded) |
//! | some have no mark and are not ready yet | to wait, for at most `max_wait` |
//!
//! ```
//! use http::{Request, Response};
//! use std::convert::Infallible;
//! use tower::{Service, ServiceExt, service_fn};
//! use tower_overload::{
//!     BoxError, ServiceOverloaded, Unavailable,
//!     busy::{BusyBalance, BusySet, roster},
//! };
//!
//! # type Body = http_body_util::Empty<bytes::Bytes>;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let set = BusySet::new();
//! let (roster, changes) = roster();
//! let mut workers = BusyBalance::new(set.clone()).build(changes);
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
//! | leased | a refusal of the worker, see [`RefusalPolicy`] | after 1 s, or early when a response that is no refusal completes; if the worker named a time, only after that |
//! | unreachable | a connection that could not be made, or was lost before any byte of a response | after 1 s, twice as long after each further failure, up to 30 s; any answer ends it |
//! | draining | [`BusySet::drain`] | when its [`DrainMark`] is dropped |
//!
//! Marks that somebody owns belong to the worker's id, and outlive its
//! connection. Leases and failures belong to the connection: a successor under
//! the same id starts without them, and what comes late from the old one
//! touches nothing.
//!
//! After a failure a worker is on probation: one request at a time is sent to
//! it until one is answered. Otherwise a worker that fails fast would look like
//! the least loaded one and get every request that comes within a round trip.
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
//!   holds for a wait that ended in vain, for as long as it lasted.
//!
//! A `Pending` of the balancer alone decides nothing: it is asked outside of
//! tokio's cooperative budget, and the verdict comes from the counts of the
//! members.
//!
//! # At dispatch
//!
//! Between `poll_ready` and `call` things can change. If anything has, the
//! filter asks again in `call`: a worker that became busy gets nothing while
//! another one is ready, and an answer that is stale is not given. If nothing
//! is ready by then and no verdict is due, the request gets *busy at dispatch*,
//! which [`RetryRefused`] sends again.
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

mod balance;
mod cell;
mod discover;
mod endpoint;
mod future;
mod layer;
mod marks;
mod members;
mod policy;
mod precheck;
mod retry;
mod roster;
mod service;
mod set;

pub use self::{
    balance::{Balanced, BusyBalance},
    discover::BusyDiscover,
    endpoint::{Completion, Endpoint, ResponseFuture as EndpointFuture},
    future::ResponseFuture,
    layer::BusyFilterLayer,
    marks::Mark,
    members::{Members, Verdict},
    policy::{Classify, ErrorsOnly, Fault, OnlyThisRequest, Refusal, RefusalPolicy},
    precheck::{PreCheck, PreCheckLayer},
    retry::RetryRefused,
    roster::{Roster, RosterChanges, roster},
    service::BusyFilter,
    set::{BusyMark, BusySet, BusySetBuilder, BusySetError, DrainMark, WorkerMarks},
};

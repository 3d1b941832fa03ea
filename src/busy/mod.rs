//! Keeps new requests away from workers that cannot take them.
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
    policy::{Classify, ErrorsOnly, Fault, Refusal, RefusalPolicy},
    precheck::{PreCheck, PreCheckLayer},
    retry::RetryRefused,
    roster::{Roster, RosterChanges, roster},
    service::BusyFilter,
    set::{BusyMark, BusySet, BusySetBuilder, BusySetError, DrainMark, WorkerMarks},
};

//! One service for many workers: the choice, the wait, and what ends it.

mod any;
mod cancel;
mod fleet;
mod hanging;
mod health;
mod lockstep;
mod membership;
mod model;
mod own_pick;
mod pick;
mod plain;
mod plain_requests;
mod retry;
mod routing;
mod sick;
mod support;
mod threads;
mod verdicts;
mod waiting;

//! The promises of [`tower_overload::fleet`].

mod dns;
mod life;
mod model;
mod models;
mod support;
mod threads;

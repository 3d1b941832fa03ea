//! A worker that serves whatever it gets.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};
use tower::Service;

#[derive(Clone)]
pub struct Serves;

impl Service<()> for Serves {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

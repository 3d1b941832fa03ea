//! An admitted request that does not wait allocates nothing.

#[path = "support/alloc.rs"]
mod alloc;

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};
use tower::{Layer, Service};
use tower_overload::admission::EngineAdmissionLayer;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: alloc::Observed = alloc::Observed {
    allocated: |_| ALLOCATIONS.set(ALLOCATIONS.get() + 1),
    freed: |_| {},
};

#[derive(Clone)]
struct Echo;

impl Service<u64> for Echo {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

fn request<S: Service<u64, Response = u64>>(service: &mut S) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let ready = service.poll_ready(&mut cx).is_ready();
    let answer = pin!(service.call(1)).poll(&mut cx);
    ready && matches!(answer, Poll::Ready(Ok(1)))
}

#[test]
fn an_admitted_request_that_does_not_wait_allocates_nothing() {
    let layer = EngineAdmissionLayer::new(2, 2).unwrap().until_response();
    let mut shed = layer.layer(Echo);
    let mut backpressure = layer.clone().backpressure().layer(Echo);
    let count = allocations(|| {
        for _ in 0..1_000 {
            assert!(request(&mut shed) && request(&mut backpressure));
        }
    });
    assert_eq!(count, 0);

    let mut limited = layer.with_first_token_limit(1).unwrap().layer(Echo);
    assert_eq!(allocations(|| assert!(request(&mut limited))), 0);
    // What it counts with does count.
    assert_eq!(allocations(|| drop(Box::new(1))), 1);
}

//! What one worker refused is offered to another, within bounds.

use crate::support::{ALL_BUSY, AT_CAPACITY, Fleet, Got, OK, Script, Stack, buffered, send};
use http::{Request, Response};
use http_body::Body;
use std::time::Duration;
use tower::{Layer, Service, ServiceExt, retry::RetryLayer};
use tower_overload::{
    BoxError, OverloadReason, ServiceOverloaded, UnavailableReason,
    busy::{RetryBudget, RetryRefused},
};

fn retrying(
    stack: Stack,
    policy: RetryRefused,
) -> impl Service<Request<()>, Response = Response<impl Body>, Error = BoxError> {
    RetryLayer::new(policy).layer(buffered(stack))
}

#[tokio::test(start_paused = true)]
async fn what_one_worker_refuses_another_serves() {
    for script in [Script::Status(529, None), Script::RefuseByError] {
        let (fleet, stack) = Fleet::of(&["a", "b"]);
        fleet.worker("a").script(script);
        let mut service = retrying(stack, RetryRefused::new(1));
        for _ in 0..20 {
            assert_eq!(send(&mut service).await, OK);
        }
        assert_eq!(fleet.worker("a").calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn when_all_refuse_there_is_one_refusal_and_each_was_asked_once_at_most() {
    let ids = ["a", "b", "c", "d"];
    let (fleet, stack) = Fleet::of(&ids);
    for id in ids {
        fleet.worker(id).script(Script::Status(529, None));
    }
    let mut service = retrying(stack, RetryRefused::new(2));
    assert_eq!(send(&mut service).await, AT_CAPACITY, "asked three");
    assert_eq!(
        send(&mut service).await,
        ALL_BUSY,
        "asked the last one, then none was left"
    );
    assert!(ids.iter().all(|id| fleet.worker(id).calls() == 1));
}

#[tokio::test(start_paused = true)]
async fn when_none_is_left_the_answer_has_the_shortest_time_that_a_refusal_named() {
    let (fleet, stack) = Fleet::of(&["a", "b", "c"]);
    for (id, seconds) in [("a", Some(7)), ("b", Some(3)), ("c", None)] {
        fleet.worker(id).script(Script::Status(529, seconds));
    }
    let mut service = retrying(stack, RetryRefused::new(5));
    let answer = service.ready().await.unwrap().call(Request::new(()));
    let error = answer.await.err().unwrap();
    let overloaded = ServiceOverloaded::find_in(&*error).unwrap();
    assert_eq!(overloaded.reason(), OverloadReason::AllWorkersBusy);
    assert_eq!(overloaded.retry_after(), Some(Duration::from_secs(3)));
}

#[tokio::test(start_paused = true)]
async fn unreachable_workers_are_passed_over_and_do_not_use_up_the_refusals() {
    let (fleet, stack) = Fleet::of(&["a", "b", "c"]);
    for id in ["a", "b"] {
        fleet.worker(id).script(Script::FailAfter(Duration::ZERO));
    }
    let mut service = retrying(stack, RetryRefused::new(0));
    for _ in 0..20 {
        assert_eq!(send(&mut service).await, OK);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_is_the_answer_when_no_worker_is_left_after_it() {
    let (fleet, stack) = Fleet::of(&["a", "b"]);
    for id in ["a", "b"] {
        fleet.worker(id).script(Script::FailAfter(Duration::ZERO));
    }
    let mut service = retrying(stack, RetryRefused::new(1));
    assert_eq!(send(&mut service).await, Got::Unreachable);
    let none_reachable = Got::Unavailable(UnavailableReason::NoneReachable);
    assert_eq!(send(&mut service).await, none_reachable, "none was tried");
}

#[tokio::test(start_paused = true)]
async fn an_accepted_request_is_never_sent_twice() {
    let (fleet, stack) = Fleet::of(&["a", "b"]);
    for id in ["a", "b"] {
        fleet.worker(id).script(Script::Status(500, None));
    }
    let mut service = retrying(stack, RetryRefused::new(5));
    assert_eq!(send(&mut service).await, Got::Served(500));
    assert_eq!(fleet.worker("a").calls() + fleet.worker("b").calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_empty_budget_ends_the_retries() {
    let (fleet, stack) = Fleet::of(&["a", "b"]);
    fleet.worker("a").script(Script::Status(529, None));
    fleet.worker("b").script(Script::Status(529, None));
    let budget = RetryBudget::with_rate(0, 0.0);
    let mut service = retrying(stack, RetryRefused::with_budget(5, budget));
    assert_eq!(send(&mut service).await, AT_CAPACITY);
    assert_eq!(fleet.worker("a").calls() + fleet.worker("b").calls(), 1);
}

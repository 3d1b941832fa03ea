//! The layers over tower's mock service, step by step.

use futures::stream;
use std::convert::Infallible;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::discover::Change;
use tower_overload::{
    EngineAdmissionLayer, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    busy::{BusyDiscover, BusyFilterLayer, BusySet},
};
use tower_test::mock::{self, Mock};

#[tokio::test]
async fn the_admission_sends_on_what_fits_and_refuses_the_rest() {
    let layer = EngineAdmissionLayer::new(1, 0).unwrap().until_response();
    let (mut service, mut engine) = mock::spawn_layer::<u64, u64, _>(layer);
    assert_ready_ok!(service.poll_ready());
    let mut first = task::spawn(service.call(1));
    assert_pending!(first.poll());
    let (request, reply) = engine.next_request().await.unwrap();
    assert_eq!(request, 1);

    assert_ready_ok!(service.poll_ready());
    let refused = service.call(2).await.unwrap_err();
    let refused = ServiceOverloaded::find_in(&*refused).unwrap();
    assert_eq!(refused.reason(), OverloadReason::WorkerAtCapacity);

    reply.send_response(10);
    assert_eq!(assert_ready_ok!(first.poll()), 10);
    let mut third = task::spawn(service.call(3));
    assert_pending!(third.poll());
    let (request, reply) = engine.next_request().await.unwrap();
    assert_eq!(request, 3, "the refused one never came");
    reply.send_response(30);
    assert_eq!(assert_ready_ok!(third.poll()), 30);
}

#[tokio::test(start_paused = true)]
async fn the_filter_passes_on_what_is_ready_and_answers_when_nothing_is() {
    let nobody = stream::empty::<Result<Change<&str, Mock<u64, u64>>, Infallible>>();
    let members = BusyDiscover::new(nobody, BusySet::new()).members();
    let layer = BusyFilterLayer::new(members);
    let (mut service, mut balancer) = mock::spawn_layer::<u64, u64, _>(layer);
    assert_ready_ok!(service.poll_ready());
    let mut served = task::spawn(service.call(1));
    assert_pending!(served.poll());
    let (request, reply) = balancer.next_request().await.unwrap();
    reply.send_response(request + 1);
    assert_eq!(assert_ready_ok!(served.poll()), 2);

    balancer.allow(0);
    assert_ready_ok!(service.poll_ready(), "the verdict is due");
    let error = service.call(2).await.unwrap_err();
    let unavailable = Unavailable::find_in(&*error).unwrap();
    assert_eq!(unavailable.reason(), UnavailableReason::NoWorkers);

    balancer.allow(1);
    assert_ready_ok!(service.poll_ready());
    let mut served = task::spawn(service.call(3));
    assert_pending!(served.poll());
    assert_eq!(balancer.next_request().await.unwrap().0, 3);
}

use crate::support::*;
use http::Response;
use tower::{BoxError, Layer, Service, ServiceBuilder, load::TrackCompletion, service_fn};
use tower_overload::admission::{EngineAdmissionLayer, Permit, SlotHold};

#[test]
fn a_streaming_response_holds_its_slot_until_the_body_ends() {
    let (mut worker, engine, handle) = worker(2, 1);
    let (mut first, mut second) = (send(&mut worker, 1), send(&mut worker, 2));
    let mut third = send(&mut worker, 3);
    let (mut one, mut two) = (engine.next(), engine.next());
    one.token("a");
    two.token("b");
    let mut first = body(&mut first);
    let mut second = body(&mut second);
    assert!(next_frame(&mut first).is_some() && next_frame(&mut second).is_some());
    assert!(!third.is_woken(), "both bodies are running");
    one.end();
    assert_eq!(next_frame(&mut first), None);
    assert!(third.is_woken() && third.poll().is_pending());
    assert_eq!(
        (engine.inside(), engine.most(), counts(&handle)),
        (2, 2, (2, 0))
    );
}

#[test]
fn the_end_an_error_and_a_drop_each_free_the_slot_once() {
    let (mut worker, engine, handle) = worker(1, 0);

    let mut response = send(&mut worker, 1);
    engine.next().end();
    let mut ended = body(&mut response);
    assert_eq!(next_frame(&mut ended), None);
    assert_eq!(counts(&handle), (0, 0));
    let held = send(&mut worker, 2);
    drop((ended, response));
    assert_eq!(counts(&handle), (1, 0), "it belongs to another request now");
    drop(held);
    engine.next();

    let mut response = send(&mut worker, 3);
    engine.next().fail();
    let mut failed = body(&mut response);
    assert_eq!(
        next_frame(&mut failed),
        Some(Err("the engine broke".into()))
    );
    assert_eq!(counts(&handle), (0, 0));
    drop(failed);

    let mut response = send(&mut worker, 4);
    let mut running = engine.next();
    running.head();
    let dropped = body(&mut response);
    assert_eq!(counts(&handle), (1, 0));
    drop(dropped);
    assert_eq!(counts(&handle), (0, 0));
    assert!(running.is_cancelled());
}

#[test]
fn other_responses_end_with_the_response() {
    let layer = EngineAdmissionLayer::new(1, 0).unwrap().until_response();
    let mut worker = layer.layer(service_fn(async |n: u64| Ok::<_, BoxError>(n)));
    for n in 0..3 {
        assert_eq!(answer(&mut call(&mut worker, n)).unwrap(), n);
        assert_eq!(counts(&layer.handle().unwrap()), (0, 0));
    }
}

#[test]
fn a_completion_of_ones_own_decides_how_long_the_slot_is_held() {
    #[derive(Clone)]
    struct KeepIt;

    impl TrackCompletion<Permit, u64> for KeepIt {
        type Output = (u64, Permit);

        fn track_completion(&self, permit: Permit, value: u64) -> Self::Output {
            (value, permit)
        }
    }

    let layer = EngineAdmissionLayer::new(1, 0)
        .unwrap()
        .with_completion(KeepIt);
    let mut worker = layer.layer(service_fn(async |n: u64| Ok::<_, BoxError>(n)));
    let (value, permit) = answer(&mut call(&mut worker, 7)).unwrap();
    assert_eq!((value, counts(&layer.handle().unwrap())), (7, (1, 0)));
    drop(permit);
    assert_eq!(counts(&layer.handle().unwrap()), (0, 0));
}

#[test]
fn a_hold_in_the_extensions_outlives_the_body() {
    let layer = EngineAdmissionLayer::new(1, 0)
        .unwrap()
        .hold_in_extensions();
    let (engine, handle) = (Engine::default(), layer.handle().unwrap());
    let mut worker = layer.layer(engine.clone());
    let mut response = send(&mut worker, 1);
    engine.next().end();
    let mut response = answer(&mut response).unwrap();
    let hold = response.extensions_mut().remove::<SlotHold>().unwrap();
    let again = hold.clone();
    drop(response);
    drop(hold);
    assert_eq!(counts(&handle), (1, 0));
    assert_refused(&mut call(&mut worker, 2));
    drop(again);
    assert_eq!(counts(&handle), (0, 0));

    let mut response = send(&mut worker, 3);
    let mut running = engine.next();
    running.head();
    let mut response = answer(&mut response).unwrap();
    drop(response.extensions_mut().remove::<SlotHold>());
    assert_eq!(counts(&handle), (1, 0), "the body is not over");
    drop(response);
    assert_eq!(counts(&handle), (0, 0));
}

#[tokio::test]
async fn a_body_without_content_ends_with_the_response() {
    let layer = EngineAdmissionLayer::new(1, 0).unwrap();
    let mut worker = ServiceBuilder::new()
        .layer(layer.clone())
        .service(service_fn(async |_: u64| {
            Ok::<_, BoxError>(Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
        }));
    let response = worker.call(1).await.unwrap();
    assert_eq!(counts(&layer.handle().unwrap()), (0, 0));
    drop(response);
}

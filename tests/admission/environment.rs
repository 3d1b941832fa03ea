use crate::support::*;
use tower::{Layer, load::Load};
use tower_overload::admission::{EngineAdmissionLayer, Limits};

#[test]
fn without_limits_everything_passes_through() {
    let unset = Limits::parse(None, Some("16".as_ref())).unwrap();
    let layer = EngineAdmissionLayer::from_limits(unset)
        .with_first_token_limit(1)
        .unwrap()
        .hold_in_extensions();
    assert!(layer.handle().is_none());
    let engine = Engine::default();
    let mut worker = layer.layer(engine.clone());
    let mut calls: Vec<_> = (0..500).map(|n| send(&mut worker, n)).collect();
    assert_eq!((engine.inside(), worker.load()), (500, 0));
    for call in &mut calls {
        engine.next().end();
        drop(answer(call).unwrap());
    }
    assert_eq!(engine.inside(), 0);

    let mut waits = layer.backpressure().layer(engine.clone());
    let _calls: Vec<_> = (0..500).map(|n| send(&mut waits, n)).collect();
    assert_eq!((engine.inside(), waits.load()), (500, 0));
}

#[test]
fn the_limits_of_the_environment_are_those_of_the_gate() {
    let limits = Limits::parse(Some("3".as_ref()), None).unwrap();
    let layer = EngineAdmissionLayer::from_limits(limits);
    let now = layer.handle().unwrap().snapshot();
    assert_eq!((now.slots, now.queue_limit), (3, 16));
}

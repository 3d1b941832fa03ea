//! Models come with the workers that serve them, and stay for their thresholds.

use crate::support::*;
use tower_overload::{
    busy::Mark,
    fleet::{MAX_MODELS, Origin, RefusedKind, Registration},
    load::{LoadEvent, ThresholdUpdate},
};

fn serving<const N: usize>(names: [&str; N]) -> Registration {
    Registration::at("http://worker:1").models(names)
}

fn names(fleet: &TestFleet) -> Vec<String> {
    let models = fleet.models().into_iter();
    models.map(|model| model.name().to_string()).collect()
}

#[tokio::test]
async fn a_model_gives_way_when_nobody_serves_it_and_nobody_has_set_it_up() {
    let fleet = setup(|builder| builder.default_model("tiny").max_models(4)).fleet;
    let register = |names: [&str; 1]| fleet.register("a", serving(names), Origin::Static);
    for model in ["one", "two", "three"] {
        register([model]).unwrap();
    }
    assert_eq!(names(&fleet), ["one", "three", "tiny", "two"]);
    let thresholds = fleet.thresholds().get("one").unwrap();
    let update = ThresholdUpdate::new().active_prefill_tokens(9);
    thresholds.update(update).unwrap();
    register(["four"]).unwrap();
    assert_eq!(
        names(&fleet),
        ["four", "one", "three", "tiny"],
        "the oldest without"
    );
    register(["five"]).unwrap();
    assert_eq!(
        names(&fleet),
        ["five", "four", "one", "tiny"],
        "it is free by then"
    );
    // It was held by nobody but the caller, whose handles still work.
    fleet.add_model("four").unwrap();
    let full = fleet.register("b", serving(["six", "seven"]), Origin::Static);
    assert_eq!(kind(full), Some(RefusedKind::Full));
}

#[tokio::test]
async fn a_registration_with_a_model_too_many_makes_none() {
    let fleet = setup(|builder| builder.default_model("tiny")).fleet;
    let all: Vec<_> = (2..MAX_MODELS).map(|n| format!("m{n}")).collect();
    let many = Registration::at("http://worker:1").models(all);
    fleet.register("a", many, Origin::Static).unwrap();
    let refused = fleet.register("b", serving(["last", "one-too-many"]), Origin::Static);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Full);
    assert!(refused.to_string().contains("1024"), "{refused}");
    assert!(fleet.model("last").is_none() && !fleet.knows("b"));
    fleet
        .register("b", serving(["last", "tiny"]), Origin::Static)
        .unwrap();
}

#[tokio::test]
async fn an_adapter_gives_way_whatever_the_thresholds_of_its_model() {
    let fleet = setup(|builder| builder.max_models(3)).fleet;
    let register = |adapter: &str| {
        let worker = serving(["base"]).lora(adapter, "base");
        fleet.register("a", worker, Origin::Static)
    };
    register("one").unwrap();
    let thresholds = fleet.thresholds().get("base").unwrap();
    let update = ThresholdUpdate::new().active_prefill_tokens(9);
    thresholds.update(update).unwrap();
    for adapter in ["two", "three", "four"] {
        register(adapter).unwrap();
    }
    assert_eq!(names(&fleet), ["base", "four", "three"]);
    let adapter = fleet.thresholds().get("four").unwrap();
    assert_eq!(adapter.get(), thresholds.get());
}

#[tokio::test]
async fn a_model_of_a_registration_does_not_give_way_to_another_of_it() {
    let fleet = setup(|builder| builder.max_models(2)).fleet;
    for model in ["one", "two"] {
        let worker = serving([model]);
        fleet.register("a", worker, Origin::Static).unwrap();
    }
    let since = fleet.model("one").unwrap().since();
    let refused = fleet.register("b", serving(["new", "one"]), Origin::Static);
    assert_eq!(kind(refused), Some(RefusedKind::Full));
    assert_eq!(names(&fleet), ["one", "two"], "nothing has changed");

    fleet.remove("a");
    let worker = serving(["new", "one"]);
    fleet.register("b", worker, Origin::Static).unwrap();
    assert_eq!(names(&fleet), ["new", "one"]);
    assert_eq!(fleet.model("one").unwrap().since(), since, "the same one");
}

#[tokio::test]
async fn an_adapter_is_judged_by_the_thresholds_of_its_model() {
    let fleet = fleet();
    let worker = serving(["tiny"]).kv_total_blocks(100).lora("sql", "tiny");
    fleet.register("a", worker, Origin::Static).unwrap();
    let thresholds = fleet.thresholds().get("tiny").unwrap();
    let update = ThresholdUpdate::new().active_decode_blocks(0.5);
    thresholds.update(update).unwrap();
    assert!(goes_to(&fleet, "sql").await.is_some());

    fleet.observe(&[LoadEvent::new("a".into(), 0).kv_used_blocks(99)]);
    let view = fleet.worker("a").unwrap();
    assert!(view.models.iter().all(|model| model.marks.has(Mark::Busy)));
    assert!(matches!(request(&fleet, "sql").await, Answer::Overloaded));
    let adapter = fleet.thresholds().get("sql").unwrap();
    assert_eq!(adapter.get(), thresholds.get());
}

#[tokio::test]
async fn a_model_that_a_worker_serves_no_more_gets_none_of_its_requests() {
    let fleet = fleet();
    let both = serving(["tiny", "large"]);
    fleet.register("a", both, Origin::Static).unwrap();
    fleet
        .register("a", serving(["tiny"]), Origin::Static)
        .unwrap();
    assert!(goes_to(&fleet, "tiny").await.is_some());
    assert!(matches!(
        request(&fleet, "large").await,
        Answer::Unavailable
    ));
    let members = fleet.model("large").unwrap();
    assert_eq!(members.members().alive(), 0);
}

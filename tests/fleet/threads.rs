//! Many say something of the same workers at once.

use crate::support::*;
use std::thread;
use tower_overload::{
    busy::Mark,
    fleet::{Origin, Registration, WorkerUpdate},
    load::LoadEvent,
};

const ROUNDS: u16 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_word_on_a_worker_holds_in_all_its_parts() {
    let Setup {
        fleet,
        monitor,
        tracker,
    } = setup(|builder| builder.default_model("tiny"));
    let runtime = tokio::runtime::Handle::current();
    let says = |which: u16| {
        let (fleet, runtime) = (fleet.clone(), runtime.clone());
        move || {
            // New models have tasks.
            let _runtime = runtime.enter();
            for round in 0..ROUNDS {
                let port = 1 + (which + round) % 3;
                let worker = Registration::at(format!("http://worker:{port}"));
                let model = ["tiny", "large"][usize::from(round % 2)];
                match (which + round) % 6 {
                    0 | 1 => {
                        let worker = worker.models([model]).lora("sql", model);
                        fleet.register("a", worker, Origin::source("one")).unwrap();
                    }
                    2 => drop(fleet.leave("a", &Origin::source("one"))),
                    3 => drop(fleet.drain("a", round % 4 == 0)),
                    4 => {
                        let update = WorkerUpdate::new().url(format!("http://worker:{port}"));
                        drop(fleet.patch("a", update));
                    }
                    _ => {
                        fleet.observe(&[LoadEvent::new("a".into(), 0).kv_used_blocks(1)]);
                        drop(fleet.workers());
                    }
                }
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|which| thread::spawn(says(which))).collect();
    let mut running = Vec::new();
    while threads.iter().any(|thread| !thread.is_finished()) {
        if let Answer::From(_, request) = request(&fleet, "tiny").await {
            running.push(request);
        }
        running.truncate(20);
        tokio::task::yield_now().await;
    }
    for thread in threads {
        thread.join().unwrap();
    }

    let last = Registration::at("http://worker:9").models(["tiny"]);
    fleet.register("a", last, Origin::source("one")).unwrap();
    let view = fleet.drain("a", false).unwrap();
    assert!(view.is_eligible(), "{view:?}");
    assert_eq!(goes_to(&fleet, "tiny").await.unwrap(), "http://worker:9/");
    for model in ["large", "sql"] {
        if let Some(model) = fleet.model(model) {
            assert!(!model.set().marks(&"a".into()).has(Mark::Draining));
            assert!(matches!(
                request(&fleet, model.name()).await,
                Answer::Unavailable
            ));
        }
    }

    fleet.remove("a");
    drop(running);
    assert!(monitor.worker(&"a".into()).is_none());
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), 0);
    for model in fleet.models() {
        assert!(
            model.set().snapshot().is_empty(),
            "{:?}",
            model.set().snapshot()
        );
        assert!(matches!(
            request(&fleet, model.name()).await,
            Answer::Unavailable
        ));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_that_give_way_to_each_other_leave_nothing_behind() {
    let status = tower_overload::OverloadStatusLayer::new();
    let known = status.models().clone();
    let Setup { fleet, .. } = setup(|builder| builder.max_models(3).known_models(known.clone()));
    let runtime = tokio::runtime::Handle::current();
    let says = |which: u16| {
        let (fleet, runtime) = (fleet.clone(), runtime.clone());
        move || {
            let _runtime = runtime.enter();
            for round in 0..ROUNDS {
                let id = format!("w{}", which % 3);
                let model = format!("m{}", (round * 7 + which) % 6);
                let worker = Registration::at("http://worker:1").models([model]);
                drop(fleet.register(&id, worker, Origin::Static));
                if round % 3 == 0 {
                    fleet.remove(&id);
                }
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|which| thread::spawn(says(which))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for id in ["w0", "w1", "w2"] {
        fleet.remove(id);
    }
    assert!(fleet.models().len() <= 3);
    for n in 0..6 {
        let name = format!("m{n}");
        let is_there = fleet.model(&name).is_some();
        assert!(
            is_there || !known.contains(&name),
            "{name} is still counted"
        );
        assert!(
            is_there || fleet.thresholds().get(&name).is_none(),
            "{name} is still judged"
        );
    }
    for n in 0..3 {
        let model = format!("new{n}");
        let worker = Registration::at(format!("http://worker:{}", n + 1)).models([model.clone()]);
        fleet
            .register(&format!("w{n}"), worker, Origin::Static)
            .unwrap();
        assert!(known.contains(&model) && fleet.thresholds().get(&model).is_some());
        assert!(goes_to(&fleet, &model).await.is_some());
    }
}

use futures::future::join_all;
use std::{
    convert::Infallible,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_overload::{ServiceOverloaded, admission::EngineAdmissionLayer};

/// A generator of numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Counts those that are inside.
struct Inside(Arc<AtomicUsize>);

impl Inside {
    fn enter(inside: &Arc<AtomicUsize>, limit: usize) -> Self {
        assert!(
            inside.fetch_add(1, SeqCst) < limit,
            "more inside than may be"
        );
        Self(inside.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_every_burst_exactly_n_plus_q_are_accepted_and_never_more_than_n_inside() {
    const THREADS: usize = 4;
    for (slots, queue) in [
        (1, 0),
        (1, 1),
        (1, 7),
        (2, 3),
        (3, 0),
        (4, 16),
        (16, 4),
        (31, 33),
    ] {
        let inside = Arc::new(AtomicUsize::new(0));
        let finish = Arc::new(Semaphore::new(0));
        let layer = EngineAdmissionLayer::new(slots, queue)
            .unwrap()
            .until_response();
        let worker = layer.layer(service_fn({
            let (inside, finish) = (inside.clone(), finish.clone());
            move |_: usize| {
                let guard = Inside::enter(&inside, slots);
                let finish = finish.clone();
                async move {
                    finish.acquire().await.unwrap().forget();
                    drop(guard);
                    Ok::<_, Infallible>(())
                }
            }
        }));

        for _ in 0..20 {
            let burst = slots + queue + 13;
            let barrier = Arc::new(Barrier::new(THREADS));
            let callers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (mut worker, barrier) = (worker.clone(), barrier.clone());
                    let runtime = tokio::runtime::Handle::current();
                    std::thread::spawn(move || {
                        let mine = (thread..burst).step_by(THREADS);
                        barrier.wait();
                        // Each call is under way while the others are made.
                        mine.map(|n| runtime.spawn(worker.call(n)))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            let calls: Vec<_> = callers
                .into_iter()
                .flat_map(|caller| caller.join().unwrap())
                .collect();
            assert_eq!(calls.len(), burst);
            finish.add_permits(slots + queue);
            let mut accepted = 0;
            for answer in join_all(calls).await {
                match answer.unwrap() {
                    Ok(()) => accepted += 1,
                    Err(error) => assert!(ServiceOverloaded::find_in(&*error).is_some()),
                }
            }
            assert_eq!(accepted, slots + queue, "of {slots} + {queue}");
            let now = layer.handle().unwrap().snapshot();
            assert_eq!((now.in_engine, now.queued, inside.load(SeqCst)), (0, 0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_cancelled_at_any_time_leave_nothing_behind() {
    const TASKS: u64 = 8;
    const REQUESTS: u64 = 12_500;
    let slots = 3;
    let inside = Arc::new(AtomicUsize::new(0));
    let layer = EngineAdmissionLayer::new(slots, 5)
        .unwrap()
        .with_first_token_limit(2)
        .unwrap()
        .until_response();
    let handle = layer.handle().unwrap();
    let engine = service_fn({
        let inside = inside.clone();
        move |turns: u64| {
            let guard = Inside::enter(&inside, slots);
            async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                drop(guard);
                Ok::<_, Infallible>(())
            }
        }
    });
    let worker = layer.layer(engine.clone());
    let parked = layer.backpressure().layer(engine);

    let limits = tokio::spawn({
        let handle = handle.clone();
        async move {
            let mut numbers = Numbers(99);
            loop {
                handle.set_slots(1 + numbers.below(3) as usize).unwrap();
                handle.set_queue_limit(numbers.below(6) as usize).unwrap();
                let limit = numbers.below(3) as usize;
                handle
                    .set_first_token_limit((limit > 0).then_some(limit))
                    .unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    let tasks = (1..=TASKS).map(|seed| {
        let (mut worker, parked) = (worker.clone(), parked.clone());
        tokio::spawn(async move {
            let mut numbers = Numbers(seed);
            for _ in 0..REQUESTS {
                let turns = numbers.below(3);
                let polls = numbers.below(6);
                if numbers.below(2) == 0 {
                    give_up_after(polls, worker.call(turns)).await;
                } else {
                    give_up_after(polls, parked.clone().oneshot(turns)).await;
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    limits.abort();
    let _ = limits.await;

    let now = handle.snapshot();
    assert_eq!(
        (now.in_engine, now.queued, now.awaiting_first_token),
        (0, 0, 0)
    );
    assert_eq!(inside.load(SeqCst), 0);
    // Every slot can be used again.
    handle.set_slots(slots).unwrap();
    handle.set_queue_limit(0).unwrap();
    handle.set_first_token_limit(None).unwrap();
    let mut worker = worker.clone();
    let calls: Vec<_> = (0..slots).map(|_| worker.call(0)).collect();
    assert_eq!(handle.snapshot().in_engine, slots);
    for call in join_all(calls).await {
        call.unwrap();
    }
}

/// Polls at most so often, and drops what is not done by then.
async fn give_up_after<F: Future>(polls: u64, future: F) {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        let poll = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if poll.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_sleeps_while_a_slot_is_free() {
    let layer = EngineAdmissionLayer::new(2, 64).unwrap().until_response();
    let worker = layer.layer(service_fn(async |_: u64| {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(())
    }));
    let tasks = (0..32).map(|seed| {
        let mut worker = worker.clone();
        tokio::spawn(async move {
            let mut numbers = Numbers(seed + 1);
            for n in 0..500 {
                if numbers.below(4) == 0 {
                    give_up_after(numbers.below(4), worker.call(n)).await;
                } else {
                    worker.call(n).await.unwrap();
                }
            }
        })
    });
    let all = join_all(tasks);
    // A lost wake would leave a request waiting for ever.
    let done = tokio::time::timeout(Duration::from_secs(300), all).await;
    for task in done.expect("a request waits for ever") {
        task.unwrap();
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut worker = worker.clone();
    assert!(Service::<u64>::poll_ready(&mut worker, &mut cx).is_ready());
    assert_eq!(layer.handle().unwrap().snapshot().in_engine, 0);
}

//! Keeps room for interactive requests while batch jobs fill the rest of the
//! engine, with two gates, one inside the other.
//!
//! All requests pass the gate of the engine, whose queue is in the order of
//! arrival. Batch requests pass one of their own before: of four slots they never
//! have more than two, and those that wait for one of those stand in nobody's way.
//! Where waiting is worse than being refused, a request says `x-no-queue`.
//!
//! ```console
//! $ cargo run --example priorities
//! ```

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::{convert::Infallible, task::Poll};
use tower::{Layer, Service, service_fn};
use tower_overload::{
    BoxError, EngineAdmissionLayer, OverloadReason, ServiceOverloaded,
    admission::{AdmissionHandle, Snapshot},
};

async fn engine(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("tokens")))
}

/// In the engine, and waiting.
fn counts(gate: &AdmissionHandle) -> (usize, usize) {
    let Snapshot {
        in_engine, queued, ..
    } = gate.snapshot();
    (in_engine, queued)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let of_engine = EngineAdmissionLayer::new(4, 8)?
        .no_queue_when(|request: &Request<()>| request.headers().contains_key("x-no-queue"));
    let of_batch = EngineAdmissionLayer::new(2, 1000)?;
    let engine_gate = of_engine.handle().ok_or("it has a limit")?;
    let batch_gate = of_batch.handle().ok_or("it has a limit")?;
    // Services of one layer share its gate.
    let mut interactive = of_engine.layer(service_fn(engine));
    let mut batch = of_batch.layer(of_engine.layer(service_fn(engine)));

    // A place is taken in `call`, and held until the response is read or dropped.
    let jobs = [(); 3].map(|()| batch.call(Request::new(())));
    let [first_job, second_job, third_job] = jobs;
    let (first_job, second_job) = (first_job.await?, second_job.await?);
    let mut third_job = tokio_test::task::spawn(third_job);
    assert!(third_job.poll().is_pending());
    println!("of three batch jobs: {:?}", counts(&batch_gate));
    assert_eq!(
        (counts(&batch_gate), counts(&engine_gate)),
        ((2, 1), (2, 0))
    );

    let mut chats = Vec::new();
    for _ in 0..2 {
        chats.push(interactive.call(Request::new(())).await?);
    }
    assert_eq!(counts(&engine_gate), (4, 0), "there was room");

    let hurried = Request::get("/").header("x-no-queue", "true").body(())?;
    let refused = interactive
        .call(hurried)
        .await
        .err()
        .ok_or("all slots are in use")?;
    let overloaded = ServiceOverloaded::find_in(&*refused).ok_or("it is the gate's")?;
    assert_eq!(overloaded.reason(), OverloadReason::WorkerAtCapacity);
    println!("x-no-queue: {refused}");

    let mut waiting = tokio_test::task::spawn(interactive.call(Request::new(())));
    assert!(waiting.poll().is_pending());
    assert_eq!(counts(&engine_gate), (4, 1));

    // The place of a job goes to the chat that waits, and the next job waits
    // behind it, although it came first.
    drop(first_job);
    assert!(third_job.poll().is_pending());
    let Poll::Ready(chat) = waiting.poll() else {
        return Err("the chat has the slot".into());
    };
    chats.push(chat?);
    assert_eq!(
        (counts(&batch_gate), counts(&engine_gate)),
        ((2, 0), (4, 1))
    );

    chats.clear();
    let Poll::Ready(third_job) = third_job.poll() else {
        return Err("the job has a slot".into());
    };
    drop((second_job, third_job?));
    assert_eq!(
        (counts(&batch_gate), counts(&engine_gate)),
        ((0, 0), (0, 0))
    );
    println!("all are served");
    Ok(())
}

//! Clients: some wait for the whole answer, some go away before.

use crate::{
    serving::{Client, prompt},
    support::{COMPLETIONS, JSON},
};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use proptest::{prelude::RngCore, test_runner::TestRng};
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// How the requests of a round ended.
#[derive(Debug, Default)]
pub struct Answers {
    /// Served to the last event.
    served: u32,
    /// 529.
    overloaded: u32,
    /// 503: for a moment there was no worker.
    unavailable: u32,
    /// 502, or an answer that broke off: its worker was killed.
    cut: u32,
    /// What a sick worker said, or that it said nothing in time.
    failed: u32,
    /// The client went away.
    left: u32,
}

enum Answer {
    Served,
    Overloaded,
    Unavailable,
    Cut,
    Failed,
    Left,
}

impl Answers {
    fn add(&mut self, answer: Answer) {
        *match answer {
            Answer::Served => &mut self.served,
            Answer::Overloaded => &mut self.overloaded,
            Answer::Unavailable => &mut self.unavailable,
            Answer::Cut => &mut self.cut,
            Answer::Failed => &mut self.failed,
            Answer::Left => &mut self.left,
        } += 1;
    }

    /// Every request was answered, and the load was what it should be: more
    /// than can be served, of which some was.
    pub fn assert_plausible(&self, offered: u32) {
        let Self {
            served,
            overloaded,
            unavailable,
            cut,
            failed,
            left,
        } = *self;
        let all = served + overloaded + unavailable + cut + failed + left;
        assert_eq!(all, offered, "{self:?}");
        assert!(served > 0 && overloaded > served && left > 0, "{self:?}");
        assert!(
            cut < offered / 8,
            "a killed worker has 8 requests at most: {self:?}"
        );
        assert!(
            failed < offered / 3,
            "two of six are sick at times: {self:?}"
        );
    }
}

/// Longer than any request takes that is not forgotten.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Offers requests at a steady rate, and waits until each has ended.
pub async fn offer(client: Client, rate: u32, time: Duration, mut random: TestRng) -> Answers {
    let mut requests = JoinSet::new();
    let start = Instant::now();
    for n in 0..rate * time.as_secs() as u32 {
        sleep_until(start + n * Duration::from_secs(1) / rate).await;
        let leaves = random.next_u32() % 5 == 0;
        let leaves_after =
            leaves.then(|| Duration::from_micros(u64::from(random.next_u32() % 1_200_000)));
        let client = client.clone();
        requests.spawn(async move {
            let answer = timeout(ANSWER_WITHIN, request(&client));
            match leaves_after {
                None => answer.await.expect("a request was not answered"),
                Some(patience) => tokio::select! {
                    answer = answer => answer.expect("a request was not answered"),
                    () = sleep(patience) => Answer::Left,
                },
            }
        });
    }
    let mut answers = Answers::default();
    while let Some(answer) = requests.join_next().await {
        answers.add(answer.unwrap());
    }
    answers
}

/// Eight tokens at ten a second.
async fn request(client: &Client) -> Answer {
    let body = prompt(8).to_string();
    let sent = client.send(Method::POST, COMPLETIONS, JSON, body).await;
    // The worker was killed before the gateway had sent the head on.
    let Ok(response) = sent else {
        return Answer::Cut;
    };
    let status = response.status();
    let Ok(body) = response.into_body().collect().await else {
        return Answer::Cut;
    };
    let body = body.to_bytes();
    match status.as_u16() {
        529 => Answer::Overloaded,
        503 => Answer::Unavailable,
        502 => Answer::Cut,
        500 => Answer::Failed,
        _ if status != StatusCode::OK => panic!("{status}: {body:?}"),
        _ if contains(&body, b"\"error\"") => Answer::Failed,
        _ if body.ends_with(b"data: [DONE]\n\n") => Answer::Served,
        _ => panic!("an answer ended early: {body:?}"),
    }
}

fn contains(body: &[u8], what: &[u8]) -> bool {
    body.windows(what.len()).any(|window| window == what)
}

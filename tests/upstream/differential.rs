//! What two well-kept proxies make of a message, and what is made of it here:
//! where both agree, this one has to agree with them.

use crate::{
    proxies::{Programs, Proxy},
    support::Gateway,
    wire::{Message, Role, read},
};
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tower_overload::upstream::{
    HttpWorkerBuilder,
    forward::{Forwarding, XForwarded},
};

/// How many requests and answers are generated.
const CASES: u64 = 1_000;

/// Numbers that are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    fn some<'a>(&mut self, choices: &[&'a str], most: u64) -> Vec<&'a str> {
        (0..self.next() % (most + 1))
            .map(|_| self.of(choices))
            .collect()
    }
}

struct Case {
    method: &'static str,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// A body and what frames it; chunks are right as a rule.
fn framed(random: &mut Random, response: bool) -> (String, String) {
    let body = random.of(&["", "a", "hello", "0\r\n\r\n", "{\"model\":\"tiny\"}"]);
    let long = "x".repeat(20_000);
    let body = if random.next() % 20 == 0 { &long } else { body };
    let length = body.len();
    let chunks = match body.len() {
        0 => String::new(),
        1 => format!("1\r\n{body}\r\n"),
        n => format!(
            "{:x};a=b\r\n{}\r\n1\r\n{}\r\n",
            n - 1,
            &body[..n - 1],
            &body[n - 1..]
        ),
    };
    let chunked = format!("{chunks}0\r\n\r\n");
    let own = |text: &str| text.to_owned();
    match random.next() % 16 {
        0..=3 => (format!("Content-Length: {length}\r\n"), own(body)),
        4..=6 => (own("Transfer-Encoding: chunked\r\n"), chunked),
        7 => (own("Transfer-Encoding: Chunked\r\n"), chunked),
        8 => (
            format!("content-length: {length}\r\nContent-Length: {length}\r\n"),
            own(body),
        ),
        9 => (
            format!(
                "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n",
                length + 1
            ),
            chunked,
        ),
        10 => (
            own("Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n"),
            format!("{chunks}0\r\nX-Sum: 1\r\n\r\n"),
        ),
        11 => (
            format!(
                "Content-Length: {length}\r\nContent-Length: {}\r\n",
                length + 1
            ),
            own(body),
        ),
        12 => (format!("Content-Length: +{length}\r\n"), own(body)),
        13 if response => (format!("Content-Length: {}\r\n", length + 3), own(body)),
        14 if response => (own("Transfer-Encoding: chunked\r\n"), chunks),
        15 if response => (String::new(), own(body)),
        _ => (String::new(), String::new()),
    }
}

const HEADERS: &[&str] = &[
    "X-A: b",
    "x-a: c",
    "X-Empty:",
    "X-Spaces:  \t a  b \t ",
    "Accept: */*",
    "Accept-Encoding: gzip",
    "Authorization: Bearer key",
    "Cookie: a=1",
    "Cookie: b=2; c=3",
    "Content-Type: application/json",
    "Cache-Control: no-cache",
    "Range: bytes=0-1",
    "If-None-Match: \"x\"",
    "User-Agent: test",
    "X-Forwarded-For: 203.0.113.7",
    "Via: 1.1 edge",
    "Referer: http://a/b?c",
    "Origin: null",
    "X-Latin: \u{e9}",
    "X_Underscore: 1",
    "Keep-Alive: timeout=5",
    "Connection: keep-alive",
    "Upgrade: websocket",
    "Host: other",
    "Set-Cookie: a=1; Path=/",
    "Set-Cookie: b=2",
    "ETag: \"x\"",
    "Vary: Accept",
    "Location: /elsewhere",
    "Retry-After: 7",
    "WWW-Authenticate: Basic",
    "Link: </a>; rel=preload",
];

fn case(n: u64) -> Case {
    let mut random = Random(n);
    let method = random.of(&[
        "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CUSTOM",
    ]);
    let target = random.of(&[
        "/",
        "/v1/models",
        "/v1/chat/completions?a=b&c=%20",
        "/%41%2f%3f",
        "/a//b/",
        "/a;b=c",
        "/?",
        "/a%zz",
        "/a|b^{c}",
        "/~a'(b)*!$,:@",
    ]);
    let (framing, body) = match method {
        "GET" | "HEAD" | "DELETE" | "OPTIONS" if random.next() % 4 > 0 => Default::default(),
        _ => framed(&mut random, false),
    };
    let headers = random.some(HEADERS, 5).join("\r\n");
    let headers = if headers.is_empty() {
        headers
    } else {
        headers + "\r\n"
    };
    let request = format!("{method} {target} HTTP/1.1\r\nHost: g\r\n{headers}{framing}\r\n{body}");

    let status = random.of(&[
        200, 200, 200, 201, 204, 206, 302, 304, 400, 404, 413, 429, 500, 503, 529,
    ]);
    let version = random.next() % 5;
    // Informational responses are left out: nginx 1.22 takes one for the answer.
    let (framing, body) = framed(&mut random, true);
    let body = match method == "HEAD" || matches!(status, 204 | 304) {
        true => String::new(),
        false => body,
    };
    // Both take chunks in HTTP/1.0, which is a framing that is faulty (RFC 9112,
    // 6.1).
    let version = match version {
        0 if !framing.contains("Transfer-Encoding") => "1.0",
        _ => "1.1",
    };
    let headers = random.some(HEADERS, 5).join("\r\n");
    let headers = if headers.is_empty() {
        headers
    } else {
        headers + "\r\n"
    };
    let answer = format!("HTTP/{version} {status} Some Reason\r\n{headers}{framing}\r\n{body}");
    Case {
        method,
        request: request.chars().map(|it| it as u8).collect(),
        answer: answer.chars().map(|it| it as u8).collect(),
    }
}

/// A worker that gives the next answer, and keeps what it was asked.
#[derive(Clone)]
struct Worker {
    address: SocketAddr,
    next: Arc<Mutex<Vec<u8>>>,
    asked: Arc<Mutex<Vec<Message>>>,
}

impl Worker {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let worker = Self {
            address: listener.local_addr().unwrap(),
            next: Arc::default(),
            asked: Arc::default(),
        };
        let serving = worker.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let serving = serving.clone();
                tokio::spawn(async move {
                    let Some(asked) = read(&mut stream, Role::Request).await else {
                        return;
                    };
                    let whole = asked.whole;
                    serving.asked.lock().unwrap().push(asked);
                    if whole {
                        let answer = serving.next.lock().unwrap().clone();
                        let _ = stream.write_all(&answer).await;
                    }
                });
            }
        });
        worker
    }
}

/// What came of a case, in the aspects that are compared.
type Outcome = BTreeMap<&'static str, String>;

/// What every proxy says of itself, or does not; and `Upgrade`, which both pass
/// on where nothing is upgraded, although it is for one hop (RFC 9110, 7.8).
const THEIR_OWN: &[&str] = &[
    "connection",
    "host",
    "date",
    "server",
    "keep-alive",
    "upgrade",
];

fn end_to_end(message: &Message) -> BTreeMap<&String, Vec<String>> {
    let headers = message.headers.iter();
    let headers = headers.filter(|(name, _)| !THEIR_OWN.contains(&name.as_str()));
    headers
        // The server of the gateway takes it from an answer without a body.
        .filter(|(name, _)| *name != "trailer" || !message.body.is_empty())
        // How it is framed shows in the body, and is for each hop to choose.
        .filter(|(name, _)| !matches!(name.as_str(), "content-length" | "transfer-encoding"))
        .map(|(name, values)| (name, values.clone()))
        .collect()
}

async fn outcome(name: &str, proxy: SocketAddr, worker: &Worker, case: &Case) -> Outcome {
    *worker.next.lock().unwrap() = case.answer.clone();
    worker.asked.lock().unwrap().clear();
    let mut client = TcpStream::connect(proxy).await.unwrap();
    client.write_all(&case.request).await.unwrap();
    let role = if case.method == "HEAD" {
        Role::Bodiless
    } else {
        Role::Response
    };
    let answer = timeout(Duration::from_secs(5), read(&mut client, role)).await;
    let answer = answer.unwrap_or_else(|_| {
        let request = String::from_utf8_lossy(&case.request);
        panic!(
            "{name}: no end of {:?} to {request:?}",
            String::from_utf8_lossy(&case.answer)
        )
    });
    let asked = worker.asked.lock().unwrap().clone();
    let mut outcome = Outcome::new();
    outcome.insert("times asked", asked.len().to_string());
    if let Some(asked) = asked.first() {
        outcome.insert("asked for", asked.start.join(" "));
        outcome.insert("asked with headers", format!("{:?}", end_to_end(asked)));
        outcome.insert(
            "asked with body",
            String::from_utf8_lossy(&asked.body).into_owned(),
        );
        outcome.insert("asked in whole", asked.whole.to_string());
    }
    // Whether the head of an answer that is cut goes before the cut is a matter
    // of when the server of the gateway writes it.
    let answer = answer.filter(|answer| answer.whole);
    outcome.insert("answered in whole", answer.is_some().to_string());
    if let Some(answer) = &answer {
        outcome.insert("status", answer.start[1].clone());
        // What a proxy answers itself is in words of its own.
        let own = asked.is_empty() || matches!(&*answer.start[1], "400" | "502");
        if !own {
            outcome.insert("answer's headers", format!("{:?}", end_to_end(answer)));
            outcome.insert(
                "answer's body",
                String::from_utf8_lossy(&answer.body).into_owned(),
            );
            let length = answer.headers.get("content-length");
            if case.method == "HEAD" {
                outcome.insert("length of a body that is not there", format!("{length:?}"));
            }
        }
    }
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nginx_and_haproxy_agree_this_does_too() {
    let Some(programs) = Programs::find() else {
        return;
    };
    let workers = [
        Worker::start().await,
        Worker::start().await,
        Worker::start().await,
    ];
    let nginx = Proxy::nginx(&programs, workers[0].address).await;
    let haproxy = Proxy::haproxy(&programs, workers[1].address).await;
    let rules = Forwarding::new()
        .without_via()
        .x_forwarded(XForwarded::Pass);
    let builder = HttpWorkerBuilder::new()
        .forwarding(rules)
        .idle_limit(Duration::ZERO);
    let worker = builder
        .build(&format!("http://{}", workers[2].address))
        .unwrap();
    let gateway = Gateway::before(worker).await;
    let (mut agreed, mut wrong) = (0, HashMap::<_, Vec<_>>::new());
    for n in 0..CASES {
        let case = case(n);
        let theirs = outcome("nginx", nginx.address, &workers[0], &case).await;
        let others = outcome("haproxy", haproxy.address, &workers[1], &case).await;
        let ours = outcome("here", gateway.address, &workers[2], &case).await;
        for (aspect, theirs) in &theirs {
            if others.get(aspect) != Some(theirs) {
                continue;
            }
            agreed += 1;
            if ours.get(aspect) != Some(theirs) {
                let (request, answer) = (
                    String::from_utf8_lossy(&case.request).into_owned(),
                    String::from_utf8_lossy(&case.answer).into_owned(),
                );
                wrong.entry(*aspect).or_default().push(format!(
                    "case {n}, {aspect}:\n  both {theirs}\n  here {:?}\n{request:?}\n{answer:?}\n{ours:?}",
                    ours.get(aspect)
                ));
            }
        }
    }
    println!("{agreed} aspects of {CASES} cases on which both agree");
    for (aspect, cases) in &wrong {
        println!("{} times wrong: {aspect}", cases.len());
        for case in cases.iter().take(3) {
            println!("{case}");
        }
    }
    assert!(wrong.is_empty(), "it differs where both agree");
    assert!(agreed > CASES, "they agree on little: {agreed}");
}

//! The examples as processes, over NATS.

use crate::{
    eventually::eventually,
    process::{Process, example, refusal},
    serving::{Client, events, prompt, text, value},
    support::{Server, with_server},
};
use serde_json::Value;
use tokio::process::Command;

const PORT: [&str; 2] = ["--listen", "127.0.0.1:0"];

struct Started {
    _process: Process,
    public: Client,
    admin: Client,
}

async fn gateway(server: &Server) -> Started {
    let mut command = example("gateway");
    command
        .args(PORT)
        .args(["--admin-listen", "127.0.0.1:0", "--nats", &server.url()]);
    let mut process = Process::start(&mut command);
    let mut url = async |what| {
        let line = process.line().await;
        Client::new(line.strip_prefix(what).expect(&line))
    };
    Started {
        public: url("listening on ").await,
        admin: url("admin listening on ").await,
        _process: process,
    }
}

async fn worker(server: &Server, flags: &[&str]) -> Process {
    let mut command: Command = example("worker");
    command
        .args(PORT)
        .args(["--nats", &server.url()])
        .args(flags);
    let mut process = Process::start(&mut command);
    process.line().await;
    process
}

impl Started {
    async fn ids(&self) -> Vec<Value> {
        let workers = value(self.admin.get("/workers").await).await;
        let workers = workers["workers"].as_array().unwrap().iter();
        workers.map(|worker| worker["id"].clone()).collect()
    }
}

#[test]
fn a_gateway_starts_and_answers_without_a_server_and_knows_the_fleet_with_one() {
    with_server(async |mut server, _| {
        server.kill().await;
        let gateway = gateway(&server).await;
        let flags = ["--id", "goes", "--nats-ttl-ms", "3600000"];
        let goes = worker(&server, &flags).await;
        let flags = ["--id", "dies", "--nats-ttl-ms", "300"];
        let dies = worker(&server, &flags).await;
        let answer = gateway.public.post("/v1/completions", &prompt(1)).await;
        assert_eq!(answer.status().as_u16(), 503);

        server.start_again();
        eventually("both join", async || {
            gateway.ids().await == ["dies", "goes"]
        })
        .await;
        let body = text(gateway.public.start(2).await).await;
        assert_eq!(events(&body).last(), Some(&"[DONE]"));

        // Killed, it is gone when its time is over; asked to stop, it says so.
        drop(dies);
        eventually("one is gone", async || gateway.ids().await == ["goes"]).await;
        #[cfg(unix)]
        {
            goes.terminate();
            assert_eq!(goes.code().await, Some(0));
            eventually("it said so", async || gateway.ids().await.is_empty()).await;
        }
    });
}

#[tokio::test]
async fn a_bad_option_is_named_with_its_value_and_what_is_allowed() {
    for program in ["gateway", "worker"] {
        for bad in [
            "",
            "http://127.0.0.1:4222",
            "nats://",
            "nats://a,",
            "127.0.0.1:4222",
        ] {
            let error = refusal(example(program).args(["--nats", bad])).await;
            for part in ["--nats", &format!("'{bad}'"), "nats://HOST:PORT"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
    let error = refusal(example("worker").args(["--nats-ttl-ms", "99"])).await;
    for part in ["--nats-ttl-ms", "'99'", "from 100 to 3600000"] {
        assert!(error.contains(part), "{error}");
    }
    let both = ["--nats", "nats://a", "--register", "http://a"];
    let error = refusal(example("worker").args(both)).await;
    assert!(
        error.contains("--nats") && error.contains("--register"),
        "{error}"
    );
}

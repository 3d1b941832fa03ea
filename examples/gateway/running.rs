//! A gateway that runs in a process: the example's own, or that of a test.

use super::{Fleet, GatewayConfig, admin::router, fleet, front, metrics::Metrics, sources, worker};
use axum::{Router, body::Body};
use http::{Response, Uri};
use overload_examples::{
    serve::{Server, listen},
    worker::{Worker, WorkerConfig},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceBuilder;
use tower_overload::{
    front::FrontBody,
    upstream::forward::{Forwarding, XForwarded},
};

/// A gateway that runs in the background.
///
/// Dropping it is its sudden death; [`drain`](Gateway::drain) is the end in
/// good order.
#[derive(Debug)]
pub struct Gateway {
    public: Server,
    admin: Server,
    embedded: Vec<Worker>,
    /// Ends with the gateway.
    _upkeep: JoinSet<()>,
}

/// An embedded worker that has not registered after this long never will.
const EMBEDDED_WITHIN: Duration = Duration::from_secs(10);

impl Gateway {
    /// Listens and serves; the embedded workers have registered by then.
    ///
    /// # Errors
    ///
    /// If an address cannot be listened on, or something of the configuration
    /// cannot be used.
    pub async fn start(config: GatewayConfig) -> io::Result<Self> {
        let public = listen(config.listen).await?;
        let admin = listen(config.admin_listen).await?;
        Self::on(public, admin, config).await
    }

    /// As [`start`](Self::start), on listeners that are there already: those
    /// of the configuration do not matter.
    ///
    /// # Errors
    ///
    /// If something of the configuration cannot be used.
    pub async fn on(
        public: TcpListener,
        admin: TcpListener,
        config: GatewayConfig,
    ) -> io::Result<Self> {
        let metrics = Metrics::new(config.stale_after);
        let tracker = config.tracks_load().then(|| {
            let tracker = worker::tracker(metrics.monitor());
            match config.router_track_output_blocks {
                true => tracker.track_output_blocks(config.router_block_size),
                false => tracker,
            }
        });
        let tracker = tracker.as_ref();
        // Who the client is, is for the proxy before this one to say.
        let forwarding = Forwarding::new().x_forwarded(XForwarded::Pass);
        let fleet = fleet(&config, &metrics, tracker, &forwarding)?;
        let mut upkeep = sources(&config, &metrics, tracker, &fleet).await?;
        let small = metrics.clone().keep_small();
        upkeep.spawn(async { match small.await {} });

        let admin = Server::on(admin, router(fleet.clone(), metrics))?;
        let embedded = embedded(&config, admin.address(), &fleet).await?;
        let front = ServiceBuilder::new()
            .map_response(|response: Response<FrontBody<Body>>| {
                response.map(|body| body.either(Body::new, |body| body))
            })
            .service(front(&config, &forwarding, &fleet));
        let mut app = Router::new().fallback_service(front);
        if let Some(observer) = config.observer {
            app = observer.watch(app);
        }
        Ok(Self {
            public: Server::with_idle_limit(public, app, config.client_idle)?,
            admin,
            embedded,
            _upkeep: upkeep,
        })
    }

    /// The address for clients, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.public.address()
    }

    /// Where clients reach it.
    pub fn url(&self) -> Uri {
        url_of(self.address())
    }

    /// Where operators and workers reach it.
    pub fn admin_url(&self) -> Uri {
        url_of(self.admin_address())
    }

    /// The address for operators and workers, with the real port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// The workers in this process.
    pub fn embedded(&self) -> &[Worker] {
        &self.embedded
    }

    /// Takes no new request, and completes when the last one has ended.
    ///
    /// Cancelling it cuts what is left.
    pub async fn drain(self) {
        self.public.drain().await;
        for worker in self.embedded {
            worker.drain().await;
        }
        self.admin.drain().await;
    }
}

/// The workers in this process, when all of them are in the fleet.
async fn embedded(
    config: &GatewayConfig,
    admin: SocketAddr,
    fleet: &Fleet,
) -> io::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for id in config.embedded_ids() {
        let worker = WorkerConfig {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            id: Some(id),
            model: config.model.clone(),
            register: Some(url_of(admin)),
            advertise: None,
            ..config.embedded.clone()
        };
        workers.push(Worker::start(worker).await?);
    }
    let registered = async {
        while !workers.iter().all(|worker| fleet.knows(worker.id())) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(EMBEDDED_WITHIN, registered)
        .await
        .map_err(|_| io::Error::other("the embedded workers do not register"))?;
    Ok(workers)
}

fn url_of(address: SocketAddr) -> Uri {
    Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/")
        .build()
        .expect("an address and a port are an authority")
}

//! Workers that come over NATS.

use crate::support::*;
use tower_overload::nats::FleetSource;

#[tokio::test]
async fn following_ends_with_the_fleet_though_nobody_says_anything() {
    let fleet = fleet();
    // Nobody listens there.
    let client = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let client = client.connect("nats://127.0.0.1:1").await.unwrap();
    let following = tokio::spawn(fleet.follow(FleetSource::subscribe(&client)));
    settled().await;
    assert!(!following.is_finished());
    drop(fleet);
    settled().await;
    assert!(following.is_finished());
}

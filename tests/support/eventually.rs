//! Waiting for what other tasks bring about.

use std::time::Duration;

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let held = tokio::time::timeout(Duration::from_secs(60), holds).await;
    assert!(held.is_ok(), "it should be that {what}");
}

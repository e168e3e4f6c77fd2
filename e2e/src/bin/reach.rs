//! Reaches the cluster of `KUBECONFIG` in one of the crate's ways: `reach scenario|client_as|kubectl|script`. `tests/local/context.rs`
//! runs it to see which clusters get requests.

#[tokio::main(flavor = "current_thread")]
async fn main() {
    match std::env::args().nth(1).unwrap_or_default().as_str() {
        "scenario" => drop(e2e::scenario("context", &[]).await),
        "client_as" => drop(e2e::rights::rules("default", "default", "default").await),
        "kubectl" => drop(e2e::kubectl::kubectl(&["get", "pods"])),
        "script" => drop(e2e::command::run("sh", &["-c", "kubectl get pods"], "")),
        other => panic!("there is no way {other:?}"),
    }
}

//! What a client without credentials, or whoever may create pods, can send.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::ORDINARY_POD;
use crate::client::{Client, ask, head, review_of};

type Stop = Arc<AtomicBool>;
type Attack = fn(&Arc<Client>, &Stop) -> Vec<JoinHandle<()>>;

/// The largest body that the webhook reads.
const BODY_LENGTH: usize = 4 << 20;
/// The largest object that an API server takes.
const OBJECT_LENGTH: usize = 3 << 20;

pub(crate) const ATTACKS: [(&str, Attack); 11] = [
    ("none", |_, _| vec![]),
    ("100 bodies that nearly end", |client, stop| slow_bodies(client, stop, 100)),
    ("1,000 bodies that nearly end", |client, stop| slow_bodies(client, stop, 1000)),
    ("100 responses that are not read", |client, stop| unread_responses(client, stop, 100)),
    ("1,000 responses that are not read", |client, stop| unread_responses(client, stop, 1000)),
    ("1,000 idle connections", idle_connections),
    ("pods of 30,000 containers", |client, stop| reviews(client, stop, many_containers())),
    ("`quit` with 130,000 bad URLs", |client, stop| reviews(client, stop, bad_urls())),
    ("JSON a million arrays deep", |client, stop| reviews(client, stop, deep_json())),
    ("pods of 3 MiB", |client, stop| reviews(client, stop, large_pod())),
    ("20 clients with pods of 3 MiB", |client, stop| {
        (0..20).flat_map(|_| reviews(client, stop, large_pod())).collect()
    }),
];

/// Runs an action again and again, in several threads.
fn repeat(threads: usize, stop: &Stop, action: impl Fn(&Stop) + Clone + Send + 'static) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let (stop, action) = (stop.clone(), action.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                action(&stop);
            }
        })
    };
    (0..threads).map(start).collect()
}

/// Each connection sends nearly all of its body, and waits until it is closed.
fn slow_bodies(client: &Arc<Client>, stop: &Stop, connections: usize) -> Vec<JoinHandle<()>> {
    let client = client.clone();
    let part = Arc::new(vec![b' '; BODY_LENGTH / 100]);
    repeat(connections, stop, move |_| {
        let Ok(mut connection) = client.connect() else { return };
        let mut sent = connection.write_all(head(BODY_LENGTH).as_bytes());
        for _ in 0..99 {
            sent = sent.and_then(|()| connection.write_all(&part));
        }
        let _ = sent.and_then(|()| connection.read(&mut [0]));
    })
}

/// Each connection asks for a large response, and does not read it.
fn unread_responses(client: &Arc<Client>, stop: &Stop, connections: usize) -> Vec<JoinHandle<()>> {
    let (client, review) = (client.clone(), Arc::new(review_of(&wrapped_pod().to_string())));
    repeat(connections, stop, move |stop| {
        let Ok(mut connection) = client.connect() else { return };
        let _ = connection.write_all(head(review.len()).as_bytes()).and_then(|()| connection.write_all(&review));
        for _ in 0..50 {
            if !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
            }
        }
    })
}

/// Holds connections whose handshake is done, and opens those again that are closed.
fn idle_connections(client: &Arc<Client>, stop: &Stop) -> Vec<JoinHandle<()>> {
    let client = client.clone();
    repeat(10, stop, move |stop| {
        let mut open = vec![];
        while open.len() < 100 && !stop.load(Ordering::Relaxed) {
            let Ok(mut connection) = client.connect() else { continue };
            if connection.conn.complete_io(&mut connection.sock).is_ok() {
                let _ = connection.sock.set_nonblocking(true);
                open.push(connection);
            }
        }
        for _ in 0..20 {
            if !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
            }
        }
    })
}

/// One client sends a review again and again.
fn reviews(client: &Arc<Client>, stop: &Stop, pod: Value) -> Vec<JoinHandle<()>> {
    let (client, review) = (client.clone(), Arc::new(review_of(&text(pod))));
    repeat(1, stop, move |stop| {
        let Ok(mut connection) = client.connect() else { return };
        while !stop.load(Ordering::Relaxed) && ask(&mut connection, &review).is_ok() {}
    })
}

/// JSON; a text stands for itself.
fn text(pod: Value) -> String {
    match pod {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn ordinary_pod() -> Value {
    serde_json::from_str(ORDINARY_POD).expect("the pod is JSON")
}

fn many_containers() -> Value {
    let mut pod = ordinary_pod();
    let containers = pod["spec"]["containers"].as_array_mut().expect("a list");
    containers.extend((0..30_000).map(|n| json!({"name": format!("c{n}"), "image": "x"})));
    pod
}

fn bad_urls() -> Value {
    let mut pod = ordinary_pod();
    pod["metadata"]["annotations"]["istio-aux.io/quit"] = json!("x,".repeat(130_000));
    pod
}

fn deep_json() -> Value {
    let depth = 1_000_000;
    let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    Value::String(format!(r#"{{"metadata":{{}},"spec":{{"restartPolicy":"Never","containers":[],"volumes":{deep}}}}}"#))
}

fn large_pod() -> Value {
    let mut pod = ordinary_pod();
    let missing = OBJECT_LENGTH - pod.to_string().len() - 100;
    pod["metadata"]["annotations"]["large"] = json!("x".repeat(missing));
    pod
}

/// A pod of which mode wrap copies the commands into the patch.
fn wrapped_pod() -> Value {
    let mut pod = ordinary_pod();
    pod["metadata"]["annotations"]["istio-aux.io/mode"] = json!("wrap");
    let missing = OBJECT_LENGTH - pod.to_string().len() - 100;
    for container in pod["spec"]["containers"].as_array_mut().expect("a list") {
        if container["name"] != "istio-proxy" {
            container["command"] = json!(["x".repeat(missing)]);
            break;
        }
    }
    pod
}

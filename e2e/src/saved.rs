//! An object of the installation that a test changes for a while. A copy of it is kept in the cluster, so that a run that was killed
//! can be undone, by the next run or by hand.

use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::{process, thread};

use futures::FutureExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::cluster::client;
use crate::harness::block_on;
use crate::namespace::{name_of, resource_of};

/// The namespace of the installation, and of the copies.
const NAMESPACE: &str = "istio-aux";

/// An object as it was before a test.
#[derive(Debug)]
pub struct Saved {
    objects: Api<DynamicObject>,
    copies: Api<DynamicObject>,
    /// The name of the copy.
    copy: String,
    /// The object as it was.
    pub object: Value,
}

impl Saved {
    /// Keeps a copy of an object, by the kind and name of `like`, after undoing what a run that was killed left of it.
    pub async fn save(like: &Value) -> Self {
        let client = client().await;
        let resource = resource_of(like);
        let is_namespaced = like["metadata"]["namespace"].is_string();
        let objects = if is_namespaced {
            Api::namespaced_with(client.clone(), NAMESPACE, &resource)
        } else {
            Api::all_with(client.clone(), &resource)
        };
        let config_map = ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
        let copies: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &config_map);
        let copy = format!("e2e-saved-{}-{}", resource.kind.to_lowercase(), name_of(like));
        if let Some(left) = copies.get_opt(&copy).await.expect("ConfigMaps are read") {
            let object = left.data["data"]["object"].as_str().expect("the copy has the object");
            let object = serde_json::from_str(object).expect("the copy is JSON");
            SAVED.fetch_add(1, Ordering::SeqCst);
            Self { objects: objects.clone(), copies: copies.clone(), copy: copy.clone(), object }.restore().await;
        }
        let mut object = objects.get(name_of(like)).await.expect("istio-aux is installed");
        object.metadata.managed_fields = None;
        object.metadata.resource_version = None;
        object.metadata.uid = None;
        let object = serde_json::to_value(object).expect("an object is JSON");
        let saved = json!({"metadata": {"name": copy}, "data": {"object": object.to_string()}});
        let saved = serde_json::from_value(saved).expect("it is an object");
        copies.create(&PostParams::default(), &saved).await.expect("the copy is kept");
        SAVED.fetch_add(1, Ordering::SeqCst);
        println!(
            "{NAMESPACE}/{copy} keeps {}; if this run is killed: kubectl -n {NAMESPACE} get configmap {copy} -o jsonpath={{.data.object}} | \
             kubectl replace --force -f -, and kubectl -n {NAMESPACE} delete configmap {copy}",
            name_of(like)
        );
        Self { objects, copies, copy, object }
    }

    /// Makes the object what it was, and deletes the copy.
    pub async fn restore(&self) {
        let mut object: DynamicObject = serde_json::from_value(self.object.clone()).expect("it is an object");
        let name = name_of(&self.object);
        if let Some(now) = self.objects.get_opt(name).await.expect("the object is read") {
            object.metadata.resource_version = now.metadata.resource_version;
            self.objects.replace(name, &PostParams::default(), &object).await.expect("the object is put back");
        } else {
            self.objects.create(&PostParams::default(), &object).await.expect("the object is put back");
        }
        self.copies.delete(&self.copy, &DeleteParams::default()).await.expect("the copy is deleted");
        SAVED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `work` to its end, its panic, or SIGINT or SIGTERM, so that the caller can restore what it changes. Resume a panic with
/// [`std::panic::resume_unwind`].
pub async fn until_end_or_signal<T>(work: impl AsyncFnOnce() -> T) -> thread::Result<T> {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        let (ready, is_ready) = channel();
        thread::spawn(move || block_on(handle_signals(ready)));
        is_ready.recv().expect("signals can be handled");
    });
    tokio::select! {
        ended = AssertUnwindSafe(work()).catch_unwind() => ended,
        () = SIGNALLED.notified() => Err(Box::new("interrupted")),
    }
}

/// Counts the objects that are to be restored. Until then signals end what a test does, and not this process.
static SAVED: AtomicUsize = AtomicUsize::new(0);
static SIGNALLED: Notify = Notify::const_new();

async fn handle_signals(ready: Sender<()>) {
    let [mut interrupt, mut terminate] =
        [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).expect("signals can be handled"));
    ready.send(()).expect("it is awaited");
    loop {
        let exit_code = tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        };
        if SAVED.load(Ordering::SeqCst) == 0 {
            process::exit(exit_code);
        }
        SIGNALLED.notify_waiters();
    }
}

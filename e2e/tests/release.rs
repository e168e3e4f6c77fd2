//! A release as a user meets it: its checksums are right, its manifests and its chart install it, and it takes over from the version
//! before while pods are created. In a binary of its own: it takes the installation away.

use std::panic::resume_unwind;

use e2e::admission::{until_drained, while_pods_are_created};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::install_methods::{InstallMethod, helm, remove_all, wait_until_effective};
use e2e::manifests::{job, pod_spec, shell};
use e2e::{Namespace, scenario};
use tokio::task::spawn_blocking;

/// The release, relative to `deploy`.
const FILES: &str = "../target/release";
const MANIFESTS: &str = "../target/release/istio-aux.yaml";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn say(program: &str, words: &[&str]) -> String {
    printed(&run(program, words, ""))
}

fn shell_line(script: &str) -> String {
    say("sh", &["-euc", script])
}

fn apply_manifests() {
    say("kubectl", &["apply", "--server-side", "--force-conflicts", "-f", MANIFESTS]);
    say("kubectl", &["-n", "istio-aux", "rollout", "status", "deployment/istio-aux", "--timeout=150s"]);
}

/// Asserts that a Job completes, and that webhook and shim run from the images of the release's digests.
async fn works(ns: &Namespace, name: &str) {
    ns.create_object(job(name, &pod_spec("Never", &[shell("main", "sleep 1")]))).await;
    ns.until_complete(name).await;
    let digests = shell_line(&format!("cat {FILES}/IMAGES"));
    let webhook = "-o=jsonpath={.spec.template.spec.containers[0].image}";
    let webhook = say("kubectl", &["-n", "istio-aux", "get", "deployment", "istio-aux", webhook]);
    let pod = ns.pod(&ns.pod_of_job(name).await).await;
    let containers = pod.spec.expect("it has a spec").init_containers.unwrap_or_default();
    let shim = containers.into_iter().filter_map(|container| container.image).find(|image| image.contains("/shim"));
    for (image, name) in [(webhook, "webhook"), (shim.expect("the shim is there"), "shim")] {
        let digest = digests.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("it has a digest");
        assert_eq!(image, format!("registry.invalid/istio-aux/{name}@{digest}"));
    }
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

#[tokio::test]
async fn release_files_install_and_upgrade() {
    shell_line(&format!("cd {FILES} && sha256sum --check --quiet SHA256SUMS"));
    scenario("release", &[MESH, OPT_IN], async |ns: &Namespace| {
        in_background(|| {
            remove_all();
            apply_manifests();
            wait_until_effective();
        })
        .await;
        works(ns, "by-manifests").await;

        in_background(|| {
            remove_all();
            let chart = format!("{FILES}/istio-aux-{VERSION}.tgz");
            helm(&["install", "istio-aux", &chart, "--create-namespace", "--wait", "--timeout=3m"]);
            wait_until_effective();
        })
        .await;
        works(ns, "by-chart").await;

        in_background(|| {
            remove_all();
            InstallMethod::Overlay.install();
        })
        .await;
        while_pods_are_created(ns, "the release that takes over", async || {
            in_background(apply_manifests).await;
            until_drained(ns).await;
        })
        .await;
        works(ns, "taken-over").await;
    })
    .await;
}

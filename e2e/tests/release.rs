//! A release as a user meets it: its checksums are right, its manifests and its chart install it, and it takes over from the version
//! before while pods are created. In a binary of its own: it takes the installation away.

use e2e::admission::{until_drained, while_pods_are_created};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{in_background, printed, run};
use e2e::install_methods::{InstallMethod, helm, remove_all, wait_until_effective};
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{job, pod_spec, shell};
use e2e::rendered::KUBERNETES;
use e2e::{Namespace, scenario};

/// The release, relative to `deploy`.
const FILES: &str = "../target/release";
const MANIFESTS: &str = "../target/release/istio-aux.yaml";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn shell_line(script: &str) -> String {
    printed(&run("sh", &["-euc", script], ""))
}

/// Applies the manifests as docs/install.md says for an upgrade, which is right for an installation, too.
fn apply_manifests() {
    let apply = ["apply", "--server-side", "-f", MANIFESTS];
    kubectl(&[&apply[..], &["-l", "app.kubernetes.io/component!=admission"]].concat());
    wait_for_rollout("istio-aux", "deployment/istio-aux");
    kubectl(&apply);
}

/// Returns the reference of an image of the release, by its digest.
fn reference_of(image: &str) -> String {
    let digests = shell_line(&format!("cat {FILES}/IMAGES"));
    let digest = digests.lines().find_map(|line| line.strip_prefix(&format!("{image} "))).expect("it has a digest");
    format!("registry.invalid/istio-aux/{image}@{digest}")
}

/// Asserts that a Job completes, and that webhook and shim run from the images of the release's digests.
async fn works(ns: &Namespace, name: &str) {
    ns.create_object(job(name, &pod_spec("Never", &[shell("main", "sleep 1")]))).await;
    ns.until_complete(name).await;
    let webhook = "-o=jsonpath={.spec.template.spec.containers[0].image}";
    let webhook = kubectl(&["-n", "istio-aux", "get", "deployment", "istio-aux", webhook]);
    let pod = ns.pod(&ns.pod_of_job(name).await).await;
    let containers = pod.spec.expect("it has a spec").init_containers.unwrap_or_default();
    let shim = containers.into_iter().filter_map(|container| container.image).find(|image| image.contains("/shim"));
    for (image, name) in [(webhook, "webhook"), (shim.expect("the shim is there"), "shim")] {
        assert_eq!(image, reference_of(name));
    }
}

#[test]
fn released_node_chart_has_the_agents_digest() {
    let chart = format!("{FILES}/istio-aux-node-{VERSION}.tgz");
    let rendered = helm(&["template", "agent", &chart, KUBERNETES, "--set=proxyImage=registry.example/proxyv2:1"]);
    assert!(rendered.contains(&format!("image: {}\n", reference_of("node"))), "{rendered}");
}

#[tokio::test]
async fn release_files_install_and_upgrade() {
    shell_line(&format!("cd {FILES} && sha256sum --check --quiet SHA256SUMS"));
    let ns = &scenario("release", &[MESH, OPT_IN]).await;
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
}

//! Starts of containers, which the kubelet announces by the pod's hosts file.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use super::pod::{self, Pod, Proxy, Shim, announced, retry_window};

const NOTHING: [&str; 0] = [];
const NEVER: [&str; 3] = ["--await=main", "--await=metrics", "--restart-policy=Never"];
const NEVER_SEEN: &str = "a container was announced and never seen";

#[test]
fn late_read_announcement_counts() {
    let (pod, proxy, mut shim) = announced(&NEVER);
    shim.suspend();
    pod.announce();
    let main = pod.payload("main", 0);
    pod.announce();
    let metrics = pod.payload("metrics", 0);
    shim.resume();
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    metrics.finish();
    proxy.assert_quit_once(shim);
}

/// Starts `metrics` at last, lets it end, and checks that the proxy is asked only then.
fn the_proxy_is_asked_after_metrics(pod: &Pod, proxy: &Proxy, mut shim: Shim) {
    pod.announce();
    let metrics = shim.payload(pod, "metrics", 0);
    assert_eq!(proxy.requests(), NOTHING);
    metrics.finish();
    proxy.assert_quit_once(shim);
}

#[test]
fn payload_that_appends_to_hosts_announces_nothing() {
    // Announcements expire after a second here, instead of 16 minutes.
    let (pod, proxy, mut shim) = announced(&[&NEVER[..], &[&retry_window(1)]].concat());
    pod.announce();
    // As MPI workers do, while the image of metrics is pulled.
    let main = pod.payload_that("main", "echo 10.0.0.1 worker >>/etc/hosts; /bin/true;", 0);
    shim.until_logged("container started container=main");
    let hosts = pod.file("hosts");
    pod::until("some lines", || fs::read_to_string(&hosts).unwrap().lines().count() > 10);
    main.finish();
    shim.until_logged("container exited container=main");
    // Longer than announcements last.
    sleep(Duration::from_secs(2));
    assert!(!shim.log().contains(NEVER_SEEN), "{}", shim.log());
    the_proxy_is_asked_after_metrics(&pod, &proxy, shim);
}

/// Checks that an expired announcement has not become an exit.
fn no_end_of_metrics_is_kept(pod: &Pod) {
    let state = fs::read_to_string(pod.file("state")).unwrap();
    assert!(!state.contains("\nmetrics ") && !state.contains("\n? "), "{state}");
}

#[test]
fn forged_announcement_ends_nothing() {
    let (pod, proxy, mut shim) = announced(&[&NEVER[..], &[&retry_window(1)]].concat());
    pod.announce();
    // Only once its own start was seen: before that, its writes would be taken for that start's.
    let forge = "until [ -e $0 ]; do sleep 0.05; done; echo 127.0.0.1 x >/etc/hosts; chmod 644 /etc/hosts; \
        while ! [ -e $1 ]; do /bin/true; done";
    let [seen, quiet] = ["seen", "quiet"].map(|name| pod.file(name));
    let files = [&seen, &quiet].map(|file| file.display().to_string());
    let main = pod.run("main", &["sh", "-c", forge, &files[0], &files[1]]);
    shim.until_logged("container started container=main");
    fs::write(seen, "").unwrap();
    shim.until_logged(NEVER_SEEN);
    no_end_of_metrics_is_kept(&pod);
    fs::write(quiet, "").unwrap();
    shim.until_logged("container exited container=main");
    drop(main);
    the_proxy_is_asked_after_metrics(&pod, &proxy, shim);
}

#[test]
fn announcement_forged_before_exit_ends_nothing() {
    let (pod, proxy, mut shim) = announced(&[&NEVER[..], &[&retry_window(1)]].concat());
    pod.announce();
    let main = shim.payload(&pod, "main", 0);
    shim.suspend();
    // The last thing that it does, and with commands that nothing has seen.
    pod.exec("main", "for i in 1 2 3; do /bin/true; done; echo 127.0.0.1 x >/etc/hosts; chmod 644 /etc/hosts").wait();
    main.finish();
    shim.resume();
    shim.until_logged("container exited container=main");
    shim.until_logged(NEVER_SEEN);
    no_end_of_metrics_is_kept(&pod);
    the_proxy_is_asked_after_metrics(&pod, &proxy, shim);
}

#[test]
fn container_in_long_creation_is_awaited() {
    let (pod, proxy, mut shim) = announced(&["--await=main", "--restart-policy=Never"]);
    // The postStart hook that holds the payload back ends just before, with commands that nothing sees.
    pod.exec("istio-proxy", "for i in 1 2 3; do /bin/true; done").wait();
    pod.announce();
    // The runtime relabels a volume. No condition shows that nothing happens: 30 s is what the shim once waited.
    sleep(Duration::from_secs(33));
    assert_eq!(proxy.requests(), NOTHING, "{}", shim.log());
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    proxy.assert_quit_once(shim);
}

#[test]
fn unseen_container_is_reported_and_awaited() {
    // The only container comes and goes while the shim cannot run; that is reported after a second here, instead of 150.
    let (pod, proxy, mut shim) = announced(&["--await=main", "--restart-policy=Never", &retry_window(1)]);
    shim.suspend();
    pod.announce();
    pod.start("main", "true").wait();
    shim.resume();
    shim.until_logged(NEVER_SEEN);
    sleep(Duration::from_secs(2));
    assert_eq!(proxy.requests(), NOTHING);
    assert!(shim.terminate().1.contains("istio-aux finish"));
}

#[test]
fn leftover_hook_has_no_exit_code() {
    let arguments = ["--await=main", "--restart-policy=OnFailure", &retry_window(1)];
    let (pod, proxy, mut shim) = announced(&arguments);
    shim.suspend();
    pod.announce();
    let mut main = pod.start("main", "sleep 0.2");
    main.init();
    let hook = pod.exec("main", "exec sleep 1000");
    hook.init();
    main.wait();
    shim.resume();
    shim.until_logged("container started container=main");
    // The runtime ends it after the init process.
    hook.kill();
    shim.until_logged("container exited container=main code=unknown");
    pod_ends_without_main(&proxy, shim);
}

/// Checks that the proxy is asked after a container that succeeded and is not restarted.
fn pod_ends_without_main(proxy: &Proxy, mut shim: Shim) {
    shim.until_logged("asked istio-proxy to quit");
    assert_eq!(proxy.requests().len(), 1);
}

#[test]
fn short_container_is_identified() {
    let (pod, proxy, shim) = announced(&["--await=main", "--restart-policy=Never", &retry_window(1)]);
    pod.announce();
    // A runtime takes as long to create a container.
    pod.start("main", "sleep 0.1").wait();
    proxy.assert_quit_once(shim);
}

#[test]
fn overtaken_container_is_reported_and_ends_nothing() {
    let (pod, proxy, mut shim) = announced(&[&NEVER[..], &["--retry-window=60"]].concat());
    shim.suspend();
    pod.announce();
    pod.start("main", "true").wait();
    shim.resume();
    // What came and went counts as missed after some scans.
    sleep(Duration::from_millis(400));
    pod.announce();
    let metrics = shim.payload(&pod, "metrics", 0);
    shim.until_logged(NEVER_SEEN);
    metrics.finish();
    shim.until_logged("container exited container=metrics");
    assert_eq!(proxy.requests(), NOTHING);
}

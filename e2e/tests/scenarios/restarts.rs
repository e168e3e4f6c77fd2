//! Payloads that the kubelet starts again.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{job, pod_spec, shell, with_memory};
use e2e::{Namespace, PodView, scenario};

use crate::{shim_log, start_server};

/// Fails twice, then succeeds; each attempt needs the network, and one without ends with 99.
const THIRD_TIME_LUCKY: &str = "\
curl -sSf --max-time 10 http://web/ || exit 99
echo x >> /memory/attempts
test $(wc -l < /memory/attempts) -ge 3 || exit 1
echo attempts with network: $(wc -l < /memory/attempts)";

#[tokio::test]
async fn retries_under_on_failure_keep_their_network() {
    scenario("on-failure", &[MESH, OPT_IN], async |ns: &Namespace| {
        start_server(ns).await;
        let spec = with_memory(pod_spec("OnFailure", &[shell("main", THIRD_TIME_LUCKY)]));
        ns.create_object(job("lucky", &spec)).await;
        ns.until_complete("lucky").await;
        let name = ns.pod_of_job("lucky").await;
        let pod = ns.pod(&name).await;
        assert_eq!(PodView(&pod).restarts("main"), Some(2));
        let log = ns.logs(&name, "main").await;
        assert!(log.contains("attempts with network: 3"), "{log}");
        let log = shim_log(ns, &name).await;
        assert_eq!(log.matches("container exited container=main code=1").count(), 2, "{log}");
        assert_eq!(log.matches("asked istio-proxy to quit").count(), 1, "{log}");
    })
    .await;
}

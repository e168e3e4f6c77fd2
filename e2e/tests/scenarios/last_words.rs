//! A payload that ends as soon as it has written, as the master of a training does, while its reader is slow.

use e2e::clients::output_of;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{in_modes, pod, pod_spec, service, shell, with_memory};
use e2e::{PodView, scenario};
use serde_json::json;

use crate::shim_modes;

const PORT: u16 = 8080;

#[tokio::test]
async fn proxy_outlives_what_the_payload_has_written_last() {
    let ns = &scenario("last-words", &[MESH, OPT_IN]).await;
    // netcat becomes the program, whose end leaves in the kernel what the proxy has not read yet.
    let command = "head -c 20000000 /dev/zero >/memory/data; exec nc -l -p 8080 -e cat /memory/data";
    let spec = with_memory(pod_spec("Never", &[shell("main", command)]));
    let mut writers = in_modes(&shim_modes(), &spec);
    for writer in &mut writers {
        writer["metadata"]["labels"] = json!({"app": writer["metadata"]["name"]});
    }
    ns.create_objects(writers).await;
    for mode in shim_modes() {
        let mut of_mode = service(mode, PORT, PORT);
        of_mode["spec"]["ports"][0]["name"] = json!("tcp");
        ns.create_object(of_mode).await;
        ns.until("its turn to be read", async || PodView(&ns.pod(mode).await).is_ready("main").then_some(())).await;
        let reads = format!(
            "until [ ${{n:-0}} -gt 0 ]; do n=$(nc {mode} {PORT} </dev/null | {{ n=0; \
             while k=$(dd bs=64k count=32 iflag=fullblock 2>/dev/null | wc -c); [ $k -gt 0 ]; do n=$((n+k)); sleep 0.12; done; echo $n; }}); done; echo $n"
        );
        let reader = pod(&format!("{mode}-reader"), &pod_spec("Never", &[shell("main", &reads)]));
        assert_eq!(output_of(ns, reader).await, "20000000\n", "{mode}");
        ns.until_ended(mode, "Succeeded").await;
    }
}

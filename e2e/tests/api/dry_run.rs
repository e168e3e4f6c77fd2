//! The API server's own word on every object that the overlays and the chart render.

use e2e::command::run;
use e2e::rendered::{chart, overlay};
use serde_json::json;

#[test]
fn every_rendered_object_passes_the_servers_dry_run() {
    let by_chart = chart(&["--set=networkPolicy=true", "--set=nodeProxy.enabled=true"]);
    for objects in [overlay("overlays/self-signed"), overlay("overlays/tenancy"), by_chart] {
        for (name, mut object) in objects {
            if object["metadata"]["namespace"].is_string() {
                object["metadata"]["namespace"] = json!("default");
            }
            let dry_run = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"];
            let applied = run("kubectl", &dry_run, &object.to_string());
            assert!(applied.status.success(), "{name}: {}", String::from_utf8_lossy(&applied.stderr));
        }
    }
}

//! What the proxy beside a pod may do, who decides what it is, and that no pod changes that.

use contract::names::PROXY_CONTAINER;
use e2e::clients::{assert_still_heard, greets};
use e2e::cluster::{MESH, OPT_IN, until_istiod_has};
use e2e::kubectl::kubectl;
use e2e::manifests::{GREETING, job, pod, pod_spec, shell};
use e2e::node::{self, ProxyProcess, SmallDisk, containerds_default};
use e2e::{Namespace, PodView, scenario};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::failures::living_pods;
use crate::{account, beside, client_job, ended, strict_server};

/// What the agent sets itself: docs/node.md.
const OWN_VARIABLES: [&str; 7] =
    ["PROV_CERT", "CLOUD_PLATFORM", "PROXY_CONFIG", "ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "GOMEMLIMIT", "PATH"];

pub(crate) fn sleeper() -> Value {
    pod_spec("Never", &[shell("main", "sleep 86400")])
}

/// Creates a Job whose pod lives beside its proxy, and returns the pod as `NAMESPACE/NAME`.
pub(crate) async fn living_job(ns: &Namespace, job: Value) -> String {
    let name = job["metadata"]["name"].as_str().expect("it has a name").to_owned();
    ns.create_object(job).await;
    let pod = ns.pod_of_job(&name).await;
    ns.pod_until(&pod, "the start", |pod| (PodView(pod).phase() == "Running").then_some(())).await;
    format!("{}/{pod}", ns.name())
}

#[test]
fn spec_is_confined_as_containerd_confines() {
    let ours = include_str!("../../../node/src/proxy/containerd-default.json");
    let ours: Value = serde_json::from_str(ours).expect("it is JSON");
    let mut theirs = containerds_default();
    // The data is containerd 2's. An older one masks less, and filters other system calls.
    if node::containerds_major() < 2 {
        let paths = |spec: &Value, part: &str| spec[part].as_array().cloned().unwrap_or_default();
        for part in ["maskedPaths", "readonlyPaths"] {
            let (ours, theirs) = (paths(&ours, part), paths(&theirs, part));
            assert!(!theirs.is_empty() && theirs.iter().all(|path| ours.contains(path)), "{part}: {theirs:?}");
        }
        return;
    }
    theirs["seccomp"].as_object_mut().expect("it filters system calls").remove("architectures");
    for part in ["maskedPaths", "readonlyPaths", "seccomp"] {
        assert_eq!(ours[part], theirs[part], "{part}");
    }
}

#[tokio::test]
async fn proxy_of_a_long_name_is_confined() {
    let ns = &scenario("node-confined", &[MESH]).await;
    ns.create_object(account("client")).await;
    let name = "a".repeat(60);
    let pod = living_job(ns, beside(client_job(&name, &sleeper()))).await;
    let [pilot_agent, envoy] = ProxyProcess::of(&pod);
    let score = |text: &str| text.trim().parse::<i32>().expect("it is a number");
    let (_, name) = pod.split_once('/').expect("it has a namespace");
    let payloads = score(&ns.exec(name, "main", &["cat", "/proc/self/oom_score_adj"]));
    for process in [pilot_agent, envoy] {
        let status = ["Seccomp", "NoNewPrivs", "CapEff"].map(|name| process.status(name));
        assert_eq!(status, ["2", "1", "0000000000000000"]);
        assert!(
            score(&process.file("oom_score_adj")) > payloads,
            "without memory it ends before its payload: {payloads}"
        );
        assert_eq!(process.memory_limit(), (128 << 20).to_string(), "the overhead of the runtime class");
        // `cpu.shares` of cgroup v1, `cpu.weight` of v2 as earlier and as later container runtimes compute it.
        assert!([102, 4, 17].contains(&process.cpu_share()), "that of 100m: {}", process.cpu_share());
    }
    let found = node::proxies();
    assert!(found.iter().any(|one| !one.contains('/')), "while it lives, there is a container: {found:?}");
    for directory in ["/run/istio-aux/sandbox/", "/var/log/istio-aux/", "/sys/fs/cgroup/"] {
        assert!(found.iter().any(|one| one.starts_with(directory)), "and one below {directory}: {found:?}");
    }
    let command = envoy.file("cmdline");
    assert!(command.contains("--concurrency 2"), "{command}");
    assert_eq!(
        node::owners(),
        ["0:0 700", "0:proxy 440", "0:proxy 750"],
        "the proxies write none of the agent's files"
    );
}

#[tokio::test]
async fn proxy_has_a_user_of_its_own() {
    let ns = &scenario("node-users", &[MESH]).await;
    ns.create_object(account("client")).await;
    let mut users = Vec::new();
    for name in ["first", "second"] {
        let pod = living_job(ns, beside(client_job(name, &sleeper()))).await;
        let ids = ProxyProcess::of(&pod).map(|process| ["Uid", "Gid"].map(|name| process.status(name)).join("\t"));
        users.extend(ids.join("\t").split('\t').map(|id| id.parse::<u32>().expect("it is a number")));
    }
    let [first, second] = [users[0], users[users.len() / 2]];
    assert!(node::is_user_of_proxy(first) && node::is_user_of_proxy(second) && first != second, "{users:?}");
    users.dedup();
    assert_eq!(users, [first, second], "real, effective, saved and that of the file system, and the groups");
}

#[tokio::test]
async fn payload_of_istios_user_is_in_the_mesh() {
    let ns = &scenario("node-istios-user", &[MESH, OPT_IN]).await;
    strict_server(ns).await;
    let mut spec = pod_spec("Never", &[shell("main", &greets("web"))]);
    spec["securityContext"] = json!({"runAsUser": 1337, "runAsGroup": 1337});
    let mut control = job("sidecar", &spec);
    control["spec"]["backoffLimit"] = json!(0);
    let (_, sidecar) = ended(ns, control).await;
    assert!(sidecar.trim_end().ends_with("000"), "Istio's sidecar takes its connections for its own: {sidecar}");
    let (_, inside) = ended(ns, beside(client_job("beside", &spec))).await;
    assert_eq!(inside, format!("{GREETING}\n 200"));
}

#[tokio::test]
async fn proxy_resolves_names_as_its_pod_does() {
    let ns = &scenario("node-dns", &[MESH]).await;
    ns.create_object(account("client")).await;
    let mut spec = sleeper();
    spec["dnsConfig"] = json!({"searches": ["e2e.example"], "options": [{"name": "ndots", "value": "3"}]});
    spec["hostAliases"] = json!([{"ip": "10.9.9.9", "hostnames": ["alias.example", "other"]}]);
    let pod = living_job(ns, beside(client_job("resolver", &spec))).await;
    let [_, envoy] = ProxyProcess::of(&pod);
    let (_, name) = pod.split_once('/').expect("it has a namespace");
    let pods = ns.exec(name, "main", &["cat", "/etc/resolv.conf"]);
    assert!(pods.contains("e2e.example") && pods.contains("ndots:3"), "the pod's own: {pods}");
    assert_eq!(envoy.file("root/etc/resolv.conf").trim(), pods.trim());
    let alias = "10.9.9.9\talias.example\tother\n";
    let pods = ns.exec(name, "main", &["cat", "/etc/hosts"]);
    assert!(pods.contains(alias) && envoy.file("root/etc/hosts").contains(alias), "the pod's: {pods}");
}

#[tokio::test]
async fn proxy_has_environment_and_arguments_of_a_sidecar() {
    let ns = &scenario("node-environment", &[MESH]).await;
    ns.create_object(account("client")).await;
    let mut job = beside(client_job("beside", &sleeper()));
    let levels = json!({"sidecar.istio.io/logLevel": "error", "sidecar.istio.io/componentLogLevel": "misc:debug"});
    job["spec"]["template"]["metadata"]["annotations"] = levels.clone();
    let name = living_job(ns, job).await;
    let [pilot_agent, _] = ProxyProcess::of(&name);
    let beside = pilot_agent.environment();
    let (_, name) = name.split_once('/').expect("it has a namespace");

    // The same pod, as Istio's injector would change it.
    let object = serde_json::to_value(ns.pod(name).await).expect("it is JSON");
    let mut sidecar = pod("inside", &object["spec"]);
    sidecar["metadata"]["labels"] = object["metadata"]["labels"].clone();
    sidecar["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("true");
    sidecar["metadata"]["annotations"] = levels;
    // Istio looks at the owner of a pod whose name is generated.
    for field in ["generateName", "ownerReferences"] {
        sidecar["metadata"][field] = object["metadata"][field].clone();
    }
    let injected = ns.dry_run(sidecar).await;
    let all =
        ["initContainers", "containers"].map(|list| injected["spec"][list].as_array().cloned().unwrap_or_default());
    let proxy =
        all.concat().into_iter().find(|container| container["name"] == PROXY_CONTAINER).expect("it is injected");
    let mut compared = 0;
    for variable in proxy["env"].as_array().expect("it has an environment") {
        let name = variable["name"].as_str().expect("it has a name");
        if OWN_VARIABLES.contains(&name) {
            continue;
        }
        let value = beside.get(name).unwrap_or_else(|| panic!("{name} is missing beside the pod"));
        if let Some(expected) = variable["value"].as_str() {
            assert_eq!(value, expected, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 8, "the template's own variables were compared: {compared}");
    assert_eq!(
        beside["HOST_IP"],
        object["status"]["hostIP"].as_str().expect("it has one"),
        "a field that the API server learns late"
    );

    let args: Vec<_> = proxy["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let args = args.join(" ").replace("$(POD_NAMESPACE)", ns.name());
    assert!(args.contains("--proxyLogLevel=error --proxyComponentLogLevel=misc:debug"), "{args}");
    assert_eq!(pilot_agent.file("cmdline").trim(), format!("/usr/local/bin/pilot-agent {args}"));
}

#[tokio::test]
async fn firewall_rules_are_those_of_a_sidecar() {
    let ns = &scenario("node-rules", &[MESH]).await;
    ns.create_object(account("client")).await;
    let annotated = |mut job: Value| {
        job["spec"]["template"]["metadata"]["annotations"] = json!({
            "traffic.sidecar.istio.io/excludeInboundPorts": "9000,9001",
            "traffic.sidecar.istio.io/excludeOutboundPorts": "9002",
            "traffic.sidecar.istio.io/excludeOutboundIPRanges": "192.0.2.0/24",
        });
        job
    };
    let beside = living_job(ns, annotated(beside(client_job("beside", &sleeper())))).await;
    let inside = living_job(ns, annotated(job("inside", &sleeper()))).await;
    let [pilot_agent, _] = ProxyProcess::of(&beside);
    let rules = pilot_agent.rules();
    assert_eq!(rules, ProxyProcess::of_sidecar(&inside).rules());
    assert!(rules.iter().any(|rule| rule.contains("192.0.2.0/24")), "{rules:?}");
}

#[tokio::test]
async fn annotations_change_neither_rules_nor_ports() {
    let ns = &scenario("node-annotations", &[MESH]).await;
    strict_server(ns).await;
    let control = living_job(ns, beside(client_job("control", &sleeper()))).await;
    let mut job = beside(client_job("annotated", &sleeper()));
    job["spec"]["template"]["metadata"]["annotations"] = json!({
        "proxy.istio.io/config": "statusPort: 15025\nproxyAdminPort: 15999\ndiscoveryAddress: mine:15012\nbinaryPath: /bin/sh",
        "status.sidecar.istio.io/port": "15025",
        "sidecar.istio.io/discoveryAddress": "mine:15012",
        "sidecar.istio.io/proxyImage": "mine/proxy",
        "sidecar.istio.io/bootstrapOverride": "mine",
        "sidecar.istio.io/interceptionMode": "NONE",
        "traffic.sidecar.istio.io/kubevirtInterfaces": "lo",
        "inject.istio.io/templates": "gateway",
    });
    let annotated = living_job(ns, job).await;
    let [control, annotated] = [control, annotated].map(|pod| ProxyProcess::of(&pod));
    assert_eq!(annotated[0].rules(), control[0].rules());
    assert!(control[0].rules().iter().any(|rule| rule.ends_with("--to-ports 15006")), "there are rules to compare");
    let config = |process: ProxyProcess| process.environment().remove("PROXY_CONFIG");
    assert_eq!(config(annotated[0]), config(control[0]));
    let command = |process: ProxyProcess| process.file("cmdline").split(" --service-node ").next().map(str::to_owned);
    assert_eq!(command(annotated[1]), command(control[1]));
}

#[tokio::test]
async fn annotation_that_is_a_firewall_rule_starts_no_pod() {
    let ns = &scenario("node-firewall", &[MESH]).await;
    strict_server(ns).await;
    let annotated = |name: &str, value: &str| {
        let mut job = beside(client_job(name, &pod_spec("Never", &[shell("main", &greets("web"))])));
        job["spec"]["template"]["metadata"]["annotations"] =
            json!({"traffic.sidecar.istio.io/excludeOutboundPorts": value});
        job
    };
    // Port 80 is not redirected, so the strict server ends the connection.
    let (_, outside) = ended(ns, annotated("ports", "80")).await;
    assert!(outside.trim_end().ends_with("000"), "{outside}");

    let mut rule = annotated("rule", "1 -j RETURN\nCOMMIT\n* nat\n-A POSTROUTING -j SNAT --to-source 192.0.2.1");
    assert_never_starts(ns, rule, "is not a list of ports or address ranges").await;
    // istiod does not validate this one. In its template, the two characters \n are a line break in quotes.
    rule = annotated("unchecked", "1");
    rule["spec"]["template"]["metadata"]["annotations"] = json!({"traffic.sidecar.istio.io/includeOutboundPorts": r"80 -j RETURN\nCOMMIT\n*nat\n-A OUTPUT -p tcp --dport 81"});
    assert_never_starts(ns, rule, "is not a list of ports or address ranges").await;
}

/// istiod validates no variable of a `ProxyConfig`, and writes them into its template as they are.
#[tokio::test]
async fn proxy_config_that_rewrites_the_template_starts_no_pod() {
    let ns = &scenario("node-template", &[MESH]).await;
    ns.create_object(account("client")).await;
    let config = |value: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "ProxyConfig", "metadata": {"name": "lines"},
            "spec": {"environmentVariables": {"X": value}},
        })
    };
    let job = |name: &str| beside(client_job(name, &pod_spec("Never", &[shell("main", "true")])));
    ns.create_object(config("an ordinary value")).await;
    let (control, _) = ended(ns, job("control")).await;
    assert_eq!(PodView(&control).phase(), "Succeeded");
    for (name, lines, refusal) in [
        ("domain", "    env:\n    - name: TRUST_DOMAIN\n      value: \"other", "trust domain would be \"other\""),
        (
            "rules",
            "    args: [istio-iptables, -m, REDIRECT, \"-q\", \"80 -j RETURN\"]\n    terminationMessagePath: \"/x",
            "may be a rule",
        ),
    ] {
        let lines = json!(format!("x\"\n{lines}"));
        ns.patch(&config(""), json!({"spec": {"environmentVariables": {"X": lines}}})).await;
        until_istiod_has(ns, "ProxyConfig", &lines).await;
        assert_never_starts(ns, job(name), refusal).await;
    }
}

/// Asserts that the pod of a Job does not start, and that an event says why.
async fn assert_never_starts(ns: &Namespace, job: Value, why: &str) {
    let name = job["metadata"]["name"].as_str().expect("it has a name").to_owned();
    ns.create_object(job).await;
    let pod = ns.pod_of_job(&name).await;
    let selector = format!("--field-selector=involvedObject.name={pod}");
    let events = ["-n", ns.name(), "get", "events", &selector, "--output=jsonpath={.items[*].message}"];
    ns.until(&format!("the refusal of {name}"), async || kubectl(&events).contains(why).then_some(())).await;
    assert_eq!(PodView(&ns.pod(&pod).await).phase(), "Pending");
}

#[tokio::test]
async fn full_disk_stops_no_proxy() {
    let ns = &scenario("node-disk", &[MESH]).await;
    living_pods(ns).await;
    let client = ns.pod_with("app=client").await.name_any();
    let exec = |script: &str| ns.run_script(&client, script);
    let disk = SmallDisk::mount();
    assert!(exec("curl -sS -X POST 'http://localhost:15000/logging?level=trace'").contains("trace"));
    disk.fill();
    // Each request at this level writes more than a pipe holds.
    let said = exec(&format!("for n in $(seq 20); do {}; done", greets("web")));
    assert_eq!(said, format!("{GREETING}\n 200").repeat(20), "while the disk is full");
    disk.empty();
    assert_still_heard(ns, "after the disk was full").await;
    ns.until("new output on the disk", async || disk.holds("\ttrace\tenvoy").then_some(())).await;
    assert_eq!(exec(&greets("web")), format!("{GREETING}\n 200"));
}

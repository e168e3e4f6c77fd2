//! The chart's values reach the objects that they concern, and a wrong value is rejected by its name.

use std::fs;
use std::path::Path;

use e2e::command::{printed, run_offline};
use e2e::install_methods::LOADED_IMAGES;
use e2e::rendered::{
    CONFIGURATIONS, KUBERNETES, Objects, chart, container, deployment, has_argument, objects, template,
};
use serde_json::{Value, json};

#[test]
fn values_reach_the_webhooks_pods() {
    let objects = chart(&[
        "--set=image.registry=registry.example/x",
        "--set=image.tag=1.2.3",
        "--set=extraEnv[0].name=RUST_BACKTRACE",
        "--set-string=extraEnv[0].value=1",
        "--set=ports.webhook=10250",
        "--set=ports.health=10251",
        "--set=replicas=3",
        "--set=priorityClassName=system-cluster-critical",
        "--set=image.pullSecrets[0].name=key",
        "--set=podLabels.team=mesh",
        "--set=podAnnotations.note=text",
        "--set=affinity.nodeAffinity.x=y",
        "--set=topologySpreadConstraints[0].topologyKey=zone",
        "--set=runAsUser=null",
        "--set=commonLabels.owner=platform",
    ]);
    let spec = deployment(&objects);
    let expected = [
        ("/replicas", json!(3)),
        ("/template/metadata/labels/team", json!("mesh")),
        ("/template/metadata/labels/owner", json!("platform")),
        ("/template/metadata/annotations/note", json!("text")),
        ("/template/spec/priorityClassName", json!("system-cluster-critical")),
        ("/template/spec/imagePullSecrets/0/name", json!("key")),
        ("/template/spec/affinity", json!({"nodeAffinity": {"x": "y"}})),
        ("/template/spec/topologySpreadConstraints", json!([{"topologyKey": "zone"}])),
        ("/template/spec/securityContext", json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})),
        ("/template/spec/containers/0/image", json!("registry.example/x/webhook:1.2.3")),
        ("/template/spec/containers/0/env/0/value", json!("registry.example/x/shim:1.2.3")),
        ("/template/spec/containers/0/env/1", json!({"name": "RUST_BACKTRACE", "value": "1"})),
        ("/template/spec/containers/0/ports/0/containerPort", json!(10250)),
        ("/template/spec/containers/0/ports/1/containerPort", json!(10251)),
    ];
    for (field, value) in expected {
        assert_eq!(spec.pointer(field), Some(&value), "{field}");
    }
}

#[test]
fn values_become_arguments_of_the_webhook() {
    let objects = chart(&[
        "--set=shim.delivery=image-volume",
        "--set=shim.pullPolicy=Always",
        "--set=shim.user=proxy",
        "--set=nativeSidecars=disabled",
        "--set=log.format=json",
        "--set=log.level=debug",
        "--set=certificate.validity=24h",
        "--set=hold=completing",
        "--set=shim.pullSecrets={one,other}",
        "--set=extraArgs[0]=--drain-delay=5s",
        "--set=ports.webhook=10250",
        "--set=ports.health=10251",
    ]);
    for argument in [
        "--shim-image=$(SHIM_IMAGE)",
        "--delivery=image-volume",
        "--shim-pull-policy=Always",
        "--hold=completing",
        "--shim-pull-secret=one,other",
        "--shim-user=proxy",
        "--native-sidecars=disabled",
        "--log-format=json",
        "--log-level=debug",
        "--certificate-validity=24h",
        "--drain-delay=5s",
        "--listen=[::]:10250",
        "--health-listen=[::]:10251",
    ] {
        assert!(has_argument(&objects, argument), "no {argument} in {}", container(&objects)["args"]);
    }
}

#[test]
fn failure_policy_concerns_pods_that_would_not_complete() {
    for policy in ["Fail", "Ignore"] {
        let objects = chart(&[&format!("--set=failurePolicy={policy}"), "--set=nodeProxy.enabled=true"]);
        let webhooks = CONFIGURATIONS.iter().flat_map(|name| objects[*name]["webhooks"].as_array().expect("webhooks"));
        let names: Vec<&str> = webhooks.clone().filter_map(|webhook| webhook["name"].as_str()).collect();
        let (before, after) = names.split_at(names.len() - 6);
        assert!(before.is_sorted() && after.is_sorted(), "the webhook's patch of the CA sorts them: {names:?}");
        for webhook in webhooks {
            let name = webhook["name"].as_str().expect("it has a name");
            let obeys = ["require-shim.", "ended.", "node."].iter().any(|prefix| name.starts_with(prefix));
            assert_eq!(webhook["failurePolicy"], if obeys { policy } else { "Ignore" }, "{name}");
        }
    }
}

#[test]
fn controller_is_rendered_where_tenancy_is_enabled() {
    let objects = chart(&["--set=tenancy.enabled=true"]);
    assert!(objects.contains_key("Deployment istio-aux-tenancy"));
    let rules = objects["ClusterRole istio-aux-tenancy"]["rules"].to_string();
    assert!(rules.contains("poddefaults") && !rules.contains("configmaps"), "{rules}");
    assert!(!chart(&[]).contains_key("Deployment istio-aux-tenancy"));
}

#[test]
fn values_reach_the_other_objects() {
    let objects = chart(&[
        "--set=networkPolicy=true",
        "--set=ports.webhook=10250",
        "--set=ports.health=10251",
        "--set=podDisruptionBudget.maxUnavailable=50%",
        "--set=serviceAccount.annotations.role=arn",
        "--set=timeoutSeconds=9",
        "--set-string=configurationAnnotations.wave=1",
    ]);
    let budget = &objects["PodDisruptionBudget istio-aux"]["spec"];
    assert_eq!((&budget["maxUnavailable"], &budget["minAvailable"]), (&json!("50%"), &Value::Null));
    assert_eq!(objects["ServiceAccount istio-aux"]["metadata"]["annotations"], json!({"role": "arn"}));
    let ports = &objects["NetworkPolicy istio-aux"]["spec"]["ingress"][0]["ports"];
    assert_eq!((&ports[0]["port"], &ports[1]["port"]), (&json!(10250), &json!(10251)));
    for name in CONFIGURATIONS {
        assert_eq!(objects[name]["metadata"]["annotations"], json!({"wave": "1"}), "{name}");
        for webhook in objects[name]["webhooks"].as_array().expect("webhooks") {
            // A kubelet reports the statuses of all its pods one after the other.
            let seconds = if webhook["name"] == "ended.istio-aux.io" { 2 } else { 9 };
            assert_eq!(webhook["timeoutSeconds"], seconds);
        }
    }
    let without = chart(&["--set=podDisruptionBudget.enabled=false"]);
    assert!(!without.contains_key("PodDisruptionBudget istio-aux"));
}

#[test]
fn one_shim_resource_leaves_the_others_at_their_default() {
    let objects = chart(&["--set=shim.requests.memory=8Mi", "--set=shim.limits.cpu=100m"]);
    assert!(has_argument(&objects, "--shim-requests=cpu=1m,memory=8Mi"), "{}", container(&objects)["args"]);
    assert!(has_argument(&objects, "--shim-limits=cpu=100m,memory=16Mi"), "{}", container(&objects)["args"]);
    let without = chart(&["--set=shim.limits.memory=null"]);
    assert!(has_argument(&without, "--shim-limits=none"), "{}", container(&without)["args"]);
}

#[test]
fn each_image_takes_its_own_digest_or_tag() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let by_digest = chart(&[&format!("--set=image.webhook.digest={digest}"), "--set=image.shim.tag=1.2.4"]);
    assert_eq!(container(&by_digest)["image"], format!("{LOADED_IMAGES}/webhook@{digest}"));
    assert_eq!(container(&by_digest)["env"][0]["value"], format!("{LOADED_IMAGES}/shim:1.2.4"));
}

#[test]
fn released_charts_registry_and_digests_are_overridable() {
    let chart = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/released-chart"));
    let _ = printed(&run_offline("rm", &["-rf", "../target/released-chart"]));
    let _ = printed(&run_offline("cp", &["-r", "helm/istio-aux", "../target/released-chart"]));
    let released =
        format!("registry: registry.example/r\nwebhook: sha256:{}\nshim: sha256:{}\n", "a".repeat(64), "b".repeat(64));
    fs::write(chart.join("released-images.yaml"), released).expect("the file is written");
    let images = |values: &[&str]| {
        let words = ["template", "istio-aux", "../target/released-chart", KUBERNETES, "--no-hooks"];
        let objects = objects(&printed(&run_offline("helm", &[&words, values].concat())));
        [&container(&objects)["image"], &container(&objects)["env"][0]["value"]].map(|image| {
            image.as_str().expect("it is a string").replace(&"a".repeat(64), "a").replace(&"b".repeat(64), "b")
        })
    };
    assert_eq!(images(&[]), ["registry.example/r/webhook@sha256:a", "registry.example/r/shim@sha256:b"]);
    let mirror = images(&["--set=image.registry=mirror.example"]);
    assert_eq!(mirror, ["mirror.example/webhook@sha256:a", "mirror.example/shim@sha256:b"]);
    let tagged = images(&["--set=image.tag=1.2.3"]);
    assert_eq!(tagged, ["registry.example/r/webhook:1.2.3", "registry.example/r/shim:1.2.3"]);
}

/// Returns the webhooks of a configuration that begin with this name.
fn webhooks<'o>(objects: &'o Objects, configuration: &str, begin: &str) -> Vec<&'o Value> {
    let all = objects[configuration]["webhooks"].as_array().expect("there are webhooks").iter();
    all.filter(|webhook| webhook["name"].as_str().is_some_and(|name| name.starts_with(begin))).collect()
}

#[test]
fn objects_of_the_namespace_take_another_name() {
    let values = ["--set=fullnameOverride=hook", "--set=tenancy.enabled=true"];
    let (objects, more) = (chart(&values), ["--set=certificate.from=cert-manager", "--set=monitoring.enabled=true"]);
    for (name, object) in objects.iter().chain(&chart(&[values, more].concat())) {
        let (kind, name) = name.split_once(' ').expect("a kind and a name");
        let is_namespaced = object["metadata"]["namespace"].is_string();
        assert_eq!(name.starts_with("hook"), is_namespaced, "{kind} {name}");
    }
    for configuration in CONFIGURATIONS {
        for webhook in webhooks(&objects, configuration, "") {
            assert_eq!(webhook["clientConfig"]["service"]["name"], "hook", "{configuration}");
        }
    }
    let container = &objects["Deployment hook"]["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().expect("there are arguments");
    for argument in ["--secret=hook-certificate", "--service=hook"] {
        assert!(arguments.contains(&json!(argument)), "{arguments:?}");
    }
    assert!(objects["Service hook"]["spec"]["selector"] == json!({"app.kubernetes.io/name": "hook"}));
    let controller = &objects["Deployment hook-tenancy"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(controller["command"], json!(["/istio-aux-controller", "--lease=hook-tenancy"]));
}

#[test]
fn selectors_are_added_to_each_webhook() {
    let one = |field: &str| format!("--set-json={field}=[{{\"key\": \"{field}\", \"operator\": \"Exists\"}}]");
    let objects = chart(&[&one("namespaceSelector"), &one("objectSelector")]);
    for configuration in CONFIGURATIONS {
        for webhook in webhooks(&objects, configuration, "") {
            for field in ["namespaceSelector", "objectSelector"] {
                let requirements = webhook[field]["matchExpressions"].as_array().expect("there are requirements");
                // A pod that has its shim needs the report of its end, whatever was selected since.
                let is_selected = webhook["name"] != "ended.istio-aux.io";
                let requirement = json!({"key": field, "operator": "Exists"});
                assert_eq!(requirements.contains(&requirement), is_selected, "{field}: {webhook}");
            }
        }
    }
}

#[test]
fn pods_without_hold_are_not_asked_about_before_istio() {
    for (hold, expected) in [("all", None), ("completing", Some("held")), ("never", Some("asks-istio"))] {
        let objects = chart(&[&format!("--set=hold={hold}")]);
        let entries = webhooks(&objects, CONFIGURATIONS[0], "startup-hold.");
        assert_eq!(entries.len(), 3);
        for entry in entries {
            assert_eq!(entry["matchConditions"][0]["name"].as_str(), expected, "{hold}");
        }
    }
}

#[test]
fn volumes_and_strategy_are_the_users() {
    let objects = chart(&[
        "--set=volumes[0].name=ca",
        "--set=volumeMounts[0].name=ca",
        "--set=volumeMounts[0].mountPath=/ca",
        "--set=strategy.type=Recreate",
    ]);
    let spec = deployment(&objects);
    assert_eq!(spec["strategy"], json!({"type": "Recreate"}));
    assert_eq!(spec["template"]["spec"]["volumes"], json!([{"name": "ca"}]));
    assert_eq!(container(&objects)["volumeMounts"], json!([{"name": "ca", "mountPath": "/ca"}]));
}

#[test]
fn helm_test_looks_for_a_hold_that_is_added() {
    let registry = format!("--set=image.registry={LOADED_IMAGES}");
    for (hold, has_test) in [("all", true), ("completing", true), ("never", false)] {
        let rendered = printed(&template(&[KUBERNETES, &registry, &format!("--set=hold={hold}")]));
        assert_eq!(rendered.contains("name: istio-aux-test"), has_test, "{hold}");
    }
}

#[test]
fn token_is_mounted_only_for_the_api() {
    for (values, expected) in [
        (&["--set=certificate.from=self-signed", "--set=nativeSidecars=enabled"][..], true),
        (&["--set=certificate.from=cert-manager"], true),
        (&["--set=certificate.from=cert-manager", "--set=nativeSidecars=enabled"], false),
    ] {
        assert_eq!(
            deployment(&chart(values))["template"]["spec"]["automountServiceAccountToken"],
            expected,
            "{values:?}"
        );
    }
}

#[test]
fn host_network_rolls_out_one_replica_at_a_time() {
    let objects = chart(&["--set=hostNetwork=true"]);
    let spec = deployment(&objects);
    assert_eq!(spec["strategy"]["rollingUpdate"], json!({"maxUnavailable": 1, "maxSurge": 0}));
    assert_eq!(spec["template"]["spec"]["hostNetwork"], true);
    assert_eq!(spec["template"]["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
}

#[test]
fn issuer_of_the_user_replaces_the_charts_ca() {
    let values = ["--set=certificate.from=cert-manager", "--set=certificate.issuerRef.name=vault"];
    let objects = chart(&[&values[..], &["--set=certificate.issuerRef.kind=ClusterIssuer"]].concat());
    let issuer = &objects["Certificate istio-aux"]["spec"]["issuerRef"];
    assert_eq!(*issuer, json!({"name": "vault", "kind": "ClusterIssuer"}));
    assert!(!objects.keys().any(|name| name.starts_with("Issuer") || name == "Certificate istio-aux-ca"));
}

#[test]
fn client_ca_is_mounted_with_and_without_a_certificate() {
    for (from, volumes) in [("self-signed", vec!["client-ca"]), ("cert-manager", vec!["tls", "client-ca"])] {
        let objects = chart(&[&format!("--set=certificate.from={from}"), "--set=clientCA.configMap=callers"]);
        assert!(has_argument(&objects, "--client-ca=/client-ca/ca.crt"), "{}", container(&objects)["args"]);
        let mounts = container(&objects)["volumeMounts"].as_array().expect("there are mounts");
        assert!(mounts.iter().map(|mount| &mount["name"]).eq(&volumes), "{from}: {mounts:?}");
        let mounted = deployment(&objects)["template"]["spec"]["volumes"].as_array().expect("there are volumes");
        assert!(mounted.iter().map(|volume| &volume["name"]).eq(&volumes), "{from}: {mounted:?}");
    }
}

#[test]
fn monitoring_takes_labels_and_an_interval() {
    let values = ["--set=monitoring.enabled=true", "--set=monitoring.labels.release=prometheus"];
    let objects = chart(&[&values[..], &["--set=monitoring.interval=15s"]].concat());
    for name in ["PodMonitor istio-aux", "PrometheusRule istio-aux"] {
        assert_eq!(objects[name]["metadata"]["labels"]["release"], "prometheus", "{name}");
    }
    let endpoints = &objects["PodMonitor istio-aux"]["spec"]["podMetricsEndpoints"];
    assert_eq!(*endpoints, json!([{"port": "health", "path": "/metrics", "interval": "15s"}]));
}

#[test]
fn helm_test_passes_its_hold_to_verify_injection() {
    let registry = format!("--set=image.registry={LOADED_IMAGES}");
    let pod = objects(&printed(&template(&[KUBERNETES, &registry, "--show-only=templates/tests/injection.yaml"])));
    let pod = &pod["Pod istio-aux-test"];
    assert_eq!(pod["metadata"]["labels"]["istio-aux.io/injection"], "enabled");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["verify-injection", "--proxy-config=$(PROXY_CONFIG)"]));
    let field = &container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(*field, "metadata.annotations['proxy.istio.io/config']");
}

#[test]
fn values_reach_the_policy() {
    let values = [
        "--set=profile=policy",
        "--set=image.registry=registry.example/x",
        "--set=image.tag=1.2.3",
        "--set=shim.delivery=image-volume",
        "--set=shim.pullPolicy=Always",
        "--set=shim.requests.memory=8Mi",
        "--set=shim.limits.memory=32Mi",
        "--set=shim.pullSecrets={one,other}",
        "--set=hold=never",
        "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy",
    ];
    let objects = chart(&values);
    for name in ["run-to-completion", "long-running"] {
        let policy = &objects[&format!("MutatingAdmissionPolicy istio-aux-{name}")];
        assert_eq!(policy["apiVersion"], "admissionregistration.k8s.io/v1beta1", "{name}");
        let chosen = |name: &str| {
            let variables = policy["spec"]["variables"].as_array().expect("there are variables");
            variables.iter().find(|variable| variable["name"] == name).expect("it is one of them")["expression"].clone()
        };
        let cases = [
            ("image", "'registry.example/x/shim:1.2.3'"),
            ("pullPolicy", "'Always'"),
            ("delivery", "'image-volume'"),
            ("pullSecrets", "['one', 'other']"),
            ("hold", "'never'"),
            ("defaultRequests", "{'cpu': '1m', 'memory': '8Mi'}"),
            ("defaultLimits", "{'memory': '32Mi'}"),
        ];
        for (variable, expression) in cases {
            assert_eq!(chosen(variable), expression, "{name}: {variable}");
        }
    }
}

#[test]
fn wrong_value_is_rejected_by_its_name() {
    let cases = [
        ("image.registry=", "image.registry is empty: say where the images are"),
        ("image.shim.digest=abc", "digest"),
        ("failurePolicy=Maybe", "failurePolicy"),
        ("shim.delivery=post", "delivery"),
        ("shim.user=root", "user"),
        ("replicas=0", "replicas"),
        ("certificate.from=heaven", "from"),
        ("certificate.validity=a-year", "validity"),
        ("nativeSidecars=on", "nativeSidecars"),
        ("hold=always", "hold"),
        ("shim.pullSecrets={A_b}", "pullSecrets"),
        ("objectSelector[0].operator=In", "objectSelector"),
        ("replica=2", "replica"),
        ("certificate.from=secret", "certificate.caBundle"),
        ("profile=none", "profile"),
        ("timeoutSeconds=31", "timeoutSeconds"),
        ("ports.webhook=0", "webhook"),
        ("monitoring=true", "monitoring"),
        ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name"),
        ("profile=policy,failurePolicy=Ignore", "failurePolicy, nativeSidecars and the selectors are the webhook's"),
    ];
    for (value, name) in cases {
        let output = template(&[KUBERNETES, "--set=image.registry=registry.example/x", "--set", value]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(name), "{value}: {errors}");
    }
}

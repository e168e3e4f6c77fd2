//! Who may write the shim's `ConfigMaps`: the controller and nobody else; and what becomes of those that somebody made.

use contract::names::SHIM_CONFIG_MAP_PREFIX;
use e2e::cluster::{MESH, OPT_IN, client};
use e2e::command::run;
use e2e::config_map::{Delivery, config_maps, delivery_of, mounted, policies, until_delivered};
use e2e::manifests::{pod, pod_spec, shell};
use e2e::rights::rules;
use e2e::tenancy::{CONTROLLER, apply, kubectl, until_event};
use e2e::{Namespace, scenario};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::api::Api;
use serde_json::{Value, json};

use crate::{alone, opt_in, switched_on};

const THEIRS: &str = "ConfigMaps istio-aux-shim-* are what pods run beside their proxy";

/// What the API server answers an account to a command of kubectl; empty where it does it.
fn refusal(account: &str, words: &[&str], input: &str) -> String {
    let account = format!("--as=system:serviceaccount:{account}");
    let output = run("kubectl", &[words, &[&account, "--dry-run=server"]].concat(), input);
    if output.status.success() { String::new() } else { String::from_utf8_lossy(&output.stderr).into_owned() }
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": {"aux-shim": "AAAA"}})
}

/// What its account may do in namespaces that are not its own.
#[tokio::test]
async fn account_may_do_nothing_but_its_two_duties() {
    let (_guard, _delivery) = switched_on().await;
    let expected = [
        "create istio-aux.io/shimdeliveries []",
        "create kubeflow.org/poddefaults []",
        "create rbac.authorization.k8s.io/rolebindings []",
        "create,get /configmaps []",
        "create,patch events.k8s.io/events []",
        "get admissionregistration.k8s.io/validatingadmissionpolicies,validatingadmissionpolicybindings [istio-aux-shim-config-maps,istio-aux-shim-delivery]",
        "get,bind rbac.authorization.k8s.io/clusterroles [kubeflow-pipelines-edit]",
        "get,list,watch /namespaces []",
        "get,patch,delete kubeflow.org/poddefaults [access-ml-pipeline]",
        "get,patch,delete rbac.authorization.k8s.io/rolebindings [istio-aux-pipelines]",
        "patch /namespaces []",
    ];
    assert_eq!(rules(CONTROLLER.0, CONTROLLER.1, "default").await, expected);
}

#[tokio::test]
async fn only_the_controller_writes_the_shims_config_maps_and_their_label() {
    let (_guard, _delivery) = switched_on().await;
    let mut name = String::new();
    scenario("guarded", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.name().clone_into(&mut name);
        let own = until_delivered(ns).await;
        kubectl(&["-n", ns.name(), "create", "serviceaccount", "owner"]);
        let owner = format!("{}:owner", ns.name());
        let bound = format!("--serviceaccount={owner}");
        kubectl(&["-n", ns.name(), "create", "rolebinding", "owner", "--clusterrole=admin", &bound]);
        // With the rights of somebody who labels namespaces.
        let labeller = format!("{}-labels", ns.name());
        kubectl(&["create", "clusterrole", &labeller, "--verb=get,patch,update", "--resource=namespaces"]);
        kubectl(&["create", "clusterrolebinding", &labeller, &format!("--clusterrole={labeller}"), &bound]);
        let here = ["-n", ns.name()];
        let other = format!("{SHIM_CONFIG_MAP_PREFIX}0000000000");
        let create = [&here[..], &["create", "-f", "-"]].concat();
        assert!(refusal(&owner, &create, &config_map(&other).to_string()).contains(THEIRS));
        let generated =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": SHIM_CONFIG_MAP_PREFIX}});
        assert!(refusal(&owner, &create, &generated.to_string()).contains(THEIRS));
        assert!(refusal(&owner, &[&here[..], &["delete", "configmap", &own]].concat(), "").contains(THEIRS));
        assert!(refusal(&owner, &[&here[..], &["delete", "configmap", "--all"]].concat(), "").contains(THEIRS));
        let annotate = [&here[..], &["annotate", "configmap", &own, "a=b"]].concat();
        assert!(refusal(&owner, &annotate, "").contains(THEIRS));
        assert_eq!(refusal(&owner, &create, &config_map("mine").to_string()), "", "others are their own");

        let label = |value: &str| refusal(&owner, &["label", "namespace", ns.name(), "--overwrite", value], "");
        assert!(label("istio-aux.io/shim-delivery=config-map-9").contains("is set by istio-aux tenancy"));
        assert_eq!(label("istio-aux.io/shim-delivery=copy"), "");
        assert_eq!(label("istio-aux.io/shim-delivery-"), "");
        assert_eq!(label("team=red"), "");

        let account = format!("{}:{}", CONTROLLER.0, CONTROLLER.1);
        assert!(
            refusal(&account, &create, &config_map("mine").to_string())
                .contains("may write ConfigMaps istio-aux-shim-* only")
        );
        let patch =
            |patch: &str| refusal(&account, &["patch", "namespace", ns.name(), "--type=merge", "-p", patch], "");
        for attempt in [
            r#"{"metadata":{"labels":{"istio-injection":"disabled"}}}"#,
            r#"{"metadata":{"labels":{"new":"label"}}}"#,
            r#"{"metadata":{"labels":{"istio-aux.io/injection":null}}}"#,
            r#"{"metadata":{"annotations":{"new":"annotation"}}}"#,
            r#"{"metadata":{"finalizers":["example.com/kept"]}}"#,
        ] {
            assert!(patch(attempt).contains("of namespaces only"), "{attempt}: {}", patch(attempt));
        }
        assert_eq!(patch(r#"{"metadata":{"labels":{"istio-aux.io/shim-delivery":null}}}"#), "");
        kubectl(&["delete", "clusterrole,clusterrolebinding", &labeller]);
    })
    .await;
    scenario("watches", &[], async |ns: &Namespace| {
        let namespaces: Api<NamespaceObject> = Api::all(client().await);
        ns.until("the namespace to go, with its ConfigMap", async || {
            namespaces.get_opt(&name).await.expect("namespaces are read").is_none().then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn without_the_policies_nothing_is_delivered_and_somebody_elses_config_map_stays() {
    let _guard = alone().await;
    let _delivery = Delivery::on_without_policies();
    scenario("theirs", &[MESH, OPT_IN], async |ns: &Namespace| {
        let said = until_event(ns, "DeliveryRefused").await;
        assert!(said.contains("there is no ValidatingAdmissionPolicy istio-aux-shim-config-maps"), "{said}");
        assert_eq!((config_maps(ns).await, delivery_of(ns)), (vec![], None));

        apply(&policies());
        let name = until_delivered(ns).await;
        e2e::tenancy::label(ns, "istio-aux.io/injection=disabled");
        ns.until("the label to go", async || delivery_of(ns).is_none().then_some(())).await;
        kubectl(&["-n", ns.name(), "delete", "configmap", &name]);
        let theirs = ns.create_object(config_map(&name)).await;
        opt_in(ns);
        let said = until_event(ns, "ConfigMapNotOurs").await;
        assert!(said.contains("is somebody else's and is left as it is; pods get the shim by copy"), "{said}");
        assert_eq!(delivery_of(ns), None);
        let now = ns.get(&config_map(&name)).await;
        assert_eq!(now["metadata"]["resourceVersion"].as_str(), theirs.metadata.resource_version.as_deref());
        let one = pod("copied", &pod_spec("Never", &[shell("main", "true")]));
        assert_eq!(ns.run_pod(one.clone()).await.0, "Succeeded");
        let made = serde_json::to_value(ns.dry_run(one).await).expect("a pod is JSON");
        assert_eq!(mounted(&made), None);
    })
    .await;
}

//! Plans the changes of a namespace from its labels and its objects. Pure. Only objects that istio-aux manages are changed.

use std::fmt;

use api::events::EventNote;
use contract::kind::{Kind, POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, PIPELINES_ACCOUNTS_ANNOTATION};
use inject::tenancy::desired::DesiredTenancy;
use inject::tenancy::objects::{ROLE_BINDING_NAME, installation_of, labelled, pod_default, role_binding};
use serde_json::Value;

/// Describes the installation that plans.
#[derive(Debug, Clone)]
pub(crate) struct Installation {
    /// Is its namespace.
    pub(crate) namespace: String,
    /// Has the `ClusterRoles` that it may bind. A namespace asks for one of them.
    pub(crate) roles: Vec<String>,
}

/// Holds the objects of a namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Is true if the role that is asked for exists.
    pub(crate) has_role: bool,
    /// Has the object of the `RoleBinding`'s name.
    pub(crate) role_binding: Option<Value>,
    /// Has the object of the `PodDefault`'s name.
    pub(crate) pod_default: Option<Value>,
}

/// Holds what to do.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) notices: Vec<EventNote>,
}

/// Changes one object.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Applies the object. It replaces only an object that istio-aux manages; otherwise another client that creates the object
    /// first wins.
    Apply { kind: Kind, object: Value, replaces: bool },
    /// Deletes the managed object of this name and UID.
    Delete { kind: Kind, name: &'static str, uid: String },
}

impl Action {
    /// Returns the kind of the object.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Apply { kind, .. } | Self::Delete { kind, .. } => *kind,
        }
    }
}

/// Describes the action once it is done.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Apply { kind, object, .. } => {
                write!(f, "applied {} {}", kind.name, object["metadata"]["name"].as_str().unwrap_or_default())
            }
            Self::Delete { kind, name, .. } => write!(f, "deleted {} {name}", kind.name),
        }
    }
}

/// Reports a label or an annotation that cannot be understood.
pub(crate) fn invalid_value(text: String) -> EventNote {
    EventNote::warning("InvalidValue", text)
}

/// Plans for one namespace.
pub(crate) fn plan(
    installation: &Installation,
    namespace: &str,
    desired: &DesiredTenancy,
    observed: &Observed,
) -> Plan {
    let mut planner = Planner { installation, plan: Plan::default() };
    let (bound, offered) = (observed.role_binding.as_ref(), observed.pod_default.as_ref());
    match desired {
        DesiredTenancy::Invalid { annotation, reason } => {
            let is_permitted = |bound: &&Value| installation.roles.iter().any(|role| bound["roleRef"]["name"] == *role);
            planner.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, bound.filter(|bound| !is_permitted(bound)));
            planner.note(invalid_value(format!("annotation {annotation}: {reason}")));
        }
        DesiredTenancy::Nothing => {
            planner.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, bound);
            planner.remove(POD_DEFAULTS, ACCESS_PIPELINES_LABEL, offered);
        }
        DesiredTenancy::Objects { accounts, role } => {
            if accounts.is_empty() {
                planner.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, bound);
                planner.note(EventNote {
                    reason: "NobodyNamed",
                    is_warning: false,
                    text: format!(
                        "no account is bound: annotate the namespace with {PIPELINES_ACCOUNTS_ANNOTATION}=NAME,NAME"
                    ),
                });
            } else {
                planner.bind(role, role_binding(namespace, role, accounts), observed);
            }
            planner.keep_pod_default(pod_default(namespace), offered);
        }
    }
    planner.plan
}

struct Planner<'a> {
    installation: &'a Installation,
    plan: Plan,
}

impl Planner<'_> {
    fn note(&mut self, note: EventNote) {
        self.plan.notices.push(note);
    }

    /// Returns true if the controller of this installation keeps the object.
    fn is_ours(&self, object: &Value) -> bool {
        installation_of(object) == Some(&self.installation.namespace)
    }

    fn apply(&mut self, kind: Kind, object: Value, replaces: bool) {
        let object = labelled(object, &self.installation.namespace);
        self.plan.actions.push(Action::Apply { kind, object, replaces });
    }

    fn remove(&mut self, kind: Kind, name: &'static str, found: Option<&Value>) {
        if let Some(found) = found.filter(|found| self.is_ours(found)) {
            let uid = found["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.plan.actions.push(Action::Delete { kind, name, uid });
        }
    }

    fn bind(&mut self, role: &str, desired: Value, observed: &Observed) {
        let found = observed.role_binding.as_ref();
        if found.is_some_and(|found| !self.is_ours(found)) {
            let text = format!(
                "RoleBinding {ROLE_BINDING_NAME} is not managed by this istio-aux; left unchanged; delete it, or create it by another name"
            );
            return self.note(EventNote::warning("RoleBindingNotManaged", text));
        }
        // The roleRef of a binding is immutable, and the binding to a role that is no longer asked for goes in any case.
        let is_same_role = found.is_some_and(|found| found["roleRef"] == desired["roleRef"]);
        if found.is_some() && !is_same_role {
            self.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, found);
        }
        let roles = &self.installation.roles;
        if !roles.iter().any(|permitted| permitted == role) {
            if is_same_role {
                self.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, found);
            }
            let text = format!(
                "ClusterRole {role} is not one that istio-aux may bind here: {}; no account is bound",
                roles.join(", ")
            );
            self.note(EventNote::warning("RoleNotPermitted", text));
        } else if !observed.has_role {
            let text = format!("there is no ClusterRole {role}; no account is bound to it");
            self.note(EventNote::warning("ClusterRoleMissing", text));
        } else if !is_same_role || found.is_none_or(|found| found["subjects"] != desired["subjects"]) {
            self.apply(ROLE_BINDINGS, desired, is_same_role);
        }
    }

    fn keep_pod_default(&mut self, desired: Value, found: Option<&Value>) {
        match found {
            Some(found) if !self.is_ours(found) => self.note(EventNote {
                reason: "PodDefaultNotManaged",
                // It gives pods a token, too.
                is_warning: false,
                text: format!("PodDefault {ACCESS_PIPELINES_LABEL} is not managed by this istio-aux; left unchanged"),
            }),
            Some(found) if found["spec"] == desired["spec"] => {}
            _ => {
                // Server-side apply would keep fields that others have added.
                self.remove(POD_DEFAULTS, ACCESS_PIPELINES_LABEL, found);
                self.apply(POD_DEFAULTS, desired, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::names::TENANCY_MANAGER;
    use serde_json::json;

    const NAMESPACE: &str = "team";
    const ROLE: &str = "istio-aux-pipelines";

    fn installation() -> Installation {
        Installation { namespace: "istio-aux".to_owned(), roles: vec![ROLE.to_owned(), "edit".to_owned()] }
    }

    fn desired(accounts: &[&str], role: &str) -> DesiredTenancy {
        let accounts = accounts.iter().map(|&account| account.to_owned()).collect();
        DesiredTenancy::Objects { accounts, role: role.to_owned() }
    }

    /// Returns an object as the API server has it after a controller has applied it.
    fn applied(object: Value, installation: &str) -> Value {
        let mut object = labelled(object, installation);
        object["metadata"]["managedFields"] = json!([{"manager": TENANCY_MANAGER, "operation": "Apply"}]);
        object
    }

    /// Returns a namespace in which everything is as `desired(&["trainer"], ROLE)` asks for.
    fn up_to_date() -> Observed {
        let objects = [role_binding(NAMESPACE, ROLE, &["trainer".to_owned()]), pod_default(NAMESPACE)];
        let [role_binding, pod_default] = objects.map(|object| Some(applied(object, "istio-aux")));
        Observed { has_role: true, role_binding, pod_default }
    }

    /// Describes a plan.
    fn lines(plan: &Plan) -> Vec<String> {
        let actions = plan.actions.iter().map(Action::to_string);
        actions.chain(plan.notices.iter().map(|notice| notice.reason.to_owned())).collect()
    }

    #[test]
    fn plan_changes_only_managed_objects() {
        const BIND: &str = "applied RoleBinding istio-aux-pipelines";
        const POD_DEFAULT: &str = "applied PodDefault access-ml-pipeline";
        const UNBIND: &str = "deleted RoleBinding istio-aux-pipelines";
        const DELETE_POD_DEFAULT: &str = "deleted PodDefault access-ml-pipeline";
        let empty = Observed { has_role: true, ..Observed::default() };
        let changed = |change: &dyn Fn(&mut Observed)| {
            let mut observed = up_to_date();
            change(&mut observed);
            observed
        };
        let each = |change: fn(&mut Value)| {
            changed(&move |o| o.role_binding.iter_mut().chain(o.pod_default.iter_mut()).for_each(change))
        };
        // As somebody applies what `istio-aux tenant-objects` prints, or with our labels written by hand.
        let printed = each(|object| object["metadata"]["managedFields"][0]["manager"] = json!("kubectl"));
        let of_another = each(|object| object["metadata"]["labels"]["istio-aux.io/installation"] = json!("other"));
        let other_role = changed(&|o| o.role_binding.as_mut().unwrap()["roleRef"]["name"] = json!("edit"));
        let edited_pod_default = changed(&|o| o.pod_default.as_mut().unwrap()["spec"]["env"] = json!([]));
        let no_role = || changed(&|o| o.has_role = false);
        let invalid = || DesiredTenancy::Invalid { annotation: "a", reason: "b".to_owned() };
        let trainer = || desired(&["trainer"], ROLE);
        let not_managed: &[&str] = &["RoleBindingNotManaged", "PodDefaultNotManaged"];
        let cases: [(DesiredTenancy, Observed, &[&str]); 20] = [
            (trainer(), empty.clone(), &[BIND, POD_DEFAULT]),
            (trainer(), up_to_date(), &[]),
            (desired(&["default", "trainer"], ROLE), up_to_date(), &[BIND]),
            (desired(&[], ROLE), empty.clone(), &[POD_DEFAULT, "NobodyNamed"]),
            (desired(&[], ROLE), up_to_date(), &[UNBIND, "NobodyNamed"]),
            (desired(&["trainer"], "edit"), up_to_date(), &[UNBIND, BIND]),
            (trainer(), other_role, &[UNBIND, BIND]),
            (desired(&["trainer"], "cluster-admin"), up_to_date(), &[UNBIND, "RoleNotPermitted"]),
            (desired(&["trainer"], "cluster-admin"), empty.clone(), &[POD_DEFAULT, "RoleNotPermitted"]),
            (trainer(), edited_pod_default, &[DELETE_POD_DEFAULT, POD_DEFAULT]),
            (trainer(), Observed::default(), &[POD_DEFAULT, "ClusterRoleMissing"]),
            (trainer(), no_role(), &["ClusterRoleMissing"]),
            (trainer(), printed.clone(), not_managed),
            (trainer(), of_another.clone(), not_managed),
            (DesiredTenancy::Nothing, up_to_date(), &[UNBIND, DELETE_POD_DEFAULT]),
            (DesiredTenancy::Nothing, printed, &[]),
            (DesiredTenancy::Nothing, of_another, &[]),
            (DesiredTenancy::Nothing, empty, &[]),
            (invalid(), up_to_date(), &["InvalidValue"]),
            (invalid(), Observed::default(), &["InvalidValue"]),
        ];
        for (desired, observed, expected) in cases {
            assert_eq!(
                lines(&plan(&installation(), NAMESPACE, &desired, &observed)),
                expected,
                "{desired:?} {observed:?}"
            );
        }
    }

    #[test]
    fn binding_to_a_role_no_longer_permitted_goes() {
        let installation = Installation { roles: vec!["other".to_owned()], ..installation() };
        let plan = plan(&installation, NAMESPACE, &desired(&["trainer"], ROLE), &up_to_date());
        assert_eq!(lines(&plan), ["deleted RoleBinding istio-aux-pipelines", "RoleNotPermitted"]);
        let invalid = DesiredTenancy::Invalid { annotation: "a", reason: "b".to_owned() };
        let plan = super::plan(&installation, NAMESPACE, &invalid, &up_to_date());
        assert_eq!(lines(&plan), ["deleted RoleBinding istio-aux-pipelines", "InvalidValue"]);
    }

    #[test]
    fn only_managed_object_is_replaced() {
        let replaces = |observed: &Observed| {
            let actions = plan(&installation(), NAMESPACE, &desired(&["other"], ROLE), observed).actions;
            actions.iter().map(|action| matches!(action, Action::Apply { replaces: true, .. })).collect::<Vec<_>>()
        };
        assert_eq!(replaces(&Observed { has_role: true, ..Observed::default() }), [false, false]);
        assert_eq!(replaces(&up_to_date()), [true]);
    }

    #[test]
    fn executed_plan_leaves_nothing_to_do() {
        for desired in
            [desired(&["default"], ROLE), desired(&["b", "a"], "edit"), desired(&[], ROLE), DesiredTenancy::Nothing]
        {
            let mut observed = Observed { has_role: true, ..Observed::default() };
            for action in plan(&installation(), NAMESPACE, &desired, &observed).actions {
                match action {
                    Action::Apply { kind, object, .. } => {
                        let object = Some(applied(object, "istio-aux"));
                        let target =
                            if kind == ROLE_BINDINGS { &mut observed.role_binding } else { &mut observed.pod_default };
                        *target = object;
                    }
                    Action::Delete { .. } => unreachable!("there is nothing"),
                }
            }
            let again = plan(&installation(), NAMESPACE, &desired, &observed);
            assert!(again.actions.is_empty(), "{desired:?}: {again:?}");
        }
    }
}

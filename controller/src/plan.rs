//! Plans the changes of a namespace from its labels and its objects. Pure. Only objects that istio-aux manages are changed.

use std::fmt;

use contract::kind::{Kind, POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, PIPELINES_ROLE};
use inject::tenancy::objects::{ROLE_BINDING_NAME, is_ours, pod_default, role_binding};
use inject::tenancy::wish::Wish;
use serde_json::Value;

/// Holds the objects of a namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Is true if Kubeflow's role for pipelines exists.
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

/// Reports what could not be done, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventNote {
    /// Is the reason of the event, in one word.
    pub(crate) reason: &'static str,
    /// Is true if something does not work.
    pub(crate) is_warning: bool,
    pub(crate) text: String,
}

impl EventNote {
    pub(crate) fn warning(reason: &'static str, text: String) -> Self {
        Self { reason, is_warning: true, text }
    }

    /// Reports a label or an annotation that cannot be understood.
    pub(crate) fn invalid_value(text: String) -> Self {
        Self::warning("InvalidValue", text)
    }
}

/// Plans for one namespace.
pub(crate) fn plan(namespace: &str, wish: &Wish, observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    match wish {
        Wish::Unclear(text) => plan.notices.push(EventNote::invalid_value(text.clone())),
        Wish::Nothing => {
            plan.remove(ROLE_BINDINGS, ROLE_BINDING_NAME, observed.role_binding.as_ref());
            plan.remove(POD_DEFAULTS, ACCESS_PIPELINES_LABEL, observed.pod_default.as_ref());
        }
        Wish::Objects { accounts } => {
            plan.bind(role_binding(namespace, accounts), observed);
            plan.keep_pod_default(pod_default(namespace), observed.pod_default.as_ref());
        }
    }
    plan
}

impl Plan {
    fn remove(&mut self, kind: Kind, name: &'static str, found: Option<&Value>) {
        if let Some(found) = found.filter(|found| is_ours(found)) {
            let uid = found["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.actions.push(Action::Delete { kind, name, uid });
        }
    }

    fn bind(&mut self, desired: Value, observed: &Observed) {
        let found = observed.role_binding.as_ref();
        // The roleRef of a binding is immutable.
        if found.is_some_and(|found| !is_ours(found) || found["roleRef"] != desired["roleRef"]) {
            let text = format!(
                "RoleBinding {ROLE_BINDING_NAME} is not managed by istio-aux; left unchanged; delete it, or give it another name"
            );
            self.notices.push(EventNote::warning("RoleBindingNotManaged", text));
        } else if !observed.has_role {
            let text = format!(
                "there is no ClusterRole {PIPELINES_ROLE}, which comes with Kubeflow Pipelines; no account is bound to it"
            );
            self.notices.push(EventNote::warning("ClusterRoleMissing", text));
        } else if found.is_none_or(|found| found["subjects"] != desired["subjects"]) {
            self.actions.push(Action::Apply { kind: ROLE_BINDINGS, object: desired, replaces: found.is_some() });
        }
    }

    fn keep_pod_default(&mut self, desired: Value, found: Option<&Value>) {
        match found {
            Some(found) if !is_ours(found) => self.notices.push(EventNote {
                reason: "PodDefaultNotManaged",
                // It gives pods a token, too.
                is_warning: false,
                text: format!("PodDefault {ACCESS_PIPELINES_LABEL} is not managed by istio-aux; left unchanged"),
            }),
            Some(found) if found["spec"] == desired["spec"] => {}
            _ => self.actions.push(Action::Apply { kind: POD_DEFAULTS, object: desired, replaces: found.is_some() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NAMESPACE: &str = "team";

    fn wish(accounts: &[&str]) -> Wish {
        Wish::Objects { accounts: accounts.iter().map(|&account| account.to_owned()).collect() }
    }

    /// Returns a namespace in which everything is as `wish(&["default"])` asks for.
    fn up_to_date() -> Observed {
        let role_binding = Some(role_binding(NAMESPACE, &["default".to_owned()]));
        Observed { has_role: true, role_binding, pod_default: Some(pod_default(NAMESPACE)) }
    }

    fn unmanaged(mut object: Value) -> Value {
        object["metadata"]["labels"] = json!(null);
        object
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
        let changed = |change: fn(&mut Observed)| {
            let mut observed = up_to_date();
            change(&mut observed);
            observed
        };
        let foreign = changed(|o| {
            o.role_binding = o.role_binding.take().map(unmanaged);
            o.pod_default = o.pod_default.take().map(unmanaged);
        });
        let other_role = changed(|o| o.role_binding.as_mut().unwrap()["roleRef"]["name"] = json!("cluster-admin"));
        let edited_pod_default = changed(|o| o.pod_default.as_mut().unwrap()["spec"]["env"] = json!([]));
        let unclear = || Wish::Unclear("label".to_owned());
        let cases: [(Wish, Observed, &[&str]); 13] = [
            (wish(&["default"]), empty.clone(), &[BIND, POD_DEFAULT]),
            (wish(&["default"]), up_to_date(), &[]),
            (wish(&["default", "trainer"]), up_to_date(), &[BIND]),
            (wish(&["default"]), edited_pod_default, &[POD_DEFAULT]),
            (wish(&["default"]), Observed::default(), &[POD_DEFAULT, "ClusterRoleMissing"]),
            (wish(&["default"]), changed(|o| o.has_role = false), &["ClusterRoleMissing"]),
            (wish(&["default"]), foreign.clone(), &["RoleBindingNotManaged", "PodDefaultNotManaged"]),
            (wish(&["default"]), other_role, &["RoleBindingNotManaged"]),
            (Wish::Nothing, up_to_date(), &[UNBIND, DELETE_POD_DEFAULT]),
            (Wish::Nothing, foreign, &[]),
            (Wish::Nothing, empty, &[]),
            (unclear(), up_to_date(), &["InvalidValue"]),
            (unclear(), Observed::default(), &["InvalidValue"]),
        ];
        for (wish, observed, expected) in cases {
            assert_eq!(lines(&plan(NAMESPACE, &wish, &observed)), expected, "{wish:?} {observed:?}");
        }
    }

    #[test]
    fn only_managed_object_is_replaced() {
        let replaces = |observed: &Observed| {
            let actions = plan(NAMESPACE, &wish(&["trainer"]), observed).actions;
            actions.iter().map(|action| matches!(action, Action::Apply { replaces: true, .. })).collect::<Vec<_>>()
        };
        assert_eq!(replaces(&Observed { has_role: true, ..Observed::default() }), [false, false]);
        assert_eq!(replaces(&up_to_date()), [true]);
    }

    #[test]
    fn executed_plan_leaves_nothing_to_do() {
        for wish in [wish(&["default"]), wish(&["b", "a"]), Wish::Nothing] {
            let mut observed = Observed { has_role: true, ..Observed::default() };
            for action in plan(NAMESPACE, &wish, &observed).actions {
                match action {
                    Action::Apply { kind: ROLE_BINDINGS, object, .. } => observed.role_binding = Some(object),
                    Action::Apply { object, .. } => observed.pod_default = Some(object),
                    Action::Delete { .. } => unreachable!("there is nothing"),
                }
            }
            assert_eq!(plan(NAMESPACE, &wish, &observed), Plan::default(), "{wish:?}");
        }
    }
}

"""Labels what an application's account writes in its model, as Juju's model webhook does.

Juju 3.6.11, `internal/worker/caasadmission`: admission.go has its rules (CREATE and UPDATE of every resource, all
scopes, in the model's namespace, except objects with the label `model.juju.is/disable-webhook`), and handler.go the
labels, which it puts or replaces by the application of the caller's service account (`patchForLabels`).
"""

import json

from tests.cluster.model import ACCOUNT, Model

_LABELS = {
    "app.juju.is/created-by": ACCOUNT,
    "app.kubernetes.io/managed-by": "juju",
    "model.juju.is/name": "{model}",
    "model.juju.is/id": "{uuid}",
}


def install(model: Model) -> None:
    """Puts a policy into the cluster that labels as Juju does. It goes with the model."""
    name = f"{model.name}-juju"
    labels = {key: value.format(model=model.name, uuid=model.juju.uuid) for key, value in _LABELS.items()}
    pairs = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in labels.items())
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["CREATE", "UPDATE"]}
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": model.name}},
                "objectSelector": {
                    "matchExpressions": [{"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"}]
                },
            },
            "matchConditions": [
                {
                    "name": "by-the-application",
                    "expression": f"request.userInfo.username == 'system:serviceaccount:{model.name}:{ACCOUNT}'",
                },
                {"name": "in-the-model", "expression": f"request.namespace == '{model.name}'"},
            ],
            "mutations": [
                {
                    "patchType": "JSONPatch",
                    "jsonPatch": {
                        "expression": "(has(object.metadata.labels) ? [] : "
                        "[JSONPatch{op: 'add', path: '/metadata/labels', value: {}}]) + "
                        f"{{{pairs}}}.map(k, k).map(k, JSONPatch{{op: 'add', "
                        "path: '/metadata/labels/' + jsonpatch.escapeKey(k), "
                        f"value: {{{pairs}}}[k]}})"
                    },
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    model.apply([policy, binding])
    model.at_end.append(("mutatingadmissionpolicy,mutatingadmissionpolicybinding", name))

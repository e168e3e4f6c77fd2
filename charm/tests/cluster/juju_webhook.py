"""Labels what an application's account writes in its model, as Juju's model webhook does.

Juju 3.6.11, `internal/worker/caasadmission`: admission.go has its rules (CREATE and UPDATE of every resource, all
scopes, in the model's namespace, except objects with the label `model.juju.is/disable-webhook`), and handler.go the
labels, which it puts or replaces by the application of the caller's service account (`patchForLabels`).
"""

import json
import pathlib

import yaml

from tests.cluster.model import Model

POLICY = pathlib.Path(__file__).with_suffix(".yaml").read_text()


def install(model: Model) -> None:
    """Puts a policy into the cluster that labels as Juju does. It goes with the model."""
    text = POLICY.replace("juju-model", model.name).replace("juju-labels", json.dumps(model.labels))
    model.apply(list(yaml.safe_load_all(text)))
    model.at_end.append(("mutatingadmissionpolicy,mutatingadmissionpolicybinding", f"{model.name}-juju"))

"""A Juju model as the charm meets it in Kubernetes: a namespace, an account, and its rights."""

import json
import os
import pathlib
import subprocess
import uuid
from typing import Any

import lightkube
import pytest
import yaml
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.core_v1 import Namespace, ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding, RoleBinding
from ops import testing

from tests.cluster.waiting import until
from tests.unit.juju import App, image_resource

ACCOUNT = "istio-aux"
SHIM_IMAGE = os.environ.get("SHIM_IMAGE", "docker.io/istio-aux/shim:0.1.0")


class Model:
    """A Juju model as Kubernetes sees it: a namespace, and in it the application's service account."""

    def __init__(self, admin: lightkube.Client, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.admin = admin
        self.name = f"charm-{uuid.uuid4().hex[:8]}"
        self.juju = testing.Model(name=self.name, uuid=str(uuid.uuid4()), type="kubernetes")
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._namespaces = [self.name]
        self.at_end: list[tuple[str, str]] = []
        """Kinds and names of cluster-scoped objects to delete."""
        admin.create(Namespace(metadata=ObjectMeta(name=self.name)))
        admin.create(ServiceAccount(metadata=ObjectMeta(name=ACCOUNT, namespace=self.name)))
        own = RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name="admin")
        binding = RoleBinding(
            metadata=ObjectMeta(name=ACCOUNT, namespace=self.name), roleRef=own, subjects=[self._subject()]
        )
        admin.create(binding)
        self.use()

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels by which Juju finds the application's objects."""
        return {
            "app.juju.is/created-by": ACCOUNT,
            "app.kubernetes.io/managed-by": "juju",
            "model.juju.is/name": self.name,
            "model.juju.is/id": self.juju.uuid,
        }

    def trust(self) -> None:
        """Grants the rights of `juju trust --scope=cluster`."""
        role = RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name="cluster-admin")
        binding = ClusterRoleBinding(
            metadata=ObjectMeta(name=self.name, labels=self.labels), roleRef=role, subjects=[self._subject()]
        )
        self.admin.create(binding)
        account = f"--as=system:serviceaccount:{self.name}:{ACCOUNT}"
        may = ("auth", "can-i", "delete", "namespaces", account)
        until("the rights of the account", lambda: self._run_kubectl(*may).stdout.strip() == "yes")

    def deployed(self, config: dict[str, Any] | None = None, units: int = 1) -> App:
        """Deploys the application in this model."""
        app = App(model=self.juju)
        image = os.environ.get("WEBHOOK_IMAGE", "registry.invalid/istio-aux/webhook:0.1.0")
        app.resources = frozenset({image_resource(registrypath=image)})
        app.deploy(units, {"shim-image": SHIM_IMAGE, **(config or {})})
        return app

    def apply(self, objects: list[dict[str, Any]]) -> None:
        """Applies objects as the administrator."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """Reads an object of the model's namespace, or of the cluster."""
        return json.loads(self.kubectl("get", kind, name, "-n", self.name, "-o", "json"))

    def namespace(self, **labels: str) -> str:
        """Creates a namespace beside the model's."""
        name = f"{self.name}-{len(self._namespaces)}"
        named = {spelled(label): value for label, value in labels.items()}
        self.admin.create(Namespace(metadata=ObjectMeta(name=name, labels=named)))
        self._namespaces.append(name)
        return name

    def use(self, server: str | None = None) -> None:
        """Points the charm's kubeconfig at a server, by default the real one."""
        request = ServiceAccount.Token(metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[]))
        token = self.admin.create(request, ACCOUNT, namespace=self.name).status
        assert token
        cluster = self.admin.config.cluster
        ca, file = cluster.certificate_auth_data, cluster.certificate_auth
        trusted = {"certificate-authority-data": ca} if ca else {"certificate-authority": file}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "charm",
            "clusters": [{"name": "charm", "cluster": {"server": server or cluster.server, **trusted}}],
            "users": [{"name": "charm", "user": {"token": token.token}}],
            "contexts": [{"name": "charm", "context": {"cluster": "charm", "user": "charm", "namespace": self.name}}],
        }
        path = self._directory / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        self._monkeypatch.setenv("KUBECONFIG", str(path))

    def written(self) -> list[str]:
        """Lists the objects that the charm wrote, without those that Kubernetes makes for a Service or a Deployment."""
        others = ("endpoints/", "endpointslice.", "replicaset.", "pod/")
        return [each for each in self.left() if not each.startswith(others)]

    def until_nothing_is_left(self) -> None:
        """Waits until nothing is left: Kubernetes deletes derived objects a moment later."""
        assert self.written() == []
        self.until_swept()

    def until_swept(self) -> None:
        """Waits until Kubernetes has deleted what was owned by something deleted. Fails naming what is left."""
        try:
            until("no object of any kind with the application's labels", lambda: not self.left())
        except AssertionError as error:
            raise AssertionError(f"{error}: left are {self.left()}") from error

    def left(self, *scope: str) -> list[str]:
        """Lists the objects with the application's labels of any kind, or of a scope's, as kubectl names them.

        Without the two that Juju labels itself: the account's rights, which it deletes after the last hook, and the
        model's namespace, which Juju deletes by its name.
        """
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name", *scope).split()
        selector = f"app.juju.is/created-by=istio-aux,model.juju.is/id={self.juju.uuid}"
        # Metrics have no labels of ours, and need not be served.
        listed = ",".join(kind for kind in kinds if not kind.endswith("metrics.k8s.io"))
        found = self.kubectl("get", listed, "--all-namespaces", "-l", selector, "-o", "name").split()
        jujus = (f"clusterrolebinding.rbac.authorization.k8s.io/{self.name}", f"namespace/{self.name}")
        return [each for each in found if each not in jujus]

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Runs kubectl as the administrator."""
        done = self._run_kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run_kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": os.environ["ISTIO_AUX_ADMIN_KUBECONFIG"]}
        words = ["kubectl", *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, input=stdin)

    def marked_namespaces(self) -> list[str]:
        """Lists the namespaces with this application's record."""
        found: list[str] = []
        for namespace in self.admin.list(Namespace):
            mark = ((namespace.metadata and namespace.metadata.annotations) or {}).get("istio-aux.io/labelled-by")
            if mark and json.loads(mark)["application"] == f"{self.name}/istio-aux":
                found.append(str(namespace.metadata and namespace.metadata.name))
        return found

    def end(self) -> None:
        """Deletes what the test created, also after a failure."""
        # Those of namespaces go with them.
        leftovers = self.left("--namespaced=false")
        if leftovers:
            self.kubectl("delete", "--ignore-not-found", "--wait=false", *leftovers)
        for kinds, name in [*self.at_end, ("clusterrolebinding", self.name)]:
            self.kubectl("delete", "--ignore-not-found", kinds, name)
        self.kubectl("delete", "--ignore-not-found", "--wait=false", "namespace", *self._namespaces)

    def _subject(self) -> Subject:
        return Subject(kind="ServiceAccount", name=ACCOUNT, namespace=self.name)


def spelled(label: str) -> str:
    """Returns the label of a keyword: `a_b` is a-b, `app_kubernetes_io__part_of` is app.kubernetes.io/part-of."""
    prefix, slash, name = label.rpartition("__")
    prefix = prefix.replace("istio_aux", "istio-aux").replace("_", ".")
    return f"{prefix}{'/' if slash else ''}{name.replace('_', '-')}"

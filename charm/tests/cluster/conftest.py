"""The charm against the API server of KUBECONFIG, as an account with the rights that Juju gives an application."""

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import lightkube
import pytest
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.apps_v1 import Deployment

from tests.cluster.kubeflow import kubeflow
from tests.cluster.model import SHIM_IMAGE, Model

__all__ = ["kubeflow"]

CONTAINERD = pathlib.Path("/run/istio-aux-cluster/containerd.sock")


@pytest.fixture(scope="session")
def admin() -> Iterator[lightkube.Client]:
    """The administrator of the cluster of KUBECONFIG, from which Helm's installation is taken away meanwhile."""
    file = os.environ.get("KUBECONFIG")
    if not file:
        pytest.fail("KUBECONFIG is not set; next: hack/cluster/cluster run, or a cluster of your own with Istio")
    os.environ["ISTIO_AUX_ADMIN_KUBECONFIG"] = file
    client = lightkube.Client(KubeConfig.from_file(file))
    revision = json.loads(helm("status", "--output=json"))["version"]
    try:
        helm("uninstall", "--keep-history", "--wait")
        # The scenarios' controller, if they ran here: two would keep the same objects.
        if list(client.list(Deployment, namespace="istio-aux", fields={"metadata.name": "istio-aux-tenancy"})):
            client.delete(Deployment, "istio-aux-tenancy", namespace="istio-aux")
        name_shim()
        yield client
    finally:
        helm("rollback", "--wait", revision=str(revision))


def name_shim() -> None:
    """Gives the shim's image on the one-node cluster a name that is not the option's default."""
    if CONTAINERD.exists():
        ctr = ["ctr", f"--address={CONTAINERD}", "--namespace=k8s.io", "images", "tag", "--force"]
        subprocess.run([*ctr, "registry.invalid/istio-aux/shim:0.1.0", SHIM_IMAGE], check=True)


def helm(*command: str, revision: str = "") -> str:
    """Runs Helm on the installation of `make install`, and returns what it prints."""
    environment = {**os.environ, "KUBECONFIG": os.environ["ISTIO_AUX_ADMIN_KUBECONFIG"]}
    words = ["helm", command[0], "istio-aux", *filter(None, [revision]), "--namespace=istio-aux", *command[1:]]
    return subprocess.run(words, check=True, env=environment, capture_output=True, text=True).stdout


@pytest.fixture
def untrusted(admin: lightkube.Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model whose application has rights in its own namespace only."""
    model = Model(admin, tmp_path, monkeypatch)
    yield model
    model.end()


@pytest.fixture
def model(untrusted: Model) -> Model:
    """A model whose application is trusted."""
    untrusted.trust()
    return untrusted

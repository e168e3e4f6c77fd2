"""What an application has in the cluster: applied or deleted. Errors of the API go up."""

from collections.abc import Iterable, Sequence

from lightkube.codecs import AnyResource
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.core_v1 import Namespace, Pod

import names
from application import Application
from cluster import manifests, metadata
from cluster.client import ALL_NAMESPACES, Cluster, NotFound
from mesh import namespaces, workloads
from mesh.label_ownership import PROTECTION
from mesh.selectors import Selector
from settings import Settings


class Conflict(Exception):
    """Somebody else is installed here. The message says what to do."""


class ClusterResources:
    """The cluster objects of an application, and its labels on other people's."""

    def __init__(self, application: Application, cluster: Cluster) -> None:
        self._application = application
        self._cluster = cluster

    def apply(self, settings: Settings, ca_certificates: Sequence[str]) -> list[str]:
        """Write the objects that are to be there, and delete those that no longer are.

        Returns what could not be had from this cluster. Raises Conflict where nothing may be written.
        """
        self._refuse_a_second_application()
        charms = self.istio_charms() if settings.require_sidecar else ()
        desired = manifests.desired(self._application, settings, ca_certificates, charms)
        lacking = [problem for each in desired if (problem := self._apply(each))]
        keys = {_key(each) for each in desired}
        for each in list(self._cluster.owned(self._application)):
            if _key(each) not in keys:
                self._cluster.delete(each)
        return lacking

    def label(self, settings: Settings) -> list[str]:
        """Label namespaces as the option says. Returns those that do not exist."""
        listed, selector = settings.namespaces, settings.namespace_selector
        existing = self._cluster.list(Namespace)
        self.protect({metadata.name(each) for each in existing if _is_in_the_mesh(each, listed, selector)})
        patches = namespaces.follow_option(existing, listed, self._application.title)
        for name, patch in patches.items():
            self._cluster.patch(Namespace, name, patch)
        return namespaces.absent(existing, listed)

    def protect(self, in_the_mesh: set[str]) -> None:
        """Keep Juju's model operators and this application's pods out of the mesh, before their namespaces join it.

        The API server calls both: a model operator is itself a webhook.
        """
        if not in_the_mesh:
            return
        protected: list[workloads.Workload] = list(self._model_operators())
        own = self._cluster.get(StatefulSet, self._application.name, self._application.model)
        for workload in [*protected, *([own] if own else [])]:
            namespace = metadata.namespace(workload)
            patch = workloads.keep_out_of_the_mesh(workload, self._application.title)
            if patch and namespace in in_the_mesh:
                self._cluster.patch(type(workload), metadata.name(workload), patch, namespace)

    def delete(self) -> None:
        """Leave nothing behind. Harmless when done again."""
        for each in list(self._cluster.owned(self._application)):
            self._cluster.delete(each)
        for name, patch in namespaces.release(self._cluster.list(Namespace), self._application.title).items():
            self._cluster.patch(Namespace, name, patch)
        for workload in self._model_operators():
            patch = workloads.take_back(workload, PROTECTION, self._application.title)
            if patch:
                self._cluster.patch(Deployment, names.MODEL_OPERATOR, patch, metadata.namespace(workload))

    def mark_serving(self, pod: str) -> None:
        """Have the Service lead to a unit's pod from now on."""
        there = self._cluster.get(Pod, pod, self._application.model)
        if there and names.SERVING_LABEL not in metadata.labels(there):
            label = {"metadata": {"labels": {names.SERVING_LABEL: "true"}}}
            self._cluster.patch(Pod, pod, label, self._application.model)

    def istio_charms(self) -> set[str]:
        """Applications that run istiod: well-known ones, those that made Istio's injectors, and those known before.

        Their pods are exempt from `require-sidecar`, because no sidecar can be injected before they run.
        """
        injectors = self._cluster.list(MutatingWebhookConfiguration, labels={"app": "sidecar-injector"})
        makers = {metadata.labels(each).get(names.CREATED_BY, "") for each in injectors}
        policy = self._cluster.get(ValidatingAdmissionPolicy, self._application.cluster_name)
        known = makers | set(_exempt_applications(policy)) | set(names.ISTIO_CHARMS)
        return known - {"", "istio-aux", self._application.name}

    def _model_operators(self) -> list[Deployment]:
        return self._cluster.list(Deployment, ALL_NAMESPACES, name=names.MODEL_OPERATOR)

    def _refuse_a_second_application(self) -> None:
        """Raise Conflict where another application of this model is installed, unless that is gone."""
        there = self._cluster.get(MutatingWebhookConfiguration, self._application.cluster_name)
        creator = metadata.labels(there).get(names.CREATED_BY, self._application.name)
        if creator != self._application.name and self._cluster.get(StatefulSet, creator, self._application.model):
            raise Conflict(f"application {creator} of this model already is istio-aux; remove one of the two")

    def _apply(self, desired: AnyResource) -> str | None:
        try:
            self._cluster.apply(desired)
        except NotFound:
            if isinstance(desired, ValidatingAdmissionPolicy):
                return "require-sidecar: needs Kubernetes 1.30 or newer; set it to false"
            if not isinstance(desired, ValidatingAdmissionPolicyBinding):
                raise
        return None


def _is_in_the_mesh(namespace: Namespace, listed: Sequence[str], selector: Selector | None) -> bool:
    """Whether a namespace's pods are, or are about to be, injected by Istio, ambient, or served by istio-aux."""
    return (
        namespaces.is_opted_in(namespace, selector)
        or namespaces.is_injected(namespace)
        or namespaces.is_ambient(namespace)
        or metadata.name(namespace) in listed
    )


def _exempt_applications(policy: ValidatingAdmissionPolicy | None) -> Iterable[str]:
    constraints = policy.spec.matchConstraints if policy and policy.spec else None
    selector = constraints.objectSelector if constraints else None
    for expression in (selector.matchExpressions if selector else None) or []:
        if expression.key == names.POD_APPLICATION:
            yield from expression.values or []


def _key(thing: AnyResource) -> tuple[str, str]:
    return type(thing).__name__, metadata.name(thing)

"""What an application has in the cluster: brought to what it should be, or taken away. Errors of the API go up."""

from collections.abc import Iterable, Sequence

from lightkube.codecs import AnyResource
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.core_v1 import Namespace

import metadata
import names
import namespaces
import objects
import workloads
from application import Application
from cluster import Cluster, Unknown
from settings import Settings


class Conflict(Exception):
    """Somebody else is installed here. The message says what to do."""


class Installation:
    """The cluster objects of an application, and the marks it leaves on other people's."""

    def __init__(self, application: Application, cluster: Cluster) -> None:
        self._application = application
        self._cluster = cluster

    def bring_up(self, settings: Settings, authorities: Sequence[str]) -> list[str]:
        """Write the objects that are to be there, and delete those that no longer are.

        Returns what could not be had from this cluster. Raises Conflict where nothing may be written.
        """
        self._refuse_a_second_application()
        wanted = objects.desired(self._application, settings, authorities, self._istiod_namespaces())
        lacking = [problem for each in wanted if (problem := self._apply(each))]
        keys = {_key(each) for each in wanted}
        for each in list(self._cluster.owned(self._application)):
            if _key(each) not in keys:
                self._cluster.delete(each)
        return lacking

    def label(self, settings: Settings) -> list[str]:
        """Label namespaces as the option says. Returns those that do not exist."""
        listed = settings.namespaces
        existing = self._cluster.list(Namespace)
        if any(metadata.name(each) == self._application.model and _is_to_be_in(each, listed) for each in existing):
            self.protect_model()
        patches = namespaces.follow_option(existing, listed, self._application.title)
        for name, patch in patches.items():
            self._cluster.patch(Namespace, name, patch)
        return namespaces.absent(existing, listed)

    def protect_model(self) -> None:
        """Have Istio leave Juju's model operator and this application's pods alone, before their namespace is opted in.

        The API server calls both: the model operator is itself a webhook.
        """
        model = self._application.model
        for kind, name in ((Deployment, names.MODEL_OPERATOR), (StatefulSet, self._application.name)):
            workload = self._cluster.get(kind, name, model)
            patch = workloads.keep_out_of_the_mesh(workload) if workload else None
            if patch:
                self._cluster.patch(kind, name, patch, model)

    def take_down(self) -> None:
        """Leave nothing behind. Harmless when done again."""
        for each in list(self._cluster.owned(self._application)):
            self._cluster.delete(each)
        for name, patch in namespaces.release(self._cluster.list(Namespace), self._application.title).items():
            self._cluster.patch(Namespace, name, patch)

    def _refuse_a_second_application(self) -> None:
        there = self._cluster.get(MutatingWebhookConfiguration, self._application.cluster_name)
        creator = metadata.labels(there).get(names.CREATED_BY, self._application.name)
        if creator != self._application.name:
            raise Conflict(f"application {creator} of this model already is istio-aux; remove one of the two")

    def _apply(self, wanted: AnyResource) -> str | None:
        try:
            self._cluster.apply(wanted)
        except Unknown:
            if isinstance(wanted, ValidatingAdmissionPolicy):
                return "require-sidecar: needs Kubernetes 1.30 or newer; set it to false"
            if not isinstance(wanted, ValidatingAdmissionPolicyBinding):
                raise
        return None

    def _istiod_namespaces(self) -> set[str]:
        """Where istiod runs, by whom Istio's injectors call, and where it ran before in case they are gone."""
        found = {
            webhook.clientConfig.service.namespace
            for configuration in self._cluster.list(MutatingWebhookConfiguration, labels={"app": "sidecar-injector"})
            for webhook in configuration.webhooks or []
            if webhook.clientConfig.service
        }
        policy = self._cluster.get(ValidatingAdmissionPolicy, self._application.cluster_name)
        return found | set(_left_out(policy))


def _is_to_be_in(namespace: Namespace, listed: Sequence[str]) -> bool:
    """Whether pods of a namespace are, or are about to be, injected into by Istio or served by istio-aux."""
    is_in = namespaces.is_opted_in(namespace) or namespaces.is_injected(namespace)
    return is_in or metadata.name(namespace) in listed


def _left_out(policy: ValidatingAdmissionPolicy | None) -> Iterable[str]:
    constraints = policy.spec.matchConstraints if policy and policy.spec else None
    selector = constraints.namespaceSelector if constraints else None
    for expression in (selector.matchExpressions if selector else None) or []:
        if expression.key == "kubernetes.io/metadata.name":
            yield from expression.values or []


def _key(thing: AnyResource) -> tuple[str, str]:
    return type(thing).__name__, metadata.name(thing)

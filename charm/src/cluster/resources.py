"""Applies and deletes the cluster objects of an application. Errors of the API go up."""

import datetime
from collections.abc import Iterable, Sequence
from typing import cast

from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import OwnerReference
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Pod, Service
from lightkube.resources.networking_v1 import NetworkPolicy
from lightkube.resources.policy_v1 import PodDisruptionBudget

import names
from application import Application
from cluster import manifests, metadata, tenancy
from cluster.client import ALL_NAMESPACES, Cluster, NotFound, Unavailable
from mesh import namespaces, workloads
from mesh.label_ownership import PROTECTION
from mesh.selectors import Selector
from settings import Settings

_SWEPT = (Service, Deployment)
_NOT_SWEPT = (PodDisruptionBudget, Lease, NetworkPolicy)
"""Kinds that Juju does not delete in a forced removal. An object of `_SWEPT` owns them, so Kubernetes deletes them."""


class Conflict(Exception):
    """Another application is installed here. The message says what to do."""


class ClusterResources:
    """The cluster objects of an application, and its labels on objects of other owners."""

    def __init__(self, application: Application, cluster: Cluster, unit: str) -> None:
        self._application = application
        self._cluster = cluster
        self._pod = unit.replace("/", "-")

    def apply(self, settings: Settings, ca_certificates: Sequence[str]) -> list[str]:
        """Applies the desired objects, and deletes the application's others.

        Returns what this cluster does not support. Raises Conflict if another application is installed.
        """
        self._reject_second_application()
        charms = self.istio_charms() if settings.require_sidecar else ()
        image = self._image() if settings.tenancy else None
        desired = manifests.desired(self._application, settings, ca_certificates, charms, image)
        unsupported = list(self._apply(desired))
        keys = {_key(each) for each in desired}
        self._delete(each for each in list(self._cluster.owned(self._application)) if _key(each) not in keys)
        return unsupported

    def is_controller_overdue(self, now: datetime.datetime) -> bool:
        """Returns true if the tenancy controller should run by now and does not."""
        controller = self._cluster.get(Deployment, self._application.tenancy, self._application.model)
        return tenancy.is_overdue(controller, now)

    def label(self, settings: Settings) -> list[str]:
        """Labels namespaces as the option says. Returns those that do not exist."""
        listed, selector = settings.namespaces, settings.namespace_selector
        existing = self._cluster.list(Namespace)
        self.protect({metadata.name(each) for each in existing if _is_in_the_mesh(each, listed, selector)})
        patches = namespaces.follow_option(existing, listed, self._application.title)
        for name, patch in patches.items():
            self._cluster.patch(Namespace, name, patch)
        return namespaces.absent(existing, listed)

    def protect(self, in_the_mesh: set[str]) -> None:
        """Excludes Juju's model operators and this application's pods from the mesh, before their namespaces join it.

        The API server calls both: a model operator is itself a webhook.
        """
        if not in_the_mesh:
            return
        protected: list[workloads.Workload] = list(self._model_operators())
        own = self._cluster.get(StatefulSet, self._application.name, self._application.model)
        for workload in [*protected, *([own] if own else [])]:
            namespace = metadata.namespace(workload)
            patch = workloads.exclude_from_mesh(workload, self._application.title)
            if patch and namespace in in_the_mesh:
                self._cluster.patch(type(workload), metadata.name(workload), patch, namespace)

    def delete(self) -> None:
        """Deletes all objects, and restores labels on objects of other owners. May be repeated."""
        self._delete(list(self._cluster.owned(self._application)))
        for name, patch in namespaces.release(self._cluster.list(Namespace), self._application.title).items():
            self._cluster.patch(Namespace, name, patch)
        for workload in self._model_operators():
            patch = workloads.restore(workload, PROTECTION, self._application.title)
            if patch:
                self._cluster.patch(Deployment, names.MODEL_OPERATOR, patch, metadata.namespace(workload))

    def mark_serving(self) -> None:
        """Adds this unit's pod to the Service."""
        there = self._cluster.get(Pod, self._pod, self._application.model)
        if there and names.SERVING_LABEL not in metadata.labels(there):
            label = {"metadata": {"labels": {names.SERVING_LABEL: "true"}}}
            self._cluster.patch(Pod, self._pod, label, self._application.model)

    def istio_charms(self) -> set[str]:
        """Returns the applications that run istiod: known ones, creators of Istio's injectors, and recorded ones.

        Their pods are exempt from `require-sidecar`, because no sidecar can be injected before they run.
        """
        injectors = self._cluster.list(MutatingWebhookConfiguration, labels={"app": "sidecar-injector"})
        makers = {metadata.labels(each).get(names.CREATED_BY, "") for each in injectors}
        policy = self._cluster.get(ValidatingAdmissionPolicy, self._application.cluster_name)
        known = makers | set(_exempt_applications(policy)) | set(names.ISTIO_CHARMS)
        return known - {"", "istio-aux", self._application.name}

    def _model_operators(self) -> list[Deployment]:
        return self._cluster.list(Deployment, ALL_NAMESPACES, name=names.MODEL_OPERATOR)

    def _reject_second_application(self) -> None:
        """Raises Conflict if another application of this model is installed and not gone."""
        there = self._cluster.get(MutatingWebhookConfiguration, self._application.cluster_name)
        creator = metadata.labels(there).get(names.CREATED_BY, self._application.name)
        if creator != self._application.name and self._cluster.get(StatefulSet, creator, self._application.model):
            raise Conflict(f"application {creator} of this model is istio-aux already; remove one of the two")

    def _image(self) -> tenancy.Image:
        """Returns the image of the tenancy controller: the one that this unit runs."""
        image = tenancy.image_of(self._cluster.get(Pod, self._pod, self._application.model))
        if not image:
            raise Unavailable(f"the image of pod {self._pod} is not known yet")
        return image

    def _apply(self, desired: Iterable[AnyResource]) -> Iterable[str]:
        """Writes objects in their order, and yields what this cluster does not support."""
        owner: OwnerReference | None = None
        for each in desired:
            if owner and isinstance(each, _NOT_SWEPT):
                metadata.of(each).ownerReferences = [owner]
            try:
                applied = self._cluster.apply(each)
            except NotFound:
                if isinstance(each, ValidatingAdmissionPolicy):
                    yield "require-sidecar: needs Kubernetes 1.30 or newer; set it to false"
                elif not isinstance(each, ValidatingAdmissionPolicyBinding):
                    raise
            else:
                owner = _reference(applied) if isinstance(applied, _SWEPT) else owner

    def _delete(self, unwanted: Iterable[AnyResource]) -> None:
        for each in unwanted:
            # The controller has no rights by now (see KINDS), so it creates no new ones. If this fails, its Deployment
            # still exists at the next event, which tries again.
            if isinstance(each, Deployment):
                self._delete_tenants_objects()
            self._cluster.delete(each)

    def _delete_tenants_objects(self) -> None:
        for kind in tenancy.TENANT_KINDS:
            for each in self._cluster.list(kind, ALL_NAMESPACES, tenancy.KEPT_FOR_TENANTS):
                self._cluster.delete(cast("AnyResource", each))


def _is_in_the_mesh(namespace: Namespace, listed: Sequence[str], selector: Selector | None) -> bool:
    """Returns true if a namespace is injected by Istio, ambient, opted in, or about to be opted in."""
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


def _reference(owner: Service | Deployment) -> OwnerReference:
    version, kind, uid = owner.apiVersion or "", owner.kind or "", metadata.of(owner).uid or ""
    return OwnerReference(apiVersion=version, kind=kind, name=metadata.name(owner), uid=uid)


def _key(thing: AnyResource) -> tuple[str, str]:
    return type(thing).__name__, metadata.name(thing)

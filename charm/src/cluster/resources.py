"""Applies and deletes the cluster objects of an application. Errors of the API go up."""

import base64
import datetime
import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, cast

from lightkube import generic_resource
from lightkube.codecs import AnyResource
from lightkube.core.resource import NamespacedResource
from lightkube.models.admissionregistration_v1 import MutatingWebhook
from lightkube.models.meta_v1 import OwnerReference
from lightkube.resources import admissionregistration_v1 as admission
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Pod, Secret
from lightkube.resources.networking_v1 import NetworkPolicy
from lightkube.resources.policy_v1 import PodDisruptionBudget
from lightkube.resources.rbac_authorization_v1 import ClusterRole, RoleBinding

import names
from application import Application
from cluster import health, manifests, metadata
from cluster.client import ALL_NAMESPACES, Cluster, Rejected
from cluster.manifests import Image, Installation
from mesh import namespaces, pods
from mesh.namespaces import Labels
from settings import Settings

_OF_A_DEPLOYMENT = (PodDisruptionBudget, NetworkPolicy, Secret)
_OF_THE_CLUSTER = (admission.ValidatingAdmissionPolicy, admission.ValidatingAdmissionPolicyBinding)
"""Kinds that Juju does not delete in a forced removal. A Deployment or a ClusterRole, which it deletes, owns them."""
_POD_DEFAULT: type[NamespacedResource] = generic_resource.create_namespaced_resource(  # pyright: ignore[reportUnknownMemberType]
    "kubeflow.org", "v1alpha1", "PodDefault", "poddefaults"
)
_NEED_POLICIES = ("require_sidecar", "tenancy")  # Without one, nothing bounds the controller's account.
_TENANT_KINDS = (RoleBinding, _POD_DEFAULT, Lease)
"""The kinds that the tenancy controller makes: in tenants' namespaces, and its Lease."""


class Conflict(Exception):
    """Another installation is in the cluster. The message says what to do."""


class ClusterResources:
    """The cluster objects of an application, and its labels on namespaces."""

    def __init__(self, application: Application, cluster: Cluster) -> None:
        self._application = application
        self._cluster = cluster

    def apply(self, settings: Settings, image: Image, replicas: int, *, offers_shim: bool) -> list[str]:
        """Applies the desired objects, and deletes the application's others.

        Returns what this cluster does not support. Raises Conflict if the cluster has another installation.
        """
        self.reject_other_installation(settings)
        has_policies = self._cluster.serves(admission.ValidatingAdmissionPolicy)
        unsupported = [] if has_policies else [option for option in _NEED_POLICIES if getattr(settings, option)]
        settings = settings.model_copy(update=dict.fromkeys(unsupported, False))
        installation = Installation(
            self._application,
            settings,
            image,
            replicas,
            failure_policy=self._failure_policy(settings),
            offers_shim=offers_shim,
            istio_applications=sorted(self.istio_applications()) if settings.require_sidecar else (),
        )
        desired = [it for it in manifests.desired(installation) if has_policies or not isinstance(it, _OF_THE_CLUSTER)]
        self._apply(desired)
        keys = {_key(each) for each in desired}
        self._delete(each for each in list(self._cluster.owned(self._application)) if _key(each) not in keys)
        return [f"{it.replace('_', '-')}: needs Kubernetes 1.30 or newer; set it to false" for it in unsupported]

    def deployment(self, name: str) -> Deployment | None:
        """Reads a Deployment; None if it does not exist."""
        return self._cluster.get(Deployment, name)

    def addresses(self) -> list[str]:
        """Returns the addresses of the pods that serve metrics, without those of pods that have ended."""
        served = (self._application.webhook, self._application.tenancy)
        found = (pod for name in served for pod in self._cluster.list(Pod, labels={names.POD_APPLICATION: name}))
        return sorted(it.status.podIP for it in found if it.status and it.status.podIP and not pods.has_ended(it))

    def label(self, wanted: Mapping[str, Labels]) -> tuple[list[str], list[str]]:
        """Labels namespaces. Returns those that do not exist, and the messages of those that are rejected."""
        existing = {metadata.name(each): each for each in self._cluster.list(Namespace)}
        rejected: list[str] = []
        for name, namespace in existing.items():
            try:
                self.label_namespace(namespace, wanted.get(name, {}))
            except Rejected as error:
                rejected.append(f"{name}: {error}")
        return sorted(wanted.keys() - existing), rejected

    def label_namespace(self, namespace: Namespace, wanted: Labels) -> None:
        """Labels a namespace as wanted, and restores its other labels that the application set."""
        application = f"{self._application.model}/{self._application.name}"
        if patch := namespaces.follow(namespace, wanted, application):
            self._cluster.patch(Namespace, metadata.name(namespace), patch)

    def delete(self) -> None:
        """Deletes all objects, and restores labels of namespaces. May be repeated."""
        self._delete(list(self._cluster.owned(self._application)))
        _, rejected = self.label({})
        if rejected:
            raise Rejected("; ".join(rejected))

    def renew_certificate(self, now: datetime.datetime) -> bool:
        """Has the webhook issue a new certificate and CA. Returns false if it has no Secret yet."""
        requested = {"metadata": {"annotations": {names.RENEWAL_REQUESTED: now.isoformat(timespec="seconds")}}}
        return self._cluster.patch(Secret, self._application.certificate_secret, requested)

    def serve(self, certificate: Mapping[str, str]) -> None:
        """Makes a certificate the next one, which the webhook serves once the API servers trust its CA."""
        there = self._cluster.get(Secret, self._application.certificate_secret)
        digest = hashlib.sha256((certificate["next.crt"] + certificate["next-ca.crt"]).encode()).hexdigest()
        # Written once: if the provider renews too late, the webhook's own certificate is not replaced.
        if metadata.annotations(there).get(names.HANDED_ON) == digest:
            return
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in certificate.items()}
        patch = {"metadata": {"annotations": {names.HANDED_ON: digest}}, "data": encoded}
        self._cluster.patch(Secret, self._application.certificate_secret, patch)

    def reject_other_installation(self, settings: Settings) -> None:
        """Raises Conflict if one of the objects exists already, by another application or by other means."""
        for each in manifests.desired(Installation(self._application, settings, Image(""), 0, "Ignore")):
            there = self._cluster.get(type(each), metadata.name(each))
            labels = metadata.labels(there)
            application, model = labels.get(names.CREATED_BY), labels.get(names.MODEL_NAME)
            # Also of an earlier model of this name.
            if not there or (application, model) == (self._application.name, self._application.model):
                continue
            if metadata.namespace(each) and application and model:
                of = f"application {application} of model {model}"
                raise Conflict(f"{' '.join(_key(there))} is of {of}; delete it, or remove one of the two")
            if not application or not model:
                by = f"{labels.get(names.MANAGED_BY, 'kubectl')}: {' '.join(_key(there))}"
                raise Conflict(f"istio-aux is installed in this cluster already, by {by}; remove one of the two")
            if self._cluster.get(StatefulSet, application, model):
                by = f"application {application} of model {model}"
                raise Conflict(f"{by} is istio-aux already; remove one of the two")

    def istio_applications(self) -> set[str]:
        """Returns the applications that run istiod: Istio's charms, makers of injectors, and those exempt already.

        Their pods are exempt from `require-sidecar`, because no sidecar can be injected before they run.
        """
        injectors = self._cluster.list(admission.MutatingWebhookConfiguration, labels={"app": "sidecar-injector"})
        makers = {_maker(each) for each in injectors}
        policy = self._cluster.get(admission.ValidatingAdmissionPolicy, names.REQUIRE_SIDECAR)
        known = makers | set(_exempt_applications(policy)) | set(names.ISTIO_CHARMS)
        return known - {"", *self._application.pod_names}

    def _failure_policy(self, settings: Settings) -> Literal["Fail", "Ignore"]:
        """Returns `Ignore` until a replica was first ready: until then, `Fail` would reject every pod."""
        if settings.failure_policy == "ignore":
            return "Ignore"
        has_served = any(webhook.failurePolicy == "Fail" for webhook in self._webhooks())
        deployment = self.deployment(self._application.webhook)
        return "Fail" if has_served or health.is_available(deployment) else "Ignore"

    def offers_shim(self) -> bool:
        """Returns true if the API server calls the webhook for the shim already."""
        return any(webhook.name.startswith(names.WEBHOOKS_OF_THE_SHIM) for webhook in self._webhooks())

    def _webhooks(self) -> list[MutatingWebhook]:
        """Reads the application's webhooks that are called after Istio's injector."""
        there = self._cluster.get(admission.MutatingWebhookConfiguration, names.CONFIGURATIONS[1])
        is_ours = self._application.made_by_charm.items() <= metadata.labels(there).items()
        return (there.webhooks if there and is_ours else None) or []

    def _apply(self, desired: Iterable[AnyResource]) -> None:
        """Writes objects in their order."""
        owners: dict[str, OwnerReference] = {}
        for each in desired:
            if isinstance(each, _OF_A_DEPLOYMENT):
                owner = owners.get(metadata.name(each), owners[self._application.webhook])
                metadata.of(each).ownerReferences = [owner]
            elif isinstance(each, _OF_THE_CLUSTER):
                metadata.of(each).ownerReferences = [owners[names.CLUSTER_ROLE]]
            applied = self._cluster.apply(each)
            if isinstance(applied, Deployment | ClusterRole):
                owners[metadata.name(applied)] = _reference(applied)

    def _delete(self, unwanted: Iterable[AnyResource]) -> None:
        for each in unwanted:
            # The controller has no rights by now (see KINDS), so it creates no new ones. If this fails, its Deployment
            # still exists at the next event, which tries again.
            if isinstance(each, Deployment) and metadata.name(each) == self._application.tenancy:
                self._delete_tenants_objects()
            self._cluster.delete(each)

    def _delete_tenants_objects(self) -> None:
        labels = {names.MANAGED_BY: names.TENANCY_MANAGER, names.INSTALLATION: self._application.model}
        for kind in _TENANT_KINDS:
            for each in self._cluster.list(kind, ALL_NAMESPACES, labels):
                self._cluster.delete(cast("AnyResource", each))


def _maker(injector: admission.MutatingWebhookConfiguration) -> str:
    """Returns the application that made an injector: Canonical's resource manager labels it APPLICATION-MODEL."""
    services = (webhook.clientConfig.service for webhook in injector.webhooks or [])
    models = {service.namespace for service in services if service}
    instance = metadata.labels(injector).get(names.INSTANCE, "")
    return next((instance.removesuffix(f"-{model}") for model in models if instance.endswith(f"-{model}")), "")


def _exempt_applications(policy: admission.ValidatingAdmissionPolicy | None) -> Iterable[str]:
    constraints = policy.spec.matchConstraints if policy and policy.spec else None
    selector = constraints.objectSelector if constraints else None
    for expression in (selector.matchExpressions if selector else None) or []:
        if expression.key == names.POD_APPLICATION:
            yield from expression.values or []


def _reference(owner: Deployment | ClusterRole) -> OwnerReference:
    version, kind, uid = owner.apiVersion or "", owner.kind or "", metadata.of(owner).uid or ""
    return OwnerReference(apiVersion=version, kind=kind, name=metadata.name(owner), uid=uid)


def _key(thing: AnyResource) -> tuple[str, str]:
    return type(thing).__name__, metadata.name(thing)

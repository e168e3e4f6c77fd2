#!/usr/bin/env python3
"""The charm of istio-aux. On every event, the leader computes the desired state of the cluster and applies it."""

import collections
import contextlib
import datetime
import functools
import json
import logging
import time
from collections.abc import Callable, Iterable, MutableMapping

import ops
import pydantic
import yaml
from charmlibs.interfaces.service_mesh import MeshType, ServiceMeshProvider
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace
from ops import StatusBase

import certificates
import names
import observability
import settings as options
import statuses
from actions import Actions
from application import Application
from certificates import CertificatesRelation
from cluster import health, metadata
from cluster.client import Cluster, ClusterError, Forbidden, Unavailable
from cluster.manifests import Image
from cluster.resources import ClusterResources, Conflict
from mesh.census import missed
from mesh.namespaces import OPT_IN, Labels
from settings import Settings

logger = logging.getLogger(__name__)

PEERS, MESH, WEBHOOK_IMAGE = "peers", "service-mesh", "webhook-image"
_LAST_GOOD = "options"
"""Key of the application's peer data: the last valid options."""
_OPTED_IN = "namespaces"
"""Key of the application's peer data: the labels of namespaces that an action opted in. It outlives all units."""
_LEAST_REPLICAS = 2
_REMOVAL_RETRIES = (1, 2, 4)
"""Seconds between the attempts of the last hook, before it fails and Juju retries it."""
_START_TIMEOUT = 60
"""Seconds that a hook waits for the webhook to become ready. Otherwise the next event checks again."""
_IN_MESH: Labels = {names.INJECTION_LABEL: names.ENABLED, names.ISTIO_INJECT: "true"}
"""Labels of pods that join by the relation `service-mesh`."""


class _Mesh(ServiceMeshProvider):
    """Publishes the labels when the charm says so: the webhook has to add what their pods need beside the proxy."""

    publish = ServiceMeshProvider.update_relations

    def update_relations(self) -> None:
        """Does nothing: the library calls it before there is a webhook."""


class IstioAuxCharm(ops.CharmBase):
    """A unit of istio-aux."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._statuses: list[StatusBase] = []
        self.application = Application(self.app.name, self.model.name, self.model.uuid)
        self.cluster = Cluster(self.model.name)
        self.resources = ClusterResources(self.application, self.cluster)
        # Created before this charm observes events: the libraries then handle each event first.
        self._certificates = CertificatesRelation(self, self.application)
        self._tracing = ops.tracing.Tracing(self, observability.TRACING, ca_relation_name=observability.TRACING_CA)
        self._mesh = _Mesh(self, dict(_IN_MESH), MeshType.istio)
        self._actions = Actions(self)
        for event in self._events():
            framework.observe(event, self._on_event)
        framework.observe(self.on.remove, self._on_remove)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _events(self) -> Iterable[ops.BoundEvent]:
        on = self.on
        yield from (on.install, on.start, on.stop, on.upgrade_charm, on.config_changed, on.update_status)
        yield from (on.leader_elected, on.secret_changed, on.secret_expired)
        for name in (PEERS, MESH, certificates.RELATION, observability.PROMETHEUS, observability.GRAFANA):
            relation = self.on[name]
            yield from (relation.relation_created, relation.relation_joined, relation.relation_changed)
            yield from (relation.relation_departed, relation.relation_broken)

    def _on_event(self, event: ops.EventBase) -> None:
        """Applies the desired state, and records the statuses. Counts pods only every few minutes."""
        counts_pods = isinstance(event, ops.UpdateStatusEvent)
        found = list(self._reconcile(counts_pods=counts_pods))
        # ops shows the first of equal statuses, so the messages of active ones are joined.
        active = "; ".join(each.message for each in found if isinstance(each, ops.ActiveStatus))
        self._statuses = [ops.ActiveStatus(active), *found]

    def _on_remove(self, event: ops.RemoveEvent) -> None:
        """Deletes the cluster objects. An error is raised after a few retries: Juju runs a failed hook again."""
        if self.app.planned_units() > 0:
            self._on_event(event)
            return
        for delay in _REMOVAL_RETRIES:
            with contextlib.suppress(ClusterError):
                self._statuses = [self._delete()]
                return
            time.sleep(delay)
        self._statuses = [self._delete()]

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        for status in self._statuses:
            event.add_status(status)

    @property
    def settings(self) -> Settings:
        """Returns the options in force, for actions: the defaults if none have been valid yet."""
        return self._read_options()[0] or Settings()

    @property
    def no_shim_image(self) -> StatusBase:
        """Returns why there is no shim's image: it is not set, or no options have been valid yet."""
        settings, problems = self._read_options()
        return statuses.no_shim_image(self.app.name) if settings else statuses.invalid_options(problems)

    def _read_options(self) -> tuple[Settings | None, str]:
        """Returns the last valid options, which the leader stores for all units, and what is wrong with those set."""
        try:
            return self.load_config(Settings), ""
        except pydantic.ValidationError as error:
            return _last_good(self._peer_data.get(_LAST_GOOD)), options.problems(error)

    @property
    def _peer_data(self) -> MutableMapping[str, str]:
        """Returns the application's peer data. Empty before the peer relation exists, when nothing is written."""
        peers = self.model.get_relation(PEERS)
        return peers.data[self.app] if peers else {}

    @property
    def _opted_in(self) -> dict[str, Labels]:
        return json.loads(self._peer_data.get(_OPTED_IN, "{}"))

    def opt_in(self, namespace: Namespace, labels: Labels) -> None:
        """Labels a namespace for an action, and remembers it once it is labelled."""
        self.resources.label_namespace(namespace, labels)
        self._peer_data[_OPTED_IN] = json.dumps({**self._opted_in, metadata.name(namespace): labels})

    def opt_out(self, name: str, namespace: Namespace | None) -> bool:
        """Restores the labels of such a namespace if it exists, and forgets it. Returns true if it was one."""
        opted_in = self._opted_in
        was_opted_in = opted_in.pop(name, None) is not None
        if was_opted_in and namespace:
            self.resources.label_namespace(namespace, {})
        self._peer_data[_OPTED_IN] = json.dumps(opted_in)
        return was_opted_in

    def _wanted_labels(self, settings: Settings) -> dict[str, Labels]:
        opted_in = self._opted_in
        return {**opted_in, **{name: {**opted_in.get(name, {}), **OPT_IN} for name in settings.namespaces}}

    def _reconcile(self, *, counts_pods: bool) -> Iterable[StatusBase]:
        try:
            if self.app.planned_units() == 0:
                yield self._delete()
            elif self.model.get_relation(PEERS):
                yield from self._keep(counts_pods=counts_pods)
            else:
                yield statuses.NO_PEERS
        except Conflict as conflict:
            yield ops.BlockedStatus(str(conflict))
        except ClusterError as error:
            yield self._status_for(error)

    def _keep(self, *, counts_pods: bool) -> Iterable[StatusBase]:
        """Applies the desired state, on the leader, which also stores valid options."""
        settings, problems = self._read_options()
        if problems:
            yield statuses.invalid_options(problems)
        elif self.unit.is_leader():
            self._peer_data[_LAST_GOOD] = json.dumps(dict(self.config), sort_keys=True)
        if not settings or not self.unit.is_leader():
            return
        image = self._webhook_image()
        if not image:
            yield statuses.NO_WEBHOOK_IMAGE
            return
        yield from self._apply(settings, image)
        found = missed(self.cluster, self.application, settings, with_owners=False) if counts_pods else []
        if counts := collections.Counter(each.kind for each in found):
            yield statuses.missed(counts)

    def _webhook_image(self) -> Image | None:
        """Reads the image of the resource; None if there is none."""
        try:
            text = self.model.resources.fetch(WEBHOOK_IMAGE).read_text()
        except (ops.ModelError, OSError, RuntimeError):
            return None
        details = yaml.safe_load(text)
        return Image(details["registrypath"], details.get("username") or "", details.get("password") or "")

    def _apply(self, settings: Settings, image: Image) -> Iterable[StatusBase]:
        """Writes the cluster objects."""
        if not settings.has_shim_image:
            yield statuses.no_shim_image(self.app.name)
        unsupported, is_ready = self._install(settings, image)
        yield from map(ops.BlockedStatus, unsupported)
        certificate = self._certificates.certificate
        if certificate:
            self.resources.serve(certificate)
        elif self._certificates.is_related:
            yield statuses.NOT_ISSUED
        wanted = self._wanted_labels(settings) if self.resources.offers_shim() else {}
        absent, rejected = self.resources.label(wanted)
        if rejected:
            yield statuses.not_labelled(rejected)
        if absent:
            yield statuses.absent_namespaces(absent)
        if settings.require_sidecar and not unsupported:
            yield statuses.exempt_from_sidecars(self.resources.istio_applications())
        if is_ready:
            self._mesh.publish()
        else:
            yield statuses.not_ready(self.application.webhook)
        tenancy = self.application.tenancy
        if settings.tenancy and health.is_overdue(self.resources.deployment(tenancy), _now()):
            yield statuses.not_ready(tenancy)
        observability.publish(self, self.resources.addresses())

    def _install(self, settings: Settings, image: Image) -> tuple[list[str], bool]:
        """Applies the objects. Returns what this cluster does not support, and whether the webhook runs."""
        apply = functools.partial(self.resources.apply, settings, image, max(_LEAST_REPLICAS, self.app.planned_units()))
        offered_shim = self.resources.offers_shim()
        unsupported = apply(offers_shim=offered_shim and settings.has_shim_image)
        if offered_shim or not settings.has_shim_image:
            return unsupported, self._gets_ready(self.application.webhook, health.is_available)
        # Replicas from before the option was set add an image that no registry has.
        is_ready = self._gets_ready(self.application.webhook, health.is_current)
        if is_ready:
            apply(offers_shim=True)
        return unsupported, is_ready

    def _gets_ready(self, name: str, is_ready: Callable[[Deployment | None], bool]) -> bool:
        """Waits for a Deployment that starts. Returns true if it gets ready, and runs as desired."""
        for _ in range(_START_TIMEOUT):
            deployment = self.resources.deployment(name)
            is_overdue = health.is_overdue(deployment, _now())
            if is_overdue or is_ready(deployment):
                return not is_overdue
            time.sleep(1)
        return False

    def _delete(self) -> StatusBase:
        """Deletes all cluster objects, because no unit is planned. Without rights it reports so."""
        try:
            self.resources.delete()
        except Forbidden as error:
            return self._status_for(error)
        return statuses.REMOVED

    def _status_for(self, error: ClusterError) -> StatusBase:
        logger.warning("%s: %s", type(error).__name__, error)
        if isinstance(error, Forbidden):
            return statuses.missing_juju_trust(self.app.name)
        if isinstance(error, Unavailable):
            return statuses.API_UNAVAILABLE
        return statuses.rejected(str(error))


def _last_good(kept: str | None) -> Settings | None:
    """Parses the options that the leader stored; None if there are none, or this revision does not accept them."""
    try:
        return Settings.parse(json.loads(kept)) if kept else None
    except pydantic.ValidationError:
        return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    ops.main(IstioAuxCharm)

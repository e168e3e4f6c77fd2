#!/usr/bin/env python3
"""The charm of istio-aux. On every event, the leader computes the desired state of the cluster and applies it."""

import collections
import datetime
import json
import logging
import time
from collections.abc import Iterable

import ops
import pydantic
import yaml
from charmlibs.interfaces.service_mesh import MeshType, ServiceMeshProvider
from ops import StatusBase

import certificates
import names
import settings as options
import statuses
from actions import Actions
from application import Application
from certificates import CertificatesRelation
from cluster import health
from cluster.client import Cluster, ClusterError, Forbidden, Unavailable
from cluster.manifests import Image
from cluster.resources import ClusterResources, Conflict
from mesh.census import Census
from mesh.namespaces import OPT_IN, Labels
from observability import Observability
from settings import Settings

logger = logging.getLogger(__name__)

PEERS, WEBHOOK_IMAGE = "peers", "webhook-image"
_LAST_GOOD = "options"
"""Key of the application's peer data: the last valid options."""
_OPTED_IN = "namespaces"
"""Key of the application's peer data: the labels of namespaces that an action opted in. It outlives all units."""
_LEAST_REPLICAS = 2
_REMOVAL_RETRIES = (1, 2, 4)
"""Seconds between the attempts of the last hook, before it fails and Juju retries it."""
_START_TIMEOUT = 20
"""Seconds that a hook waits for the webhook to become ready. Otherwise the next event checks again."""
_IN_MESH: Labels = {names.INJECTION_LABEL: names.ENABLED, names.ISTIO_INJECT: "true"}
"""Labels of pods that join by the relation `service-mesh`."""


class IstioAuxCharm(ops.CharmBase):
    """A unit of istio-aux."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._statuses: list[StatusBase] = []
        self._application = Application(self.app.name, self.model.name, self.model.uuid)
        self._cluster = Cluster(self.model.name)
        self._resources = ClusterResources(self._application, self._cluster)
        # Created before this charm observes events: the libraries then handle each event first.
        self._certificates = CertificatesRelation(self, self._application)
        self._mesh = ServiceMeshProvider(self, dict(_IN_MESH), MeshType.istio)
        self._observability = Observability(self)
        self._actions = Actions(self, self._application, self._cluster, self)
        for event in self._events():
            framework.observe(event, self._on_event)
        framework.observe(self.on.update_status, self._on_update_status)
        framework.observe(self.on.remove, self._on_remove)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    @property
    def settings(self) -> Settings | None:
        """Returns the options; if they are invalid, the last valid ones, which the leader stores for all units."""
        try:
            return self.load_config(Settings)
        except pydantic.ValidationError:
            peers = self.model.get_relation(PEERS)
            return _last_good(peers.data[self.app].get(_LAST_GOOD)) if peers else None

    def _events(self) -> Iterable[ops.BoundEvent]:
        for events in (
            self.on[name] for name in (PEERS, certificates.RELATION, "metrics-endpoint", "grafana-dashboard")
        ):
            yield from (
                events.relation_created,
                events.relation_joined,
                events.relation_changed,
                events.relation_departed,
                events.relation_broken,
            )
        on = self.on
        yield from (on.install, on.start, on.stop, on.upgrade_charm, on.config_changed)
        yield from (on.leader_elected, on.secret_changed, on.secret_expired)

    def _on_event(self, _event: ops.EventBase) -> None:
        self.reconcile()

    def _on_update_status(self, _event: ops.UpdateStatusEvent) -> None:
        self.reconcile(counts_pods=True)

    def _on_remove(self, _event: ops.RemoveEvent) -> None:
        """Deletes the cluster objects. An error is raised after a few retries: Juju runs a failed hook again."""
        if self.app.planned_units() > 0:
            self.reconcile()
            return
        for delay in (*_REMOVAL_RETRIES, None):
            try:
                self._resources.delete()
            except Forbidden as error:
                self._statuses = [self._status_for(error)]
                return
            except ClusterError:
                if delay is None:
                    raise
                time.sleep(delay)
            else:
                self._statuses = [statuses.REMOVED]
                return

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        for status in self._statuses:
            event.add_status(status)

    def opt_in(self, namespace: str, labels: Labels) -> str | None:
        """Remembers a namespace that an action opted in, and labels it. Returns the reason if it is not labelled."""
        settings = self.settings
        if not settings or not settings.has_shim_image:
            return statuses.NO_SHIM_IMAGE.message
        return self._remember(settings, {**self._opted_in, namespace: labels})

    def opt_out(self, namespace: str) -> bool:
        """Forgets such a namespace, and restores its labels. Returns true if it was one."""
        opted_in, settings = dict(self._opted_in), self.settings
        was_opted_in = opted_in.pop(namespace, None) is not None
        if was_opted_in and settings:
            self._remember(settings, opted_in)
        return was_opted_in

    @property
    def _opted_in(self) -> dict[str, Labels]:
        peers = self.model.get_relation(PEERS)
        return json.loads(peers.data[self.app].get(_OPTED_IN, "{}")) if peers else {}

    def _remember(self, settings: Settings, opted_in: dict[str, Labels]) -> str | None:
        """Keeps what actions opted in, and labels namespaces. Returns the reasons of those that are not labelled."""
        peers = self.model.get_relation(PEERS)
        if peers:
            peers.data[self.app][_OPTED_IN] = json.dumps(opted_in, sort_keys=True)
        _, rejected = self._resources.label(self._wanted_labels(settings))
        return "; ".join(rejected) or None

    def _wanted_labels(self, settings: Settings) -> dict[str, Labels]:
        opted_in = self._opted_in
        return {**opted_in, **{name: {**opted_in.get(name, {}), **OPT_IN} for name in settings.namespaces}}

    def reconcile(self, *, counts_pods: bool = False) -> None:
        """Applies the desired state, on the leader, and records the statuses."""
        self._statuses = list(self._reconcile(counts_pods=counts_pods)) or [ops.ActiveStatus()]

    def _reconcile(self, *, counts_pods: bool) -> Iterable[StatusBase]:
        if self.app.planned_units() == 0:
            yield from self._delete()
            return
        peers = self.model.get_relation(PEERS)
        if not peers:
            yield statuses.NO_PEERS
            return
        yield from self._check_options(peers)
        settings = self.settings
        if not settings or not self.unit.is_leader():
            return
        image = self._webhook_image()
        if not image:
            yield statuses.NO_WEBHOOK_IMAGE
            return
        try:
            yield from self._apply(settings, image)
            if counts_pods:
                yield from self._count(settings)
        except Conflict as conflict:
            yield statuses.conflict(str(conflict))
        except ClusterError as error:
            yield self._status_for(error)

    def _check_options(self, peers: ops.Relation) -> Iterable[StatusBase]:
        """Yields a status for invalid options; the leader stores valid ones."""
        try:
            self.load_config(Settings)
        except pydantic.ValidationError as error:
            yield statuses.invalid_options(options.problems(error))
            return
        if self.unit.is_leader():
            peers.data[self.app][_LAST_GOOD] = json.dumps(dict(self.config), sort_keys=True)

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
        wanted = self._wanted_labels(settings)
        if not settings.has_shim_image:
            if wanted or settings.namespace_selector:
                yield statuses.NO_SHIM_IMAGE
            wanted, settings = {}, settings.model_copy(update={"namespace_selector": None})
        unsupported = self._resources.apply(settings, image, max(_LEAST_REPLICAS, self.app.planned_units()))
        yield from map(statuses.conflict, unsupported)
        certificate = self._certificates.certificate
        if certificate:
            self._resources.serve(certificate)
        elif self._certificates.is_related:
            yield statuses.NOT_ISSUED
        absent, rejected = self._resources.label(wanted)
        if rejected:
            yield statuses.not_labelled(rejected)
        if absent:
            yield statuses.absent_namespaces(absent)
        if settings.require_sidecar and not unsupported:
            yield statuses.exempt_from_sidecars(self._resources.istio_applications())
        yield from self._wait_for_deployments(settings)
        self._observability.publish(self._resources.addresses())

    def _wait_for_deployments(self, settings: Settings) -> Iterable[StatusBase]:
        webhook, tenancy = self._application.webhook, self._application.tenancy
        deployment = self._resources.deployment(webhook)
        for _ in range(_START_TIMEOUT):
            if health.is_available(deployment) or health.is_overdue(deployment, _now()):
                break
            time.sleep(1)
            deployment = self._resources.deployment(webhook)
        if not health.is_available(deployment) or health.is_overdue(deployment, _now()):
            yield statuses.not_ready(webhook)
        if settings.tenancy and health.is_overdue(self._resources.deployment(tenancy), _now()):
            yield statuses.not_ready(tenancy)

    def _count(self, settings: Settings) -> Iterable[StatusBase]:
        """Yields how many pods miss something."""
        missed = Census(self._cluster, self._application, settings).missed()
        if missed:
            yield statuses.missed(collections.Counter(each.kind for each in missed))

    def _delete(self) -> Iterable[StatusBase]:
        """Deletes all cluster objects, because no unit is planned."""
        try:
            self._resources.delete()
        except ClusterError as error:
            yield self._status_for(error)
        else:
            yield statuses.REMOVED

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

#!/usr/bin/env python3
"""The charm of istio-aux. On every event, `reconcile` computes the desired state and applies it."""

import datetime
import json
import logging
import time
from collections.abc import Iterable

import ops
import pydantic
from charmlibs.interfaces.certificate_transfer import CertificateTransferRequires
from ops import StatusBase, pebble

import observability
import rolling_restart
import settings as options
import statuses
import webhook
from actions import Actions
from application import Application
from certs import ca_trust, self_signed, serving_cert
from certs.ca_trust import TrustedCAs
from certs.self_signed import SelfSigned
from certs.serving_cert import ServingCert
from certs.tls_relation import TlsRelation
from cluster.client import Cluster, ClusterError, Forbidden, Unavailable
from cluster.resources import ClusterResources, Conflict
from observability import Observability
from settings import Settings
from webhook import Webhook

logger = logging.getLogger(__name__)

PEERS, CA_CERTIFICATES = "peers", "receive-ca-cert"
_LAST_GOOD = "options"
"""Key of the application's peer data: the last valid options."""
_REMOVAL_RETRIES = (1, 2, 4)
"""Seconds between the attempts of the last hook, before it fails and Juju retries it."""
_READY_TIMEOUT = 5
"""Seconds that a hook waits for the webhook to become ready. Otherwise the next event checks again."""


class IstioAuxCharm(ops.CharmBase):
    """A unit of istio-aux."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._statuses: list[StatusBase] = []
        self._application = Application(self.app.name, self.model.name, self.model.uuid)
        cluster = Cluster(self.model.name)
        self._resources = ClusterResources(self._application, cluster, self.unit.name)
        self._secret = self_signed.Secret(self)
        # Created before this charm observes events: the libraries then handle each event first.
        self._tls_relation = TlsRelation(self, self._application)
        self._ca_certificates = CertificateTransferRequires(self, CA_CERTIFICATES)
        self._observability = Observability(self)
        self._webhook = Webhook(self.unit.get_container(webhook.CONTAINER))
        self._actions = Actions(self, self._application, cluster, self)
        for event in self._events():
            framework.observe(event, self._on_event)
        framework.observe(self.on.secret_remove, self._on_secret_remove)
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
        relations = (PEERS, "certificates", CA_CERTIFICATES, "metrics-endpoint", "grafana-dashboard", "logging")
        for events in (self.on[name] for name in relations):
            yield from (
                events.relation_created,
                events.relation_joined,
                events.relation_changed,
                events.relation_departed,
                events.relation_broken,
            )
        container = self.on[webhook.CONTAINER]
        yield from (container.pebble_ready, container.pebble_check_failed, container.pebble_check_recovered)
        on = self.on
        yield from (on.install, on.start, on.stop, on.upgrade_charm, on.config_changed, on.update_status)
        yield from (on.leader_elected, on.secret_changed, on.secret_expired)

    def _on_event(self, _event: ops.EventBase) -> None:
        self.reconcile()

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        if event.secret.label == self_signed.LABEL:
            event.remove_revision()
        self.reconcile()

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

    def rotate(self) -> str | None:
        """Issues a new certificate, has it trusted, then serves it. Returns the reason if it is not served."""
        self.reconcile(rotate=True)
        time.sleep(ca_trust.SETTLING.total_seconds())
        self.reconcile()
        kept = self._secret.read()
        if kept and self._webhook.is_up and self._webhook.served == kept.current.text:
            return None
        return self._statuses[0].message or "see juju debug-log"

    def reconcile(self, *, rotate: bool = False) -> None:
        """Applies the desired state, the cluster's objects only on the leader, and records the statuses."""
        self._statuses = list(self._reconcile(rotate=rotate)) or [ops.ActiveStatus()]

    def _reconcile(self, *, rotate: bool) -> Iterable[StatusBase]:
        if self.app.planned_units() == 0:
            yield from self._delete()
            return
        peers = self.model.get_relation(PEERS)
        if not peers:
            yield statuses.NO_PEERS
            return
        settings = self.settings
        yield from self._check_options(peers)
        self._observability.publish()
        kept = self._keep_certificate(rotate=rotate)
        cert = self._tls_relation.cert or (kept.current if kept else None)
        if cert:
            ca_trust.announce_desired(peers.data[self.unit], cert)
        if not kept:
            yield statuses.NO_CERTIFICATE
        if self._tls_relation.is_related and not self._tls_relation.cert:
            yield statuses.NOT_ISSUED
        if settings and kept and self.unit.is_leader():
            yield from self._apply(settings, kept, peers)
        if settings:
            yield from self._serve(settings, cert, peers)

    def _check_options(self, peers: ops.Relation) -> Iterable[StatusBase]:
        """Yields a status for invalid options; the leader stores valid ones."""
        try:
            self.load_config(Settings)
        except pydantic.ValidationError as error:
            yield statuses.invalid_options(options.problems(error))
            return
        if self.unit.is_leader():
            peers.data[self.app][_LAST_GOOD] = json.dumps(dict(self.config), sort_keys=True)

    def _keep_certificate(self, *, rotate: bool) -> SelfSigned | None:
        """Returns the application's own certificate; the leader issues or renews it when that is due."""
        kept = self._secret.read()
        dns_names, now = self._application.dns_names, _now()
        if self.unit.is_leader() and (rotate or self_signed.is_due(kept, dns_names, now)):
            cert = serving_cert.issue(dns_names, now)
            kept = kept.rotated(cert) if kept else SelfSigned(cert)
            self._secret.write(kept)
            logger.info("issued a new certificate")
        return kept

    def _apply(self, settings: Settings, kept: SelfSigned, peers: ops.Relation) -> Iterable[StatusBase]:
        """Writes the cluster objects, and records which CAs they trust. The leader's part."""
        data = peers.data[self.app]
        units = [peers.data[unit] for unit in (self.unit, *sorted(peers.units, key=lambda unit: unit.name))]
        cas = ca_trust.ca_certificates(kept.ca_certificates, units)
        try:
            unsupported = self._resources.apply(settings, cas)
            TrustedCAs.load(data).after(cas, _now()).save(data)
            absent = self._resources.label(settings)
            if settings.require_sidecar and not unsupported:
                yield statuses.exempt_from_sidecars(self._resources.istio_charms())
            if settings.tenancy and self._resources.is_controller_overdue(_now()):
                yield statuses.controller_not_ready(self._application.tenancy)
        except Conflict as conflict:
            yield statuses.conflict(str(conflict))
        except ClusterError as error:
            yield self._status_for(error)
        else:
            yield from map(statuses.conflict, unsupported)
            if absent:
                yield statuses.absent_namespaces(absent)

    def _serve(self, settings: Settings, cert: ServingCert | None, peers: ops.Relation) -> Iterable[StatusBase]:
        """Configures the container, serves the certificate once it is trusted, and labels the pod. Each unit's part."""
        if not self._webhook.is_up:
            yield statuses.NO_CONTAINER
            return
        try:
            yield from self._serve_in_container(settings, cert, peers)
        except pebble.Error as error:
            logger.warning("%s: %s", type(error).__name__, error)
            yield statuses.DOES_NOT_START

    def _serve_in_container(
        self, settings: Settings, cert: ServingCert | None, peers: ops.Relation
    ) -> Iterable[StatusBase]:
        data = peers.data[self.unit]
        served = self._webhook.served
        if cert and served != cert.text:
            if TrustedCAs.load(peers.data[self.app]).may_serve(cert, _now(), instead=served is not None):
                self._webhook.serve(cert)
                ca_trust.announce_served(data, cert)
            elif not served:
                yield statuses.NOT_TRUSTED_YET
                return
        if not cert and not served:
            return
        targets = self._observability.log_targets
        if not self._webhook.trust(self._ca_bundle()) and any(map(observability.is_tls, targets.values())):
            targets = {name: target for name, target in targets.items() if not observability.is_tls(target)}
            yield statuses.NO_CA_FOR_LOKI
        command = webhook.command(settings)
        layer = webhook.layer(settings, targets)
        others = {unit.name: peers.data[unit] for unit in peers.units}
        if self._webhook.would_restart(layer) and not rolling_restart.is_its_turn(
            self.unit.name, data, others, command, _now()
        ):
            yield statuses.RESTART_WAITS
            return
        self._webhook.run(layer)
        yield from self._mark_ready()
        rolling_restart.announce(data, command)

    def _mark_ready(self) -> Iterable[StatusBase]:
        """Adds this unit to the Service once its webhook answers."""
        if failing := self._webhook.failing_checks:
            yield statuses.failing(failing)
            return
        for _ in range(_READY_TIMEOUT):
            if webhook.is_ready():
                break
            time.sleep(1)
        else:
            yield statuses.NOT_READY
            return
        try:
            self._resources.mark_serving()
        except ClusterError as error:
            yield self._status_for(error)

    def _ca_bundle(self) -> str:
        certificates = sorted(self._ca_certificates.get_all_certificates())
        return "".join(f"{certificate.strip()}\n" for certificate in certificates)

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

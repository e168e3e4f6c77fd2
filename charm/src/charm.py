#!/usr/bin/env python3
"""The charm of istio-aux. Whatever happens, `reconcile` computes what should be and applies it."""

import datetime
import json
import logging
import time
from collections.abc import Iterable

import ops
from ops import StatusBase, pebble

import keystore
import statuses
import trust
import webhook
from actions import Actions
from application import Application
from certificates import Pair, issue
from cluster import Cluster, ClusterError, Forbidden, Unavailable
from installation import Conflict, Installation
from issued import Issued
from keystore import Keystore
from observability import Observability
from settings import Settings, WrongOptions
from trust import Trusted
from webhook import Webhook

logger = logging.getLogger(__name__)

PEERS = "peers"
_LAST_GOOD = "options"
"""Key of the application's peer data: the options as they were when they were last all good."""


class IstioAuxCharm(ops.CharmBase):
    """One unit of istio-aux."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._application = Application(self.app.name, self.model.name, self.model.uuid)
        cluster = Cluster(self.model.name)
        self._installation = Installation(self._application, cluster)
        self._secret = keystore.Secret(self)
        # Before this charm's own observers: it has the certificate ready when they run.
        self._issued = Issued(self, self._application)
        self._observability = Observability(self, self._application)
        self._webhook = Webhook(self.unit.get_container(webhook.CONTAINER))
        self._actions = Actions(self, self._application, cluster, self.rotate)
        for event in self._events():
            framework.observe(event, self._on_event)
        framework.observe(self.on.secret_rotate, self._on_secret_rotate)

    def _events(self) -> Iterable[ops.BoundEvent]:
        relations = (PEERS, "certificates", "metrics-endpoint", "grafana-dashboard", "logging")
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
        yield from (on.install, on.start, on.upgrade_charm, on.config_changed, on.update_status)
        yield from (on.leader_elected, on.secret_changed, on.secret_expired, on.secret_remove)
        yield from (on.stop, on.remove)

    def _on_event(self, _event: ops.EventBase) -> None:
        self.reconcile()

    def _on_secret_rotate(self, event: ops.SecretRotateEvent) -> None:
        self.reconcile(rotate=event.secret.label == keystore.LABEL)

    def rotate(self) -> bool:
        """Make a new certificate, have it trusted, then serve it. Returns whether this unit does."""
        self.reconcile(rotate=True)
        time.sleep(trust.SETTLING.total_seconds())
        self.reconcile()
        kept = self._secret.read()
        return kept is not None and self._webhook.is_up and self._webhook.served == kept.current.text

    def reconcile(self, *, rotate: bool = False) -> None:
        """Bring everything to what it should be, as far as this unit may, and say how it is."""
        if self.app.planned_units() == 0:
            self.unit.status = self._take_down()
            return
        peers = self.model.get_relation(PEERS)
        if not peers:
            self.unit.status = statuses.NO_PEERS
            return
        found: list[StatusBase] = []
        settings = self._settings(peers, found)
        self._observability.publish()
        kept = self._keep_certificate(rotate=rotate)
        pair = self._wanted_pair(kept, found)
        if pair:
            trust.want(peers.data[self.unit], pair)
        if settings and kept and self.unit.is_leader():
            found += self._bring_up(settings, kept, peers)
        if settings:
            found += self._serve(settings, pair, peers)
        self.unit.status = statuses.worst(found)

    def _settings(self, peers: ops.Relation, found: list[StatusBase]) -> Settings | None:
        """The options; where they are wrong the last good ones, which the leader keeps for all units."""
        try:
            settings = Settings.parse(self.config)
        except WrongOptions as wrong:
            found.append(statuses.wrong_options(wrong))
            return _last_good(peers.data[self.app].get(_LAST_GOOD))
        if self.unit.is_leader():
            peers.data[self.app][_LAST_GOOD] = json.dumps(dict(self.config), sort_keys=True)
        return settings

    def _keep_certificate(self, *, rotate: bool) -> Keystore | None:
        """The application's own certificate, made or renewed by the leader where that is due."""
        kept = self._secret.read()
        names, now = self._application.dns_names, _now()
        if self.unit.is_leader() and (rotate or keystore.due(kept, names, now)):
            pair = issue(names, now)
            kept = kept.rotated(pair) if kept else Keystore(pair)
            self._secret.write(kept)
            logger.info("made a new certificate")
        return kept

    def _wanted_pair(self, kept: Keystore | None, found: list[StatusBase]) -> Pair | None:
        """What this unit is to serve: what the relation issues, else the application's own."""
        issued = self._issued.pair
        if issued:
            return issued
        if self._issued.is_related:
            found.append(statuses.NOT_ISSUED)
        if not kept:
            found.append(statuses.NO_CERTIFICATE)
            return None
        return kept.current

    def _bring_up(self, settings: Settings, kept: Keystore, peers: ops.Relation) -> list[StatusBase]:
        """The leader's part: the cluster objects, and the note of what they trust."""
        data = peers.data[self.app]
        units = [peers.data[unit] for unit in (self.unit, *sorted(peers.units, key=lambda unit: unit.name))]
        authorities = trust.authorities(kept.authorities, units)
        try:
            lacking = self._installation.bring_up(settings, authorities)
            Trusted.load(data).after(authorities, _now()).save(data)
            absent = self._installation.label(settings)
        except Conflict as conflict:
            return [statuses.conflict(str(conflict))]
        except ClusterError as error:
            return [self._told(error)]
        found = [statuses.conflict(each) for each in lacking]
        return [*found, statuses.absent_namespaces(absent)] if absent else found

    def _serve(self, settings: Settings, pair: Pair | None, peers: ops.Relation) -> list[StatusBase]:
        """This unit's part: the container, and the certificate once it is trusted."""
        if not self._webhook.is_up:
            return [statuses.NO_CONTAINER]
        try:
            return self._serve_in_container(settings, pair, peers)
        except pebble.Error as error:
            logger.warning("%s: %s", type(error).__name__, error)
            return [statuses.DOES_NOT_START]

    def _serve_in_container(self, settings: Settings, pair: Pair | None, peers: ops.Relation) -> list[StatusBase]:
        served = self._webhook.served
        if pair and served != pair.text:
            if Trusted.load(peers.data[self.app]).may_serve(pair, _now(), instead=served is not None):
                self._webhook.serve(pair)
                trust.serve(peers.data[self.unit], pair)
            elif not served:
                return [statuses.NOT_TRUSTED_YET]
        if not pair and not served:
            return []
        self._webhook.run(webhook.layer(settings, self._observability.log_targets))
        failing = self._webhook.failing_checks
        return [statuses.failing(failing)] if failing else []

    def _take_down(self) -> StatusBase:
        """Nobody is to be left: whichever unit still has a hook leaves nothing in the cluster."""
        try:
            self._installation.take_down()
        except ClusterError as error:
            return self._told(error)
        return statuses.REMOVED

    def _told(self, error: ClusterError) -> StatusBase:
        logger.warning("%s: %s", type(error).__name__, error)
        if isinstance(error, Forbidden):
            return statuses.not_trusted(self.app.name)
        if isinstance(error, Unavailable):
            return statuses.API_AWAY
        return statuses.refused(str(error))


def _last_good(options: str | None) -> Settings | None:
    """Options as the leader kept them; None where there are none, or where they were an earlier revision's."""
    try:
        return Settings.parse(json.loads(options)) if options else None
    except WrongOptions:
        return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    ops.main(IstioAuxCharm)

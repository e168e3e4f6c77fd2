"""Renewal and rotation of the application's own certificate."""

import dataclasses
import json

import pytest
from charmlibs.interfaces.tls_certificates import TLSCertificatesRequiresV4
from ops import ActiveStatus, WaitingStatus, testing

from certs import self_signed, serving_cert
from tests.unit.api import Api, api_error
from tests.unit.juju import App, Clock
from tests.unit.seen import CONFIGURATION, trusted


def test_renewal_keeps_every_unit_trusted(app: App, api: Api, clock: Clock) -> None:
    app.deploy(2)
    first = app.kept().current
    clock.passes(days=250)
    app.secret_expired(0)
    second = app.kept().current
    assert second != first
    assert trusted(api) == {first.ca.strip(), second.ca.strip()}
    assert [app.served(unit) for unit in (0, 1)] == [first.text, first.text], "the new one is not known everywhere yet"
    clock.passes(seconds=10)
    app.secret_changed(1)
    assert app.served(1) == second.text
    app.update(0)
    assert app.served(0) == second.text
    assert trusted(api) == {first.ca.strip(), second.ca.strip()}


def test_certificate_that_is_not_due_is_kept(app: App) -> None:
    app.deploy()
    kept = app.kept()
    app.secret_expired(0)
    assert app.kept() == kept


def test_unread_revision_of_the_secret_is_removed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library of the certificates relation removes revisions of any secret; that is not to be relied on.
    monkeypatch.setattr(TLSCertificatesRequiresV4, "_on_secret_remove", lambda *_: None)
    app.deploy()
    context = app.contexts[0]
    app.run(0, lambda state: context.on.secret_remove(state.get_secret(label=self_signed.LABEL), revision=7))
    assert context.removed_secret_revisions == [7]
    context.removed_secret_revisions.clear()
    other = testing.Secret({"key": "value"}, label="another", owner="unit")
    app.units[0] = dataclasses.replace(app.units[0], secrets={*app.units[0].secrets, other})
    app.run(0, context.on.secret_remove(other, revision=7))
    assert context.removed_secret_revisions == [], "other secrets are not the charm's to clean up"


def test_unit_two_rotations_behind_is_still_trusted(app: App, api: Api, clock: Clock) -> None:
    app.deploy(2)
    first = app.kept().current
    for _ in range(2):
        app.rotate(0)
        clock.passes(seconds=10)
        app.update(0)
    assert app.served(1) == first.text
    assert first.ca.strip() in trusted(api)
    app.update(1)
    app.peers_changed(0)
    assert app.served(1) == app.kept().current.text
    assert app.kept().current.ca.strip() in trusted(api)


def test_new_unit_does_not_serve_what_is_not_trusted(app: App, api: Api, clock: Clock) -> None:
    app.deploy()
    api.broken = api_error(503)
    clock.passes(days=300)
    app.update(0)
    app.add(1)
    app.start(1)
    assert app.status(1) == WaitingStatus("waiting for the leader to have the API server trust the certificate")
    assert app.served(1) is None
    api.broken = None
    app.update(0)
    app.peers_changed(1)
    assert app.served(1) == app.kept().current.text
    assert app.status(1) == ActiveStatus()


def test_secret_expires_when_the_certificate_is_due(app: App) -> None:
    app.deploy()
    assert app.secret
    assert app.secret.expire == serving_cert.renew_at(app.kept().current.certificate)
    assert app.secret.label == self_signed.LABEL


def test_changed_configuration_is_restored(app: App, api: Api) -> None:
    app.deploy()
    before = json.loads(json.dumps(api.get(*CONFIGURATION)))
    api.get(*CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"] = ""
    api.get(*CONFIGURATION)["webhooks"].pop()
    app.update(0)
    assert api.get(*CONFIGURATION) == before

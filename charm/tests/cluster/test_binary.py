"""The webhook's program with the command, user and environment of the charm's layer, in the container's root.

No registry serves Pebble, so each test starts the program itself.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import ops
import pytest
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from ops import ActiveStatus

import webhook
from certs import serving_cert
from tests.cluster.model import Model
from tests.cluster.waiting import until
from tests.unit.juju import App


@pytest.fixture
def binary() -> pathlib.Path:
    """The webhook's binary, static as in its image."""
    path = os.environ.get("ISTIO_AUX_BINARY")
    if not path:
        pytest.fail(
            "ISTIO_AUX_BINARY is not set; next: make images, and set it to the istio-aux-webhook of the musl target"
        )
    for port in (webhook.ADMISSION_PORT, webhook.HEALTH_PORT):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"something else listens on port {port}"
    return pathlib.Path(path)


def give_to_user(app: App) -> None:
    """Sets the owner of the certificate, as Pebble does with a push."""
    os.chown(app.file(0), webhook.USER, webhook.USER)


@contextlib.contextmanager
def running(app: App, binary: pathlib.Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs the service of the plan, as Pebble starts it."""
    root = app.root(0)
    shutil.copy(binary, root / "istio-aux-webhook")
    root.chmod(0o755)
    service: ops.pebble.Service = app.container(0).plan.services[webhook.SERVICE]

    def enter() -> None:
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(webhook.USER)
        os.setuid(webhook.USER)

    words = shlex.split(service.command)
    process = subprocess.Popen(words, env=dict(service.environment), preexec_fn=enter)  # noqa: PLW1509
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_passes(app: App, check: str) -> bool:
    """Returns true if one of the plan's checks would pass now."""
    found = app.container(0).plan.checks[check].http or {}
    try:
        with urllib.request.urlopen(str(found.get("url")), timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def review(app: App, model: Model, pod: dict[str, Any], path: str = "/mutate") -> tuple[str, dict[str, Any]]:
    """Sends a review with the API server's trust. Returns the served certificate and the response."""
    configuration = model.admin.get(MutatingWebhookConfiguration, f"istio-aux-{model.name}")
    services = {
        each.clientConfig.service.path: each for each in configuration.webhooks or [] if each.clientConfig.service
    }
    entry = services[path]
    service = entry.clientConfig.service
    assert service
    context = ssl.create_default_context(cadata=base64.b64decode(str(entry.clientConfig.caBundle)).decode())
    name = f"{service.name}.{service.namespace}.svc"
    request = {
        "uid": "1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "object": pod,
    }
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    with (
        socket.create_connection(("127.0.0.1", webhook.ADMISSION_PORT), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        served = connection.getpeercert(binary_form=True)
        assert served
        head = f"POST {service.path} HTTP/1.1\r\nHost: {name}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        return ssl.DER_cert_to_PEM_cert(served), json.loads(answer.read())["response"]


POD = {
    "metadata": {"name": "one"},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "payload"}]},
}


DRAIN = 10


def test_rotated_certificate_is_served_without_restart(model: Model, binary: pathlib.Path) -> None:
    app = model.deployed()
    assert app.status() == ActiveStatus()
    give_to_user(app)
    assert app.file(0).stat().st_mode & 0o777 == 0o600
    with running(app, binary) as process:
        until("the check of readiness", lambda: check_passes(app, webhook.READY))
        assert check_passes(app, webhook.LIVE)
        served, answer = review(app, model, POD)
        assert answer["allowed"] is True
        patch = base64.b64decode(answer["patch"]).decode()
        assert "holdApplicationUntilProxyStarts" in patch
        assert serving_cert.fingerprint(served) == serving_cert.fingerprint(app.kept().current.certificate)

        app.act(0, "rotate-certificates")
        give_to_user(app)
        rotated = serving_cert.fingerprint(app.kept().current.certificate)
        assert rotated != serving_cert.fingerprint(served)
        # Every answer on the way is trusted: a review that is not would raise.
        until("the new certificate", lambda: serving_cert.fingerprint(review(app, model, POD)[0]) == rotated)
        assert process.poll() is None, "the same process serves it"


def test_terminated_webhook_answers_while_it_drains(model: Model, binary: pathlib.Path) -> None:
    app = model.deployed()
    give_to_user(app)
    with running(app, binary) as process:
        until("the check of readiness", lambda: check_passes(app, webhook.READY))
        began = time.monotonic()
        process.terminate()
        until("the drain", lambda: not check_passes(app, webhook.READY))
        assert review(app, model, POD)[1]["allowed"] is True, "API servers turn to other units meanwhile"
        assert process.wait(int(webhook.KILL_DELAY.rstrip("s"))) == 0, "it exits before Pebble would kill it"
    assert time.monotonic() - began >= DRAIN


@pytest.mark.usefixtures("unit_pod")
def test_entries_for_tenants_are_answered(model: Model, binary: pathlib.Path) -> None:
    app = model.deployed({"tenancy": True})
    assert app.status() == ActiveStatus()
    give_to_user(app)
    with running(app, binary):
        until("the check of readiness", lambda: check_passes(app, webhook.READY))
        for path, added in (
            ("/mutate/pipelines-token", "KF_PIPELINES_SA_TOKEN_PATH"),
            ("/mutate/mesh", "sidecar.istio.io~1inject"),
        ):
            _, answer = review(app, model, POD, path)
            patch = base64.b64decode(answer["patch"]).decode()
            assert added in patch.replace("sidecar.istio.io/inject", "sidecar.istio.io~1inject")
            assert "holdApplicationUntilProxyStarts" not in patch, "that is another entry's"

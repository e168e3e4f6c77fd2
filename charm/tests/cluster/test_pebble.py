"""The charm's layer, run by Pebble itself in the files of the webhook's image, as Juju starts it: without root."""

import concurrent.futures
import contextlib
import datetime
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tarfile
import threading
import unittest.mock
import urllib.request
from collections.abc import Iterator
from typing import Any

import ops
import pytest
from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    CertificateSigningRequest,
    PrivateKey,
)
from ops import pebble

import observability
import webhook
from application import Application
from certs import serving_cert
from settings import Settings
from tests.cluster.waiting import WAIT_TIMEOUT, until
from webhook import Webhook

DRAIN = datetime.timedelta(seconds=10)
HEALTH = "http://127.0.0.1:38813/v1/health?level=ready"
CERT = serving_cert.issue(Application("istio-aux", "kubeflow", "uuid").dns_names, datetime.datetime.now(datetime.UTC))


class Pod:
    """The container of the webhook, in a folder, with Pebble running in it as Juju has it run."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        unpack_image(root)
        for folder in ("charm/bin", "proc", "dev"):
            (root / folder).mkdir(parents=True)
        os.link(needed("PEBBLE"), root / "charm/bin/pebble")
        # Juju mounts a volume of the pod's here, which its fsGroup may write to.
        (root / "charm/container").mkdir()
        os.chown(root / "charm/container", webhook.USER, webhook.USER)
        self.log = root.parent / f"{root.name}.log"
        self.process = self._start()

    def connect(self) -> None:
        """Wait for Pebble, and let the charm's own code speak to it."""
        socket_path = str(self.root / "charm/container/pebble.socket")
        client = pebble.Client(socket_path=socket_path)
        until("Pebble", lambda: self._answers(client))
        backend: Any = unittest.mock.MagicMock()
        self.container = ops.Container("webhook", backend, pebble_client=client)
        self.webhook = Webhook(self.container)

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {
            "PEBBLE": "/charm/container/pebble",
            "PEBBLE_SOCKET": "/charm/container/pebble.socket",
            "PEBBLE_COPY_ONCE": "/var/lib/pebble/default",
        }
        # All of these replace themselves by the next: the process is Pebble in the end. Its mounts go with it.
        user = f"{webhook.USER}:{webhook.USER}"
        run = "/charm/bin/pebble run --create-dirs --hold --http :38813 --verbose"
        script = f"mount -t proc proc proc && mount --rbind /dev dev && exec chroot --userspec={user} --groups= . {run}"
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        environment["PATH"] = os.environ["PATH"]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                words, cwd=self.root, env=environment, start_new_session=True, stdout=log, stderr=log
            )

    def _answers(self, client: pebble.Client) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(pebble.Error):
            client.get_system_info()
            return True
        return False

    def pid(self) -> int | None:
        """The webhook's process, a child of Pebble's; None while there is none."""
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            # A thread may have ended meanwhile.
            with contextlib.suppress(OSError):
                for child in task.read_text().split():
                    if b"/istio-aux" in cmdline(child):
                        return int(child)
        return None

    def drains(self) -> list[datetime.timedelta]:
        """How long each webhook drained that came to its end, by its own log."""
        lines = [line[line.index("{") :] for line in self.log.read_text().splitlines() if '"message":"stop' in line]
        times = [datetime.datetime.fromisoformat(json.loads(line)["timestamp"]) for line in lines]
        return [stopped - stopping for stopping, stopped in zip(times[::2], times[1::2], strict=False)]

    def end(self) -> None:
        # The webhook has a process group of its own.
        child = self.pid()
        self.process.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        self.process.wait()
        # It is no child of this process, and the next test has the same ports.
        until("the webhook's end", lambda: not child or not cmdline(str(child)))


def cmdline(pid: str) -> bytes:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def needed(variable: str) -> str:
    value = os.environ.get(variable)
    if not value or not pathlib.Path(value).exists():
        pytest.fail(f"{variable} is no file: {value}; next: make images, and run this by charm/test cluster")
    return value


def unpack_image(root: pathlib.Path) -> None:
    """The one layer of the webhook's image, with its modes."""
    with tarfile.open(needed("WEBHOOK_ARCHIVE")) as archive:

        def blob(digest: str) -> Any:
            return archive.extractfile(f"blobs/{digest.replace(':', '/')}")

        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(root, filter="fully_trusted")


@pytest.fixture
def pod(tmp_path: pathlib.Path) -> Iterator[Pod]:
    for port in (webhook.ADMISSION_PORT, webhook.HEALTH_PORT, 38813):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"something else listens on port {port}"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    pod = Pod(tmp_path / "root")
    try:
        pod.connect()
        yield pod
    finally:
        pod.end()


def is_healthy() -> bool:
    try:
        with urllib.request.urlopen(HEALTH, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def layer(**options: str) -> pebble.LayerDict:
    return webhook.layer(Settings(**options), {})  # type: ignore[arg-type]


def accepts_connections() -> bool:
    context = ssl.create_default_context(cadata=CERT.ca)
    name = Application("istio-aux", "kubeflow", "uuid").dns_names[0]
    try:
        with socket.create_connection(("127.0.0.1", webhook.ADMISSION_PORT), timeout=2) as plain:
            context.wrap_socket(plain, server_hostname=name).close()
    except OSError:
        return False
    return True


def test_pod_is_ready_once_the_webhook_serves_and_nothing_runs_as_root(pod: Pod) -> None:
    until("the check of the image's own layer to fail", lambda: not is_healthy())
    pod.webhook.serve(CERT)
    pod.webhook.run(layer())
    until("readiness", webhook.is_ready)
    until("Pebble's checks", is_healthy)
    assert pod.webhook.failing_checks == []
    assert accepts_connections()
    for pid in (pod.process.pid, pod.pid()):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{webhook.USER}\t{webhook.USER}\t{webhook.USER}" in status
    assert pod.webhook.served == CERT.text
    assert (pod.root / "certificate/webhook.pem").stat().st_mode & 0o777 == 0o600


def test_new_option_restarts_the_webhook_after_its_drain_and_sigterm_ends_it_after_its_drain(pod: Pod) -> None:
    pod.webhook.serve(CERT)
    pod.webhook.run(layer())
    until("readiness", webhook.is_ready)
    first = pod.pid()
    assert not pod.webhook.would_restart(layer())
    pod.webhook.run(layer())
    assert pod.pid() == first, "the same layer restarts nothing"

    changed = layer(log_level="debug")
    assert pod.webhook.would_restart(changed)
    with concurrent.futures.ThreadPoolExecutor() as beside:
        answering = beside.submit(answering_while_it_drains, pod)
        pod.webhook.run(changed)
        assert answering.result() == first, "it answers while API servers turn to other units"
    drained = until("its last line", pod.drains)
    assert drained[0] >= DRAIN, "it ended by itself, and not by Pebble's kill-delay"
    until("readiness", webhook.is_ready)
    second = pod.pid()
    assert second not in (first, None)

    pod.process.terminate()
    assert answering_while_it_drains(pod) == second, "it answers while the pod ends"
    assert pod.process.wait(WAIT_TIMEOUT) == 0
    assert not accepts_connections()


def answering_while_it_drains(pod: Pod) -> int | None:
    """The process that accepts a connection although it is not ready."""
    until("the drain", lambda: not webhook.is_ready())
    return pod.pid() if accepts_connections() else None


class Loki:
    """An HTTPS server that takes logs as Loki does."""

    def __init__(self) -> None:
        self.pushed: list[dict[str, Any]] = []
        ca_key, key = PrivateKey.generate(), PrivateKey.generate()
        validity = serving_cert.VALIDITY
        ca = Certificate.generate_self_signed_ca(
            CertificateRequestAttributes(common_name="CA of Loki", is_ca=True), ca_key, validity=validity
        )
        asked = CertificateRequestAttributes(common_name="loki", sans_ip=frozenset({"127.0.0.1"}))
        certificate = CertificateSigningRequest.generate(asked, key).sign(ca, ca_key, validity=validity)
        self.ca, self._chain = str(ca), f"{certificate}\n{key}\n"

    @contextlib.contextmanager
    def running(self, folder: pathlib.Path) -> Iterator[str]:
        pushed = self.pushed

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                pushed.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        file = folder / "loki.pem"
        file.write_text(self._chain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/loki/api/v1/push"
        finally:
            server.shutdown()


def to_loki(url: str) -> pebble.LayerDict:
    topology = observability.JujuTopology("model", "11111111-2222-4333-8444-555555555555", "istio-aux", "istio-aux/0")
    return webhook.layer(Settings(), {"loki": observability.log_target(topology, url)})


def test_log_reaches_a_loki_behind_tls_with_the_pushed_ca(pod: Pod, tmp_path: pathlib.Path) -> None:
    loki = Loki()
    with loki.running(tmp_path) as url:
        assert not pod.webhook.trust(""), "the image has no CAs"
        assert pod.webhook.trust(loki.ca)
        pod.webhook.serve(CERT)
        pod.webhook.run(to_loki(url))
        until("a log line of the webhook", lambda: loki.pushed)
    labels = loki.pushed[0]["streams"][0]["stream"]
    assert labels["juju_unit"] == "istio-aux/0"
    assert labels["pebble_service"] == "webhook"


def test_log_does_not_reach_a_loki_behind_tls_without_its_ca(pod: Pod, tmp_path: pathlib.Path) -> None:
    loki = Loki()
    with loki.running(tmp_path) as url:
        pod.webhook.serve(CERT)
        pod.webhook.run(to_loki(url))
        until("Pebble's complaint", lambda: "certificate" in pod.log.read_text() and "loki" in pod.log.read_text())
    assert loki.pushed == []

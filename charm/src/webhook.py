"""The webhook's container. The layer for Pebble is pure; `Webhook` is the edge to the container."""

import shlex
import urllib.request
from collections.abc import Mapping

import ops
from ops import pebble

from certs.serving_cert import ServingCert
from settings import Settings

CONTAINER = "webhook"
SERVICE = "webhook"
ADMISSION_PORT = 8443
HEALTH_PORT = 8080
USER = 65018
"""The image's user, and Pebble's (charmcraft.yaml). The layer names none: the image has no /etc/passwd, so Pebble could
not tell that it runs as this user already."""
CERTIFICATE_FILE = "/certificate/webhook.pem"
"""Holds certificate and key: of two files, the webhook might read one that is new and one that is old."""

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""The CAs that Pebble trusts when it sends the log to Loki. It reads them once, before its first connection."""
KILL_DELAY = "20s"
"""Longer than the webhook's drain: it answers for 10 s after SIGTERM, until API servers use other units."""

LIVE, READY = "live", "ready"


def layer(settings: Settings, log_targets: Mapping[str, pebble.LogTargetDict]) -> pebble.LayerDict:
    """Returns Pebble's layer: the service, its checks and its log targets."""
    return {
        "summary": "istio-aux",
        "services": {
            SERVICE: {
                "override": "replace",
                "summary": "the admission webhook",
                "command": command(settings),
                "startup": "enabled",
                "kill-delay": KILL_DELAY,
                "on-check-failure": {LIVE: "restart"},
            },
        },
        "checks": {
            LIVE: _check("alive", "/healthz", period="10s"),
            READY: _check("ready", "/readyz", period="3s"),
        },
        "log-targets": dict(log_targets),
    }


def command(settings: Settings) -> str:
    """Returns the webhook's command line. The webhook reloads the certificate's file by itself."""
    arguments = {
        "--tls-cert": CERTIFICATE_FILE,
        "--tls-key": CERTIFICATE_FILE,
        "--listen": f"0.0.0.0:{ADMISSION_PORT}",
        "--health-listen": f"0.0.0.0:{HEALTH_PORT}",
        "--native-sidecars": settings.native_sidecars,
        "--shim-image": settings.shim_image,
        "--delivery": settings.delivery,
        "--log-level": settings.log_level,
        "--log-format": "json",
    }
    words = (word for pair in arguments.items() for word in pair)
    return shlex.join(["/istio-aux-webhook", *words])


def _check(level: str, path: str, period: str) -> pebble.CheckDict:
    return {
        "override": "replace",
        "level": level,
        "period": period,
        "timeout": "2s",
        "threshold": 3,
        "http": {"url": f"http://127.0.0.1:{HEALTH_PORT}{path}"},
    }


class Webhook:
    """The webhook of one unit, in its container."""

    def __init__(self, container: ops.Container) -> None:
        self._container = container

    @property
    def is_up(self) -> bool:
        """Returns true if Pebble answers."""
        return self._container.can_connect()

    @property
    def served(self) -> str | None:
        """Reads the certificate and key that are served; None in a new container."""
        try:
            return self._container.pull(CERTIFICATE_FILE).read()
        except pebble.PathError:
            return None

    def serve(self, cert: ServingCert) -> None:
        """Serves this certificate. A running webhook reloads it within a second."""
        self._container.push(CERTIFICATE_FILE, cert.text, permissions=0o600, make_dirs=True)

    def trust(self, ca_bundle: str) -> bool:
        """Has Pebble trust these CAs, or the image's if there are none. Returns true if it trusts any."""
        if not ca_bundle:
            return self._container.exists(CA_BUNDLE)
        if not self._container.exists(CA_BUNDLE) or self._container.pull(CA_BUNDLE).read() != ca_bundle:
            self._container.push(CA_BUNDLE, ca_bundle, permissions=0o644, make_dirs=True)
        return True

    def would_restart(self, desired: pebble.LayerDict) -> bool:
        """Returns true if the webhook runs and this layer would restart it."""
        planned = self._container.get_plan().services.get(SERVICE)
        running = self._container.get_services(SERVICE).get(SERVICE)
        if not planned or not running or not running.is_running():
            return False
        return planned != pebble.Service(SERVICE, desired.get("services", {})[SERVICE])

    def run(self, desired: pebble.LayerDict) -> None:
        """Applies the layer, which restarts only changed services."""
        planned = self._container.get_plan().to_dict().get("log-targets", {})
        self._container.add_layer(CONTAINER, _with_stopped_targets(desired, planned), combine=True)
        self._container.replan()

    @property
    def failing_checks(self) -> list[str]:
        """Returns the names of the checks that are down."""
        checks = self._container.get_checks().values()
        return sorted(check.name for check in checks if check.status == pebble.CheckStatus.DOWN)


def is_ready() -> bool:
    """Returns true if this unit's webhook is ready. The containers of a pod share their network."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{HEALTH_PORT}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _with_stopped_targets(desired: pebble.LayerDict, planned: Mapping[str, pebble.LogTargetDict]) -> pebble.LayerDict:
    """Adds stopped log targets: Pebble keeps targets that a new layer leaves out."""
    targets = desired.get("log-targets", {})
    stopped = {name: _stopped(target) for name, target in planned.items() if name not in targets}
    return {**desired, "log-targets": {**stopped, **targets}}


def _stopped(target: pebble.LogTargetDict) -> pebble.LogTargetDict:
    return {**target, "override": "replace", "services": ["-all"]}

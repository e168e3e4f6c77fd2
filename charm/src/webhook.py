"""The webhook's container: what Pebble is to run in it is pure, `Webhook` puts it there."""

import shlex
from collections.abc import Mapping

import ops
from ops import pebble

from certificates import Pair
from settings import Settings

CONTAINER = "webhook"
SERVICE = "webhook"
ADMISSION_PORT = 8443
HEALTH_PORT = 8080
USER = 65018
"""The image's user, whose name no file in it tells."""
CERTIFICATE_FILE = "/certificate/webhook.pem"
"""Certificate and key in one file: two could be read while only one of them is new."""

LIVE, READY = "live", "ready"


def layer(settings: Settings, log_targets: Mapping[str, pebble.LogTargetDict]) -> pebble.LayerDict:
    """What Pebble is to run, watch and forward."""
    return {
        "summary": "istio-aux",
        "services": {
            SERVICE: {
                "override": "replace",
                "summary": "the admission webhook",
                "command": command(settings),
                "startup": "enabled",
                "user-id": USER,
                "group-id": USER,
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
    """The webhook's command line. It follows the certificate's file by itself."""
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
    return shlex.join(["/istio-aux", "serve", *words])


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
        """Whether Pebble answers."""
        return self._container.can_connect()

    @property
    def served(self) -> str | None:
        """The certificate and key that are served; None in a new container."""
        try:
            return self._container.pull(CERTIFICATE_FILE).read()
        except pebble.PathError:
            return None

    def serve(self, pair: Pair) -> None:
        """Have this served. A webhook that runs notices within a second."""
        self._container.push(
            CERTIFICATE_FILE, pair.text, permissions=0o600, user_id=USER, group_id=USER, make_dirs=True
        )

    def run(self, desired: pebble.LayerDict) -> None:
        """Run this, and start again only what it changes."""
        planned = self._container.get_plan().to_dict().get("log-targets", {})
        self._container.add_layer(CONTAINER, _with_stopped_targets(desired, planned), combine=True)
        self._container.replan()

    @property
    def failing_checks(self) -> list[str]:
        """Names of the checks that are down."""
        checks = self._container.get_checks().values()
        return sorted(check.name for check in checks if check.status == pebble.CheckStatus.DOWN)


def _with_stopped_targets(desired: pebble.LayerDict, planned: Mapping[str, pebble.LogTargetDict]) -> pebble.LayerDict:
    """Also stop forwarding where the plan still forwards: a target that a layer leaves out stays in the plan."""
    targets = desired.get("log-targets", {})
    stopped = {name: _stopped(target) for name, target in planned.items() if name not in targets}
    return {**desired, "log-targets": {**stopped, **targets}}


def _stopped(target: pebble.LogTargetDict) -> pebble.LogTargetDict:
    return {**target, "override": "replace", "services": ["-all"]}

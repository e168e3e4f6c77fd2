"""The fixtures of the tests on a cluster."""

from tests.cluster.conftest import admin, model, untrusted, webhook_is_ready

__all__ = ["admin", "model", "untrusted", "webhook_is_ready"]

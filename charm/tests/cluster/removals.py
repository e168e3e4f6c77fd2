"""The ways in which an application goes."""

from tests.cluster import juju_sweep
from tests.cluster.model import Model
from tests.unit.juju import App


def by_hooks(model: Model, app: App) -> None:
    """By its hooks, as `juju remove-application` has them run."""
    app.remove_all()
    model.until_nothing_is_left()


def by_force(model: Model, _: App) -> None:
    """Without its hooks: Juju sweeps what it knows."""
    juju_sweep.remove_application(model)


def with_its_model(model: Model, _: App) -> None:
    """With the model."""
    juju_sweep.destroy_model(model)

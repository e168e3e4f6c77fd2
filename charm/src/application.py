"""The Juju application, and the names and labels of its cluster objects. Values only."""

import dataclasses

import names


@dataclasses.dataclass(frozen=True)
class Application:
    """A Juju application in its model."""

    name: str
    model: str
    model_uuid: str

    @property
    def webhook(self) -> str:
        """Returns the name of the webhook's objects in the model's namespace; Juju's own have the application's."""
        return f"{self.name}-webhook"

    @property
    def tenancy(self) -> str:
        """Returns the name of the tenancy controller, and of its objects in the model's namespace."""
        return f"{self.webhook}-tenancy"

    @property
    def pod_names(self) -> tuple[str, ...]:
        """Returns the values of `app.kubernetes.io/name` of its pods: of the charm's units, and of both Deployments."""
        return (self.name, self.webhook, self.tenancy)

    @property
    def certificate_secret(self) -> str:
        """Returns the name of the Secret with the webhook's certificate."""
        return f"{self.webhook}-certificate"

    @property
    def pull_secret(self) -> str:
        """Returns the name of the Secret with which the webhook's image is pulled."""
        return f"{self.webhook}-image"

    @property
    def made_by_charm(self) -> dict[str, str]:
        """Returns the labels by which the charm finds its objects, also those for an earlier model of this name.

        Objects that Juju created have no `app.kubernetes.io/part-of`.
        """
        return {names.CREATED_BY: self.name, names.MODEL_NAME: self.model, names.PART_OF: "istio-aux"}

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels of its objects, in place of the chart's.

        From 3.6.11 on, Juju deletes a removed application's or model's objects by its own labels (`Delete` in
        internal/provider/kubernetes/application/application.go, and modelteardown.go beside it).
        `app.kubernetes.io/name` is not among them: by that label Juju finds an application's own Service
        and pods (juju#20774).
        """
        return {**self.made_by_charm, names.MODEL_UUID: self.model_uuid, names.MANAGED_BY: "juju"}

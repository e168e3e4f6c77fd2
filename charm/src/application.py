"""The Juju application, and the names and labels of its cluster objects. Values only."""

import dataclasses
from collections.abc import Mapping

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
    def certificate_secret(self) -> str:
        """Returns the name of the Secret with the webhook's certificate."""
        return f"{self.webhook}-certificate"

    @property
    def pull_secret(self) -> str:
        """Returns the name of the Secret with which the webhook's image is pulled."""
        return f"{self.webhook}-image"

    @property
    def dns_name(self) -> str:
        """Returns the DNS name of the webhook's Service, which the API server verifies."""
        return f"{self.webhook}.{self.model}.svc"

    @property
    def title(self) -> str:
        """Returns the application as the annotations on namespaces name it."""
        return f"{self.model}/{self.name}"

    @property
    def owned(self) -> dict[str, str]:
        """Returns the labels by which this charm and Juju find its objects.

        Juju 3.6.11 and later delete by them the objects of a removed application or model (`Delete` in
        internal/provider/kubernetes/application/application.go, and modelteardown.go beside it).
        """
        return {
            names.CREATED_BY: self.name,
            names.MODEL_NAME: self.model,
            names.MODEL_UUID: self.model_uuid,
        }

    @property
    def made_by_charm(self) -> dict[str, str]:
        """Returns the labels of objects that the charm created. Objects that Juju created may have `owned`, too."""
        return {**self.owned, names.PART_OF: "istio-aux"}

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels of its objects, in place of the chart's.

        `app.kubernetes.io/name` is not among them: by that label Juju finds an application's own Service
        and pods (juju#20774).
        """
        return {**self.made_by_charm, names.MANAGED_BY: "juju"}

    def is_owner(self, labels: Mapping[str, str]) -> bool:
        """Returns true if an object with these labels is this application's, also of an earlier model of this name."""
        return (labels.get(names.CREATED_BY), labels.get(names.MODEL_NAME)) == (self.name, self.model)

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
    def cluster_name(self) -> str:
        """Returns the name of the cluster-scoped objects.

        The API server calls webhook configurations in the order of their names, and this one has to come
        before Istio's `istio-revision-tag-…` and `istio-sidecar-injector`.
        """
        return f"istio-aux-{self.model}"

    @property
    def shim_cluster_name(self) -> str:
        """Returns the name of the webhook configuration that has to come after those of all injectors."""
        return f"zz-{self.cluster_name}"

    @property
    def service(self) -> str:
        """Returns the name of the Service that the API server calls; Juju's own have the application's name."""
        return f"{self.name}-admission"

    @property
    def tenancy(self) -> str:
        """Returns the name of the tenancy controller, and of all of its objects in the model's namespace."""
        return f"{self.name}-tenancy"

    @property
    def tenancy_cluster_name(self) -> str:
        """Returns the name of the controller's cluster-scoped objects.

        Not `cluster_name`: Juju calls an application's own ClusterRole MODEL-APPLICATION (`qualifiedClusterName` in
        application.go), which is the same for the application istio-aux of a model istio-aux.
        """
        return f"{self.cluster_name}-tenancy"

    @property
    def cluster_names(self) -> tuple[str, ...]:
        """Returns all names of cluster-scoped objects."""
        return (self.cluster_name, self.shim_cluster_name, self.tenancy_cluster_name)

    @property
    def dns_names(self) -> tuple[str, ...]:
        """Returns the DNS names of the Service; the API server verifies the first."""
        name = f"{self.service}.{self.model}"
        return (f"{name}.svc", f"{name}.svc.cluster.local", name)

    @property
    def title(self) -> str:
        """Returns the application as the annotations on objects of other owners name it."""
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
        """Returns the labels of its objects.

        `app.kubernetes.io/name` is not among them: by that label Juju finds an application's own Service
        and pods (juju#20774), and this Service is not one of those.
        """
        return {
            **self.made_by_charm,
            names.MANAGED_BY: "juju",
            "app.kubernetes.io/component": "admission",
        }

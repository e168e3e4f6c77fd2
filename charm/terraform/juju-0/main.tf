# The same module for version 0 of the Juju provider, which charmed-kubeflow-solutions pins: it takes a model's name.
resource "juju_application" "istio_aux" {
  name  = var.app_name
  model = var.model_name

  charm {
    name     = "istio-aux"
    channel  = var.channel
    revision = var.revision
    base     = var.base
  }

  config      = var.config
  constraints = var.constraints
  resources   = var.resources
  units       = var.units

  # It writes webhook configurations and labels namespaces, which belong to the cluster.
  trust = true
}

# Plans with a provider that Terraform imitates: no controller is needed. `terraform init && terraform test`, Terraform 1.7.
mock_provider "juju" {}

variables {
  model_name = "kubeflow"
}

run "defaults_deploy_two_trusted_units" {
  command = plan

  assert {
    condition     = juju_application.istio_aux.model == var.model_name
    error_message = "The application is in the model that was named."
  }

  assert {
    condition     = juju_application.istio_aux.name == "istio-aux"
    error_message = "The application has the charm's name."
  }

  assert {
    condition     = juju_application.istio_aux.trust && juju_application.istio_aux.units == 2
    error_message = "It is trusted, and another unit is there when a node is drained."
  }

  assert {
    condition     = juju_application.istio_aux.charm[0].name == "istio-aux"
    error_message = "The charm is istio-aux."
  }

  assert {
    condition     = juju_application.istio_aux.charm[0].channel == "latest/stable"
    error_message = "The channel is the stable one."
  }
}

run "every_input_is_handed_on" {
  command = plan

  variables {
    app_name    = "aux"
    base        = "ubuntu@24.04"
    channel     = "latest/edge"
    config      = { namespaces = "team-a,team-b" }
    constraints = "arch=arm64"
    resources   = { webhook-image = "registry.example/webhook:1" }
    revision    = 7
    units       = 3
  }

  assert {
    condition     = juju_application.istio_aux.name == "aux" && output.app_name == "aux"
    error_message = "The application, and the output, have the name that was given."
  }

  assert {
    condition     = juju_application.istio_aux.charm[0].base == "ubuntu@24.04"
    error_message = "The base is the one that was given."
  }

  assert {
    condition     = juju_application.istio_aux.charm[0].channel == "latest/edge"
    error_message = "The channel is the one that was given."
  }

  assert {
    condition     = juju_application.istio_aux.charm[0].revision == 7
    error_message = "The revision is the one that was given."
  }

  assert {
    condition     = juju_application.istio_aux.config["namespaces"] == "team-a,team-b"
    error_message = "Options are handed on."
  }

  assert {
    condition     = juju_application.istio_aux.constraints == "arch=arm64"
    error_message = "Constraints are handed on."
  }

  assert {
    condition     = juju_application.istio_aux.resources["webhook-image"] == "registry.example/webhook:1"
    error_message = "Resources are handed on."
  }

  assert {
    condition     = juju_application.istio_aux.units == 3
    error_message = "The number of units is the one that was given."
  }
}

run "outputs_name_the_endpoints" {
  command = plan

  assert {
    condition     = sort(values(output.provides)) == tolist(["grafana-dashboard", "metrics-endpoint", "service-mesh"])
    error_message = "Each endpoint that the charm provides is an output."
  }

  assert {
    condition     = sort(values(output.requires)) == tolist(["certificates", "charm-tracing", "receive-ca-cert"])
    error_message = "Each endpoint that the charm requires is an output."
  }
}

run "half_a_unit_is_rejected" {
  command = plan

  variables {
    units = 1.5
  }

  expect_failures = [var.units]
}

run "fewer_than_no_units_are_rejected" {
  command = plan

  variables {
    units = -1
  }

  expect_failures = [var.units]
}

output "app_name" {
  description = "Name of the application"
  value       = juju_application.istio_aux.name
}

output "provides" {
  description = "Endpoints that the application provides"
  value = {
    grafana_dashboard = "grafana-dashboard"
    metrics_endpoint  = "metrics-endpoint"
    service_mesh      = "service-mesh"
  }
}

output "requires" {
  description = "Endpoints that the application requires"
  value = {
    certificates    = "certificates"
    charm_tracing   = "charm-tracing"
    receive_ca_cert = "receive-ca-cert"
  }
}

# shellcheck shell=bash
# What runs in the cluster: Istio, and the kinds of the Gateway API.

install_gateway_api() {
  if kubectl get customresourcedefinition gateways.gateway.networking.k8s.io >/dev/null 2>&1; then return; fi
  # What the scenarios use: Kubernetes 1.29 does not take the others.
  local crd kinds=()
  for crd in gatewayclasses gateways httproutes; do
    kinds+=(-f "$(part_directory gateway-api)/source/config/crd/standard/gateway.networking.k8s.io_$crd.yaml")
  done
  logged "install the Gateway API" "$LOGS/gateway-api.log" kubectl apply --server-side "${kinds[@]}"
}

install_istio() {
  local charts=$ISTIO/source/manifests/charts
  if kubectl -n istio-system get deployment istiod >/dev/null 2>&1; then return; fi
  logged "install Istio" "$LOGS/istio.log" helm_istio "$charts"
}

# helm_istio CHARTS [OPTIONS FOR ISTIOD]
helm_istio() {
  local charts=$1 dual_stack=()
  shift
  if [ "$IP_FAMILY" = dual ]; then
    dual_stack=(--set-string pilot.env.ISTIO_DUAL_STACK=true --set-string meshConfig.defaultConfig.proxyMetadata.ISTIO_DUAL_STACK=true)
  fi
  helm upgrade --install istio-base "$charts/base" -n istio-system --create-namespace &&
    helm upgrade --install istiod "$charts/istio-control/istio-discovery" -n istio-system \
      -f "$CLUSTER_DIR/manifests/istio-values.yaml" "${dual_stack[@]}" "$@"
}

wait_for_istio() {
  logged "istiod ready" "$LOGS/istiod-rollout.log" kubectl -n istio-system rollout status deployment/istiod --timeout=180s
}

helm() { "$TOOLS_BIN/helm" --kubeconfig "$KUBECONFIG_ADMIN" "$@"; }

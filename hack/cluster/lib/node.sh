# shellcheck shell=bash
# The node: its bridge, containerd, the kubelet, kube-proxy, and DNS for the pods.

make_bridge() {
  local family options=()
  sysctl -qw net.ipv4.ip_forward=1
  [ "$IP_FAMILY" = ipv4 ] || sysctl -qw net.ipv6.conf.all.forwarding=1
  # Without this an answer between two pods by way of a Service keeps the wrong source address. Most kernels have it as a module.
  modprobe br_netfilter 2>/dev/null || :
  [ ! -d /proc/sys/net/bridge ] || sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1
  accept_forwarding
  if ip link show "$BRIDGE" >/dev/null 2>&1; then return; fi
  # Without an address of its own a bridge takes one of its ports', which come and go, and neighbours keep the old one.
  ip link add "$BRIDGE" address 02:00:0a:f4:00:01 type bridge
  for family in "${FAMILIES[@]}"; do
    # Without a port, the bridge would never find out that an address of IPv6 is not taken.
    if [ "$family" = ipv6 ]; then options=(nodad); fi
    ip addr add "${NODE_IPS[$family]}/${NODE_PREFIXES[$family]}" dev "$BRIDGE" "${options[@]}"
  done
  ip link set "$BRIDGE" up
}

# Docker, beside others, sets the policy of FORWARD to DROP. Before kube-proxy starts, so that its chains come first.
accept_forwarding() {
  local command family
  for family in "${FAMILIES[@]}"; do
    command=iptables
    if [ "$family" = ipv6 ]; then command=ip6tables; fi
    if "$command" -w -C FORWARD -j "$FORWARD_CHAIN" 2>/dev/null; then continue; fi
    "$command-restore" -w --noflush <<RULES
*filter
:$FORWARD_CHAIN - [0:0]
-A $FORWARD_CHAIN -i $BRIDGE -j ACCEPT
-A $FORWARD_CHAIN -o $BRIDGE -j ACCEPT
-I FORWARD -j $FORWARD_CHAIN
COMMIT
RULES
  done
}

# The plugin that runs pods: since containerd 2, whose configuration has version 3, another one than that of their images.
cri_plugin() {
  case $(containerd --version) in
    *" 1."* | *" v1."*) echo io.containerd.grpc.v1.cri ;;
    *) echo io.containerd.cri.v1.runtime ;;
  esac
}

start_containerd() {
  local cri version=3 pause bin_dir="bin_dirs = [\"$CNI_BIN\"]"
  cri=$(cri_plugin) pause="[plugins.\"io.containerd.cri.v1.images\".pinned_images]
  sandbox = \"$(image_name pause)\"
[plugins.\"$cri\"]"
  if [ "$cri" = io.containerd.grpc.v1.cri ]; then
    version=2 bin_dir="bin_dir = \"$CNI_BIN\"" pause="[plugins.\"$cri\"]
  sandbox_image = \"$(image_name pause)\""
  fi
  mkdir -p "$STATE/containerd" "$CNI_BIN"
  ln -sf /usr/lib/cni/* "$CNI_BIN/"
  configure_cni
  cat >"$STATE/containerd/config.toml" <<TOML
version = $version
root = "$STATE/containerd/root"
state = "$RUN/containerd"
[grpc]
  address = "$CONTAINERD_SOCKET"
$pause
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."$cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    $OPTIONS_OF_RUNC
$(runtime_of_node_proxy)
  [plugins."$cri".cni]
    $bin_dir
    conf_dir = "$STATE/cni"
TOML
  start_daemon containerd containerd -c "$STATE/containerd/config.toml"
  wait_for_daemon containerd 30 ctr -a "$CONTAINERD_SOCKET" version
}

# The pods' network, with the plugin of istio-cni where that was added.
configure_cni() {
  local chained=
  mkdir -p "$STATE/cni"
  if [ -e "$CNI_BIN/istio-cni" ]; then
    chained=", {\"type\": \"istio-cni\", \"cni_agent_run_dir\": \"$ISTIO_CNI_RUN\", \"exclude_namespaces\": [\"istio-system\", \"kube-system\"]}"
  fi
  cat >"$STATE/cni/10-istio-aux.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "istio-aux", "plugins": [{
  "type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$STATE/cni/addresses", "ranges": [$(each '[{"subnet": "%s"}]' POD_CIDRS)], "routes": [$(each '{"dst": "%s/0"}' ANY_ADDRESSES)]}
}$chained]}
JSON
}

start_node() {
  mkdir -p "$STATE/kubelet" "$STATE/kube-proxy"
  kubeconfig "$NODE" "$STATE/kubelet/kubeconfig"
  kubeconfig kube-proxy "$STATE/kube-proxy/kubeconfig"
  cat >"$STATE/kubelet/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
cgroupDriver: $CGROUP_DRIVER
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDNS: ["$NODE_IP"]
clusterDomain: cluster.local
$CONFIGURATION_OF_KUBELET
resolvConf: ""
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
$VERIFICATION_OF_IMAGES
maxPods: 240
tlsCertFile: $PKI/$NODE.crt
tlsPrivateKeyFile: $PKI/$NODE.key
YAML
  start_daemon kubelet "$K8S_BIN/kubelet" --config="$STATE/kubelet/config.yaml" --kubeconfig="$STATE/kubelet/kubeconfig" \
    --hostname-override="$NODE" --node-ip="$(each %s NODE_IPS)" --root-dir="$STATE/kubelet/root" --cert-dir="$STATE/kubelet/pki" -v=2 \
    --feature-gates="$FEATURE_GATES"
  # kube-proxy ends itself when its configuration is written again.
  [ -f "$STATE/kube-proxy/config.yaml" ] || cat >"$STATE/kube-proxy/config.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: "$(each %s POD_CIDRS)"
hostnameOverride: $NODE
clientConnection: {kubeconfig: $STATE/kube-proxy/kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
  start_daemon kube-proxy "$K8S_BIN/kube-proxy" --config="$STATE/kube-proxy/config.yaml"
}

wait_for_node() {
  wait_for_daemon kubelet 90 kubectl wait --for=condition=Ready "node/$NODE" --timeout=2s
  require_alive etcd kube-apiserver kube-controller-manager kube-scheduler containerd kubelet kube-proxy coredns
}

# CoreDNS runs beside the kubelet, on the bridge's address, as an account that may only read what DNS needs.
start_dns() {
  mkdir -p "$STATE/coredns"
  cat >"$STATE/coredns/Corefile" <<COREFILE
.:53 {
  bind $NODE_IP
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $PKI/coredns.kubeconfig
    pods insecure
  }
}
COREFILE
  kubectl apply --server-side -f "$CLUSTER_DIR/manifests/coredns-rbac.yaml" >/dev/null
  start_daemon coredns "$TOOLS_BIN/coredns" -conf "$STATE/coredns/Corefile"
}

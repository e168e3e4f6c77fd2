# shellcheck shell=bash
# A second node: network and mount namespaces on this machine, in which containerd, the kubelet and kube-proxy run with the same paths as on
# the first. Control plane and DNS are the first node's. Pods run there only if they tolerate its taint.

# What the second node has of its own at the same paths.
OF_EACH_NODE=(containerd kubelet kube-proxy cni cni-bin cni-node-proxy pid log loaded)
OF_EACH_MACHINE=(/run/containerd /run/istio-aux /var/lib/istio-aux /var/log/istio-aux /var/log/pods /var/log/containers)

# on_second_node COMMAND…
on_second_node() {
  local pid
  read -r pid _ <"${PIDS:?}/$SECOND_NODE"
  nsenter --target "$pid" --net --mount --wd="$PWD" -- env ON_SECOND_NODE=yes "$@"
}

has_second_node() { [ -z "${ON_SECOND_NODE:-}" ] && daemon_is_alive "$SECOND_NODE"; }

add_second_node() {
  local pid
  if has_second_node; then return; fi
  [ "$IP_FAMILY $CGROUP_DRIVER" = "ipv4 cgroupfs" ] ||
    fail "a second node takes IPv4 and the cgroup driver cgroupfs, and the cluster has $IP_FAMILY and $CGROUP_DRIVER" "make cluster-down, then make cluster-up"
  # shellcheck disable=SC2016
  start_daemon "$SECOND_NODE" unshare --net --mount bash -c 'mount --make-rshared / && touch "$0" && exec sleep infinity' "$RUN/$SECOND_NODE"
  wait_for_daemon "$SECOND_NODE" 10 test -e "$RUN/$SECOND_NODE"
  read -r pid _ <"${PIDS:?}/$SECOND_NODE"
  ip link add "$LINK" type veth peer name uplink netns "$pid"
  ip addr add "${LINK_IPS[0]}/30" dev "$LINK"
  ip link set "$LINK" up
  ip route add "$SECOND_POD_CIDR" via "${LINK_IPS[1]}"
  logged "$SECOND_NODE" "$LOGS/$SECOND_NODE-start.log" on_second_node "$CLUSTER_DIR/cluster" start-node
  wait_for_daemon "$SECOND_NODE" 90 kubectl wait --for=condition=Ready "node/$SECOND_NODE" --timeout=2s
}

# Runs on the second node.
start_second_node() {
  local path hierarchy
  for path in "$RUN" "${OF_EACH_NODE[@]/#/$STATE/}" "${OF_EACH_MACHINE[@]}"; do
    mkdir -p "$path" "$SECOND_STATE$path"
    mount --bind "$SECOND_STATE$path" "$path"
  done
  # The kubelet takes a group of this name in each hierarchy.
  while read -r hierarchy; do mkdir -p "$hierarchy/kubepods-$NODE"; done < <(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts)
  ip link set lo up
  ip addr add "${LINK_IPS[1]}/30" dev uplink
  ip link set uplink up
  ip route add default via "${LINK_IPS[0]}"
  make_bridge
  start_containerd
  load_images
  make_pki_of_node
  start_node
}

end_second_node() {
  local pids=$SECOND_STATE$PIDS
  if [ ! -d "$pids" ]; then return; fi
  PIDS=$pids stop_daemons kubelet kube-proxy
  if has_second_node; then on_second_node "$CLUSTER_DIR/cluster" end-pods; fi
  PIDS=$pids stop_daemons containerd
  stop_daemons "$SECOND_NODE"
}

# Ends the second node as a loss of power does, and starts it again: what was in memory is gone, its disk stays.
reboot_second_node() {
  local pid mounts until=$((SECONDS + 30))
  has_second_node || fail "there is no second node" "hack/cluster/cluster add node second-node"
  read -r pid _ <"${PIDS:?}/$SECOND_NODE"
  mounts=$(readlink "/proc/$pid/ns/mnt")
  while [ -n "$(processes_of_second_node "$mounts")" ]; do
    [ "$SECONDS" -lt "$until" ] || fail "processes of $SECOND_NODE do not end" "make cluster-down"
    processes_of_second_node "$mounts" | xargs kill -KILL 2>/dev/null || :
    sleep 0.1
  done
  find /sys/fs/cgroup -depth -type d -path "*/kubepods-$SECOND_NODE/*" -exec rmdir {} \;
  # It may have gone with the namespace of its other end.
  ip link del "$LINK" 2>/dev/null || :
  rm -rf "${SECOND_STATE:?}/run"
  rm -f "$RUN/$SECOND_NODE"
  add_second_node
}

# processes_of_second_node MOUNTS: those in its mount namespace, and those of its pods, which have others.
processes_of_second_node() {
  # In a pattern, the brackets of `mnt:[4026532281]` would be a set of characters.
  find /proc -mindepth 3 -maxdepth 3 -path '/proc/[0-9]*/ns/mnt' -lname "${1//[\[\]]/?}" 2>/dev/null | cut -d / -f 3 || :
  find /sys/fs/cgroup -path "*/kubepods-$SECOND_NODE/*" -name cgroup.procs -exec cat {} + 2>/dev/null || :
}

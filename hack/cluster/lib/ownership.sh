# shellcheck shell=bash
# One machine has one such cluster. Records its checkout, and what was on the machine before it, so that only our own is removed.

# claim: makes the cluster this checkout's, unless another's is running. Removes what is left of one that was not ended.
claim() {
  local other
  if [ -f "$OWNER" ] && other=$(cat "$OWNER") && [ "$other" != "$STATE" ]; then
    if any_daemon_alive "$other/pid"; then
      fail "another checkout's cluster is running (state in $other)" "end it with: make cluster-down in $(dirname "$other")"
    fi
    say "removing what is left of a cluster that was not ended (state in $other)"
    ISTIO_AUX_CLUSTER_STATE=$other "$CLUSTER_DIR/cluster" down
  fi
  if [ -f "$OWNER" ]; then return; fi
  if port_taken 6443 || port_taken 10250; then
    fail "ports 6443 or 10250 are in use: another Kubernetes seems to run on this machine" "end it, or use it: make demo CLUSTER=current, see CONTRIBUTING.md"
  fi
  mkdir -p "$RUN" "$STATE"
  our_kind_of_chains >"$RUN/chains-before"
  our_kind_of_ip_sets >"$RUN/ip-sets-before"
  our_kind_of_cgroups >"$RUN/cgroups-before"
  echo "$STATE" >"$OWNER"
}

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

any_daemon_alive() {
  local file PIDS=$1
  for file in "$1"/*; do
    if daemon_is_alive "$(basename "$file")"; then return 0; fi
  done
  return 1
}

# The chains that kube-proxy, the kubelet, kube-router and node.sh make: COMMAND TABLE CHAIN.
our_kind_of_chains() {
  local command table
  for command in iptables ip6tables; do
    for table in nat filter mangle; do
      "$command-save" -t "$table" 2>/dev/null | sed -n "s/^:\(KUBE-[^ ]*\|$FORWARD_CHAIN\|ISTIO-AUX-SILENT\) .*/$command $table \1/p"
    done
  done
}

# Those of kube-router.
our_kind_of_ip_sets() {
  { ipset list -name 2>/dev/null || :; } | sed -n '/^KUBE-\|^kube-router-/p'
}

our_kind_of_cgroups() { find /sys/fs/cgroup -maxdepth 2 -type d -name 'kubepods*' 2>/dev/null || :; }

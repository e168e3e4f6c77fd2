# shellcheck shell=bash
# Ends the cluster: its processes, pods, mounts, bridge, iptables chains and ip sets. Keeps what was built, and the logs.

end_cluster() {
  if [ ! -f "$OWNER" ]; then
    # Nothing but files outlives a restart of the machine.
    remove_state
    say "no cluster is up"
    return
  fi
  [ "$(cat "$OWNER")" = "$STATE" ] || fail "the cluster that is up belongs to $(cat "$OWNER")" "end it with: make cluster-down in $(dirname "$(cat "$OWNER")")"
  say "ending the cluster"
  end_second_node
  stop_daemons kube-router kubelet kube-controller-manager kube-scheduler kube-proxy coredns registry
  end_pods
  stop_daemons containerd kube-apiserver etcd
  end_shims
  remove_bridge
  remove_chains
  remove_ip_sets
  remove_cgroups
  remove_state
  rm -rf "$RUN"
}

remove_state() {
  unmount_ours
  if has_node_proxy; then rm -rf /run/istio-aux /var/lib/istio-aux /var/log/istio-aux; fi
  [ ! -d "$STATE" ] || find "$STATE" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +
}

# Containers outlive containerd: where it was killed, it is started once more to end them.
end_pods() {
  local namespace task
  if [ ! -d "$RUN/containerd" ]; then return; fi
  start_containerd
  # The second has the proxies beside pods.
  for namespace in k8s.io istio-aux; do
    for task in $(containers "$namespace" tasks ls -q); do
      containers "$namespace" tasks kill -s KILL "$task" >/dev/null 2>&1 || :
      containers "$namespace" tasks rm -f "$task" >/dev/null 2>&1 || :
    done
    for task in $(containers "$namespace" containers ls -q); do
      containers "$namespace" containers rm "$task" >/dev/null 2>&1 || :
    done
  done
}

# A containerd that is restarted while it creates a task may forget its shim. Ours are recognised by the socket in their arguments.
end_shims() {
  local process
  for process in /proc/[0-9]*; do
    if tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -qF -- "containerd-shim-runc-v2 -namespace" &&
      tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -qF -- " -address $CONTAINERD_SOCKET "; then
      kill -KILL "${process##*/}" 2>/dev/null || :
    fi
  done 2>/dev/null
}

containers() {
  local namespace=$1
  shift
  ctr -a "$CONTAINERD_SOCKET" -n "$namespace" "$@"
}

unmount_ours() {
  local where
  awk -v state="$STATE/" -v run="$RUN/" 'index($2, state) == 1 || index($2, run) == 1 || $1 == "istio-aux-test" { print $2 }' /proc/mounts | sort -r | while read -r where; do umount -l "$where"; done
}

remove_bridge() {
  if ip link show "$BRIDGE" >/dev/null 2>&1; then ip link del "$BRIDGE"; fi
}

remove_chains() {
  local command table
  our_kind_of_chains | except "$RUN/chains-before" >"$RUN/chains-ours"
  cut -d ' ' -f 1,2 "$RUN/chains-ours" | sort -u | while read -r command table; do
    {
      echo "*$table"
      # First the rules that jump to our chains, then the chains.
      "$command-save" -t "$table" | jumps_to_ours "$command $table" | sed 's/^-A/-D/'
      sed -n "s/^$command $table /-F /p" "$RUN/chains-ours"
      sed -n "s/^$command $table /-X /p" "$RUN/chains-ours"
      echo COMMIT
    } | "$command-restore" --noflush
  done
}

# Of the saved rules on standard input, those in chains that stay and that jump to one of ours.
jumps_to_ours() {
  awk -v which="$1" -v file="$RUN/chains-ours" '
    BEGIN { while ((getline line < file) > 0) { split(line, f, " "); if (f[1] " " f[2] == which) ours[f[3]] = 1 } }
    $1 == "-A" && !($2 in ours) { for (i = 3; i < NF; i++) if ($i == "-j" && ($(i + 1) in ours)) { print; break } }'
}

# The lines of standard input that are not in FILE.
except() { awk -v file="$1" 'BEGIN { while ((getline line < file) > 0) known[line] = 1 } !($0 in known)'; }

# Only once no rule matches by them, which takes the kernel a moment.
remove_ip_sets() {
  local name tries=50
  our_kind_of_ip_sets | except "$RUN/ip-sets-before" | while read -r name; do
    until ipset destroy "$name" 2>/dev/null || [ "$tries" = 0 ]; do
      tries=$((tries - 1))
      sleep 0.1
    done
  done
  our_kind_of_ip_sets | except "$RUN/ip-sets-before" | sed 's/^/an ip set is left: /'
}

remove_cgroups() {
  local group
  our_kind_of_cgroups | except "$RUN/cgroups-before" | while read -r group; do
    find "$group" -depth -type d -exec rmdir {} \;
  done
}

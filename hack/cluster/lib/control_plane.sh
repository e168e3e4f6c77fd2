# shellcheck shell=bash
# etcd, the API server, the controller manager and the scheduler.

start_control_plane() {
  # Not the usual ports: where Debian starts services as it installs them, an etcd has those.
  local etcd=127.0.0.1:23790 etcd_peer=127.0.0.1:23800
  start_daemon etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --listen-client-urls "http://$etcd" \
    --advertise-client-urls "http://$etcd" --listen-peer-urls "http://$etcd_peer"
  # Streaming lists (KEP-3157) need an etcd that reports progress, which Debian's does not: the API server then ends each such watch
  # with an error (kubernetes/kubernetes#125667), and a controller built with client-go 0.35 sees changes up to half a minute late.
  local gates=WatchList=false,$FEATURE_GATES policies=()
  # Beta in 1.34, where it takes a flag; on by default in 1.36.
  if [ "$KUBERNETES" = 1.34 ]; then
    gates+=,MutatingAdmissionPolicy=true
    policies=(--runtime-config=admissionregistration.k8s.io/v1beta1=true)
  fi
  audit_policy >"$STATE/audit.yaml"
  # Without its grace period, a restarted API server waits for its watches until it is killed.
  # The reconciler of endpoints refuses addresses it takes for loopback; kubernetes_endpoints() does its work.
  start_daemon kube-apiserver "$K8S_BIN/kube-apiserver" --etcd-servers="http://$etcd" --secure-port=6443 \
    --service-cluster-ip-range="$(each %s SERVICE_CIDRS)" --advertise-address="$NODE_IP" --bind-address="$ANY_ADDRESS" --endpoint-reconciler-type=none \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$PKI/service-accounts.pub" \
    --service-account-signing-key-file="$PKI/service-accounts.key" --feature-gates="$gates" "${policies[@]}" \
    --shutdown-watch-termination-grace-period=1s --audit-policy-file="$STATE/audit.yaml" --audit-log-path="$LOGS/audit.log" --audit-log-maxsize=1000 --audit-log-maxbackup=1
  wait_for_daemon kube-apiserver 90 kubectl get --raw /readyz
  start_daemon kube-controller-manager "$K8S_BIN/kube-controller-manager" --bind-address=127.0.0.1 --leader-elect=false \
    --kubeconfig="$PKI/controller-manager.kubeconfig" --authentication-kubeconfig="$PKI/controller-manager.kubeconfig" \
    --authorization-kubeconfig="$PKI/controller-manager.kubeconfig" --use-service-account-credentials \
    --service-account-private-key-file="$PKI/service-accounts.key" --root-ca-file="$PKI/ca.crt" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key"
  start_daemon kube-scheduler "$K8S_BIN/kube-scheduler" --kubeconfig="$PKI/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
    --feature-gates="$FEATURE_GATES"
}

# Logs the requests to the API server but those of the tests themselves. bench and soak count them.
audit_policy() {
  cat <<YAML
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: [admin]}
- {level: None, resources: [{group: coordination.k8s.io}]}
- {level: Metadata}
YAML
}

# The Service `kubernetes`, by which pods reach the API server.
kubernetes_endpoints() {
  kubectl apply --server-side -f - >/dev/null <<YAML
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IP${FAMILIES[0]#ip}
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: ["$NODE_IP"], conditions: {ready: true}}]
YAML
}

kubectl() { "$K8S_BIN/kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"; }

# shellcheck shell=bash
# The cluster's certificates and kubeconfigs, made once for each life of the cluster.

make_pki() {
  [ ! -f "$PKI/complete" ] || return 0
  rm -rf "$PKI"
  mkdir -p "$PKI"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=istio-aux-cluster \
    -keyout "$PKI/ca.key" -out "$PKI/ca.crt" 2>/dev/null
  certificate apiserver /CN=kube-apiserver \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$KUBERNETES_IP,$(each IP:%s NODE_IPS)"
  make_pki_of_node
  certificate admin /O=system:masters/CN=admin DNS:admin
  certificate controller-manager /CN=system:kube-controller-manager DNS:controller-manager
  certificate scheduler /CN=system:kube-scheduler DNS:scheduler
  certificate kube-proxy /CN=system:kube-proxy DNS:kube-proxy
  certificate coredns /CN=system:coredns DNS:coredns
  openssl genrsa -out "$PKI/service-accounts.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/service-accounts.key" -pubout -out "$PKI/service-accounts.pub" 2>/dev/null
  local client
  for client in admin controller-manager scheduler coredns; do kubeconfig "$client" "$PKI/$client.kubeconfig"; done
  cp "$PKI/admin.kubeconfig" "$KUBECONFIG_ADMIN"
  touch "$PKI/complete"
}

make_pki_of_node() { certificate "$NODE" "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE,$(each IP:%s NODE_IPS)"; }

# certificate NAME SUBJECT NAMES
certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$PKI/$1.key" -out "$PKI/$1.csr" 2>/dev/null
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 -out "$PKI/$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3") 2>/dev/null
}

# kubeconfig NAME FILE: with the certificates inside, so that the file can be carried about.
kubeconfig() {
  cat >"$2" <<YAML
apiVersion: v1
kind: Config
current-context: istio-aux
contexts: [{name: istio-aux, context: {cluster: istio-aux, user: $1}}]
clusters:
- name: istio-aux
  cluster: {server: "$API", certificate-authority-data: $(base64 -w 0 "$PKI/ca.crt")}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w 0 "$PKI/$1.crt"), client-key-data: $(base64 -w 0 "$PKI/$1.key")}
YAML
  chmod 600 "$2"
}

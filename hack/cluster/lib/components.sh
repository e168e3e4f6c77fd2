# shellcheck shell=bash
# The components that are added to a running cluster on request: the training operator and what scenarios need.
# Each is a part (parts.sh) with a file `images` (lines of IMAGE PROGRAM PATH-IN-THE-IMAGE), and, where it is installed
# into the cluster, a kustomization over its manifests and an object `probe.yaml` that its webhooks must admit.

COMPONENTS=(training-operator python clients spark cert-manager istio-cni kube-router node earlier-proxy second-node pages kubernetes-e2e istio-suites)

require_components() {
  local component
  [ $# -gt 0 ] || fail "no component is named" "there are: ${COMPONENTS[*]}"
  for component in "$@"; do
    contains "$component" "${COMPONENTS[@]}" || fail "there is no component '$component'" "there are: ${COMPONENTS[*]}"
  done
}

# build_components NAME…: builds their programs only.
build_components() {
  local component parts=()
  for component in "$@"; do
    if [ -d "$CLUSTER_DIR/parts/$component" ]; then parts+=("$component"); fi
  done
  if [ ${#parts[@]} -gt 0 ]; then build_each_part "${parts[@]}"; fi
}

# add_components NAME…: builds, loads and installs them, and waits until they are ready. Does nothing for those that are installed.
add_components() {
  local component
  build_components "$@"
  find_parts
  for component in "$@"; do add_component "$component"; done
}

contains() {
  local wanted=$1 one
  shift
  for one in "$@"; do if [ "$one" = "$wanted" ]; then return 0; fi; done
  return 1
}

add_component() {
  local name=$1 began=$SECONDS
  case $name in
    python) ensure_uv; add_image python "$(image_archive python)" rootfs_python; return ;;
    clients) ensure_uv; add_image clients "$(image_archive clients)" rootfs_clients; return ;;
    spark) ensure_pyspark; add_image spark "$(image_archive spark)" rootfs_spark; return ;;
    cert-manager) add_cert_manager; return ;;
    istio-cni) add_istio_cni; return ;;
    kube-router) add_kube_router; return ;;
    node) add_node_proxy; return ;;
    earlier-proxy) add_earlier_proxy; return ;;
    second-node) add_second_node; return ;;
    pages) add_pages; return ;;
    kubernetes-e2e) add_kubernetes_e2e; return ;;
    istio-suites) add_istio_suites; return ;;
  esac
  add_images_of "$name"
  if [ ! -f "$CLUSTER_DIR/parts/$name/kustomization.yaml" ]; then return; fi
  render_component "$name" >"$LOGS/$name.yaml"
  if [ -f "$STATE/components/$name.yaml" ] && cmp -s "$LOGS/$name.yaml" "$STATE/components/$name.yaml"; then return; fi
  # A field manager of its own: a namespace that two components apply keeps the labels of both.
  logged "install $name" "$LOGS/$name.log" kubectl apply --server-side --force-conflicts --field-manager="add-$name" -f "$LOGS/$name.yaml"
  wait_for_component "$name"
  mkdir -p "$STATE/components"
  cp "$LOGS/$name.yaml" "$STATE/components/"
  say "  $name is ready $((SECONDS - began)) s after it was built"
}

# Installs cert-manager from its chart. Its release tool makes that of a template without a version, and of the CRDs beside it.
add_cert_manager() {
  local chart=$STATE/cert-manager source
  add_images_of cert-manager
  source=$(part_directory cert-manager)/source/deploy
  rm -rf "$chart"
  cp -r "$source/charts/cert-manager" "$chart"
  sed '/^annotations:/,$d' "$chart/Chart.template.yaml" >"$chart/Chart.yaml"
  cp "$source"/crds/*.yaml "$chart/templates/"
  logged "install cert-manager" "$LOGS/cert-manager.log" helm upgrade --install cert-manager "$chart" -n cert-manager --create-namespace \
    -f "$CLUSTER_DIR/manifests/cert-manager-values.yaml"
  logged "cert-manager ready" "$LOGS/cert-manager-rollout.log" kubectl -n cert-manager wait --for=condition=Available deployment --all --timeout=180s
  wait_for_probe cert-manager
}

# Installs Istio's CNI plugin, which redirects the pods' traffic in place of an init container. Its node agent is left out: without
# ambient pods it only installs the plugin.
add_istio_cni() {
  mkdir -p "$ISTIO_CNI_RUN"
  cp "$KUBECONFIG_ADMIN" "$ISTIO_CNI_RUN/istio-cni-kubeconfig"
  ln -sf "$(part_directory istio-cni)/bin/istio-cni" "$CNI_BIN/"
  configure_cni
  logged "have Istio leave the redirection to its plugin" "$LOGS/istio-cni.log" helm_istio "$ISTIO/source/manifests/charts" --set pilot.cni.enabled=true
  wait_for_istio
}

# Enforces NetworkPolicies by kube-router's firewall. It does neither routing nor Services here.
add_kube_router() {
  [ "$IP_FAMILY" = ipv4 ] || fail "kube-router is set up for IPv4 here, and the cluster has $IP_FAMILY" "make cluster-down, then make cluster-up"
  ensure_debian ipset:ipset
  start_daemon kube-router "$(part_directory kube-router)/bin/kube-router" --kubeconfig="$KUBECONFIG_ADMIN" --hostname-override="$NODE" \
    --run-firewall=true --run-router=false --run-service-proxy=false --service-cluster-ip-range="${SERVICE_CIDRS[ipv4]}"
  wait_for_daemon kube-router 60 iptables -w -n -L KUBE-ROUTER-FORWARD
}

# What the commands of README and docs/getting-started.md need: a registry, skopeo, and the image of their Job by its own name.
add_pages() {
  local program
  ensure_debian skopeo:skopeo
  program=$(debian_file docker-registry usr/bin/docker-registry)
  certificate registry /CN=registry "IP:${REGISTRY_ADDRESS%:*}"
  cat >"$STATE/registry.yaml" <<YAML
version: 0.1
storage: {filesystem: {rootdirectory: $STATE/registry}}
http: {addr: "$REGISTRY_ADDRESS", tls: {certificate: $PKI/registry.crt, key: $PKI/registry.key}}
YAML
  start_daemon registry "$program" serve "$STATE/registry.yaml"
  wait_for_daemon registry 30 curl -sf --cacert "$PKI/ca.crt" "https://$REGISTRY_ADDRESS/v2/"
  containers k8s.io images tag --force "$(image_name payload)" docker.io/library/busybox:stable >/dev/null 2>&1
}

# The images' archives are kept by what they are made of: the part, and the recipe.
add_images_of() {
  local image program path recipe
  recipe=$({ part_hash "$1"; cat "$CLUSTER_DIR/parts/$1/images" "$REPO/deploy/images/pack"; declare -f rootfs_of_program certificates_and_tmp; } | sha256sum | cut -c1-16)
  while read -r image program path; do
    add_image "$image" "$CACHE/images/$image-$recipe.tar" rootfs_of_program "$(part_directory "$1")/bin/$program" "$path"
  done <"$CLUSTER_DIR/parts/$1/images"
}

# add_image NAME ARCHIVE COMMAND…
add_image() {
  local name=$1 archive=$2 log=${1//\//-}
  shift 2
  [ -f "$archive" ] || logged "image $name" "$LOGS/image-$log.log" build_image "$name" "$archive" "$@"
  load_image_once "$log" "$archive"
}

# rootfs_of_program PROGRAM PATH: an image of one static program, which is its entrypoint.
rootfs_of_program() {
  certificates_and_tmp
  mkdir -p ".$(dirname "$2")"
  cp "$1" ".$2"
  CONFIG=$(printf 'USER 1000:1000\nENTRYPOINT ["%s"]' "$2")
}

# render_component NAME: its manifests, with the images of this cluster.
render_component() {
  local directory=$STATE/render/$1
  rm -rf "$directory"
  mkdir -p "$directory"
  cp "$CLUSTER_DIR/parts/$1"/*.yaml "$directory/"
  cp -r "$(part_directory "$1")/source" "$directory/source"
  kubectl kustomize "$directory"
}

# wait_for_component NAME: until its Deployments are available and its webhooks answer the API server.
wait_for_component() {
  local name=$1 namespace object
  # The kubelet takes up to two minutes to bring a Secret that has changed into a pod, unless the pod changes, too.
  while read -r namespace object; do
    logged "Secret $object filled" "$LOGS/$object.log" kubectl -n "$namespace" wait "secret/$object" --for='jsonpath={.data}' --timeout=60s
    kubectl -n "$namespace" annotate pods --all --overwrite "secret=$object" >/dev/null
  done < <(objects_of "$name" Secret)
  while read -r namespace object; do
    logged "$object ready" "$LOGS/$object-rollout.log" kubectl -n "$namespace" rollout status "deployment/$object" --timeout=180s
  done < <(objects_of "$name" Deployment)
  # The CA is written into a webhook configuration a moment after the server is ready.
  while read -r object; do
    kubectl wait "mutatingwebhookconfiguration/$object" --for='jsonpath={.webhooks[0].clientConfig.caBundle}' --timeout=60s >"$LOGS/$name-ca.log" 2>&1 ||
      fail_with_log "the webhook configuration $object has no CA" "$LOGS/$name-ca.log"
  done < <(objects_of "$name" MutatingWebhookConfiguration)
  wait_for_probe "$name"
}

# wait_for_probe NAME: until its webhooks admit the object in its probe.yaml, if it has one.
wait_for_probe() {
  local name=$1 probe=$CLUSTER_DIR/parts/$1/probe.yaml until=$((SECONDS + 60))
  if [ ! -f "$probe" ]; then return; fi
  until kubectl create --dry-run=server -f "$probe" >"$LOGS/$name-probe.log" 2>&1; do
    [ "$SECONDS" -lt "$until" ] || fail_with_log "$name does not admit $probe" "$LOGS/$name-probe.log"
    sleep 0.5
  done
}

# objects_of NAME KIND: namespace and name of those that the component has.
objects_of() {
  kubectl get -f "$LOGS/$1.yaml" -o "jsonpath={range .items[?(@.kind==\"$2\")]}{.metadata.namespace} {.metadata.name}{\"\\n\"}{end}"
}

# shellcheck shell=bash
# The cluster's own programs: each directory of parts/ is a small Go module that names them, built once and kept by the hash of
# what it is built from. Helm and CoreDNS are in Istio's module, so what the three share is compiled once.

part_hash() {
  local directory=$CLUSTER_DIR/parts/$1
  { cat "$directory"/go.{mod,sum}; cat "$directory"/{tests,tags} 2>/dev/null || :; find "$directory" -name '*.go' -print0 | sort -z | xargs -0 cat; part_ldflags "$1"; part_extras "$1"; } | sha256sum | cut -c1-16
}

part_ldflags() {
  printf '%s ' -s -w
  if [ -f "$CLUSTER_DIR/parts/$1/ldflags" ]; then tr '\n' ' ' <"$CLUSTER_DIR/parts/$1/ldflags"; fi
}

# What is kept of a module's source beside its binaries: MODULE DIRECTORY pairs.
part_extras() {
  case $1 in
    istio | istio-1.*) echo istio.io/istio manifests/charts; echo istio.io/istio tools/packaging/common ;;
    gateway-api) echo sigs.k8s.io/gateway-api config/crd/standard ;;
    cert-manager) echo github.com/cert-manager/cert-manager deploy ;;
    training-operator) echo github.com/kubeflow/training-operator manifests ;;
    kubernetes-e2e) echo k8s.io/kubernetes test/images/agnhost/porter ;;
    istio-suites) printf 'istio.io/istio %s\n' tests samples pkg/test ;;
  esac
}

build_parts() {
  [ -d "$CLUSTER_DIR/parts/kubernetes-$KUBERNETES" ] || fail "there is no part 'kubernetes-$KUBERNETES'" "KUBERNETES takes one of: $(known_versions kubernetes)"
  [ -d "$CLUSTER_DIR/parts/$ISTIO_PART" ] || fail "there is no part '$ISTIO_PART'" "ISTIO_VERSION takes one of: 1.31 $(known_versions istio)"
  [ -z "$CONTAINERD_PART" ] || [ -d "$CLUSTER_DIR/parts/$CONTAINERD_PART" ] || fail "there is no part '$CONTAINERD_PART'" "CONTAINERD takes one of: $(known_versions containerd)"
  build_each_part "${PARTS[@]}"
  find_parts
}

build_each_part() {
  local part missing=() n=0 downloads
  for part in "$@"; do
    [ -f "$(part_directory "$part")/complete" ] || missing+=("$part")
  done
  if [ ${#missing[@]} = 0 ]; then return; fi
  ensure_go
  mkdir -p "$LOGS" "$CACHE/go-build"
  download_modules "${missing[@]}" >"$LOGS/modules.log" 2>&1 &
  downloads=$!
  for part in "${missing[@]}"; do
    n=$((n + 1))
    say "[$n/${#missing[@]}] building $part (once; kept in $CACHE)"
    logged "$part" "$LOGS/build-$part.log" build_part "$part" "$(part_directory "$part")"
  done
  # Where a download failed, the build of its part has failed above.
  wait "$downloads" || :
  trim_go_cache
}

# download_modules PART…: so that the network does not wait until the part before is compiled.
download_modules() {
  local part
  for part in "$@"; do go mod download -C "$CLUSTER_DIR/parts/$part"; done
}

find_parts() {
  K8S_BIN=$(part_directory "kubernetes-$KUBERNETES")/bin
  ISTIO=$(part_directory "$ISTIO_PART")
  TOOLS_BIN=$(part_directory istio)/bin
  if [ -n "$CONTAINERD_PART" ]; then PATH=$(part_directory "$CONTAINERD_PART")/bin:$PATH; fi
}

# known_versions PART
known_versions() { local f; for f in "$CLUSTER_DIR/parts/$1"-[1-9]*; do printf '%s ' "${f##*-}"; done; }

build_part() {
  set -e
  local part=$1 directory=$2 module path source package tags lock
  mkdir -p "${directory%/*}"
  # Another checkout may build it.
  exec {lock}>"$directory.lock"
  flock "$lock"
  if [ -f "$directory/complete" ]; then return; fi
  rm -rf "$directory"
  mkdir -p "$directory/bin"
  cd "$CLUSTER_DIR/parts/$part"
  # A part may be files only.
  if grep -q '^tool' go.mod; then build_go_tools . "$directory/bin" "$(part_ldflags "$part")" -tags "$(cat tags 2>/dev/null)"; fi
  if [ -f tests ]; then
    while read -r package tags; do build_go_tests . "$directory/bin" "$(part_ldflags "$part")" "$package" "$tags"; done <tests
  fi
  part_extras "$part" | while read -r module path; do
    go mod download "$module"
    source=$(go list -m -f '{{.Dir}}' "$module")
    mkdir -p "$directory/source/$(dirname "$path")"
    cp -r "$source/$path" "$directory/source/$path"
  done
  if [ -d "$directory/source" ]; then chmod -R u+w "$directory/source"; fi
  touch "$directory/complete"
}

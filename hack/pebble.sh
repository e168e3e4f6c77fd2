# shellcheck shell=bash
# Pebble, which runs the workloads of charms: no registry serves it, so it is built from git. SOURCES says where repositories are.

PEBBLE_TAG=v1.32.1

# built_pebble: where Pebble is; built once, and kept by its tag.
built_pebble() {
  local program=$CACHE/pebble-$PEBBLE_TAG/pebble url=${SOURCES:-https://github.com}/canonical/pebble
  if [ ! -x "$program" ]; then
    ensure_go
    ensure_debian git:git
    mkdir -p "$(dirname "$program")" "$LOGS"
    logged "build Pebble $PEBBLE_TAG" "$LOGS/build-pebble.log" build_pebble "$url" "$program"
  fi
  echo "$program"
}

build_pebble() {
  local clone
  clone=$(mktemp -d)
  if ! git clone --quiet --depth 1 --branch "$PEBBLE_TAG" -c advice.detachedHead=false "$1" "$clone/pebble"; then
    rm -rf "$clone"
    fail "$1 has no tag $PEBBLE_TAG, or cannot be reached" "set SOURCES to the URL below which the repositories are"
  fi
  build_go "$clone/pebble" "-s -w" "$2" ./cmd/pebble
  rm -rf "$clone"
}

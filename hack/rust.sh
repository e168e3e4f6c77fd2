# shellcheck shell=bash
# Rust: the toolchain that rust-toolchain.toml names, with its target for static binaries, and a C compiler for it.

ensure_rust() {
  ensure_debian cc:gcc musl-gcc:musl-tools
  if ! command -v rustup >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then update_debian_lists; fi
    if ! apt-cache show rustup >/dev/null 2>&1; then
      fail "rustup is not installed, and this release has no package of it" "install rustup from rust-lang.org, then run this again"
    fi
    ensure_debian rustup:rustup
  fi
  local channel targets target lock
  # rustup may not run twice at once.
  mkdir -p "$CACHE"
  exec {lock}>"$CACHE/rustup.lock"
  flock "$lock"
  channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$REPO/rust-toolchain.toml")
  targets=$(sed -n 's/^targets = \[\(.*\)\]/\1/p' "$REPO/rust-toolchain.toml" | tr -d '",')
  if ! rustup run "$channel" cargo clippy --version >/dev/null 2>&1 || ! rustup run "$channel" cargo fmt --version >/dev/null 2>&1; then
    say "installing Rust $channel"
    logged "rustup toolchain install" "$LOGS/rustup.log" rustup toolchain install "$channel" --profile minimal -c clippy -c rustfmt
  fi
  if ! rustup component list --installed --toolchain "$channel" | grep -qx rust-src; then
    say "installing the Rust standard library's source"
    logged "rustup component add" "$LOGS/rustup-source.log" rustup component add rust-src --toolchain "$channel"
  fi
  for target in $targets; do
    if ! rustup target list --installed --toolchain "$channel" | grep -qx "$target"; then
      say "installing the Rust target $target"
      logged "rustup target add" "$LOGS/rustup-target.log" rustup target add "$target" --toolchain "$channel"
    fi
  done
  exec {lock}>&-
}

# ensure_cargo_tools NAME…: installs cargo's subcommands and mdbook in the versions that hack/cargo-tool names.
ensure_cargo_tools() {
  local name
  for name in "$@"; do
    "$REPO/hack/cargo-tool" --check "$name" || logged "cargo install $name" "$LOGS/$name.log" "$REPO/hack/cargo-tool" "$name"
  done
}

# shellcheck shell=bash
# zig, a C compiler for other architectures: from the Python package that carries it.

ZIG_WHEEL=0.17.0

ensure_zig() {
  local home=$CACHE/zig-$ZIG_WHEEL
  if [ ! -x "$home/ziglang/zig" ]; then
    say "installing zig $ZIG_WHEEL (from the Python package ziglang) into $home"
    unpack_wheel ziglang "$ZIG_WHEEL" "$home"
    chmod a+x "$home/ziglang/zig"
  fi
}

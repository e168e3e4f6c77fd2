# shellcheck shell=bash
# The same source gives the same binary, wherever it lies, whoever's cargo builds it, and whenever: no path of the machine stays
# in it, and no time (mimalloc has C's __DATE__ in it, which compilers take from here).
export SOURCE_DATE_EPOCH=0

# remapped: what rustc is told to call the folders it reads.
remapped() {
  local cargo=${CARGO_HOME:-$HOME/.cargo} sysroot
  sysroot=$(rustc --print sysroot)
  echo "--remap-path-prefix=$PWD=/istio-aux --remap-path-prefix=$cargo=/cargo --remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rust"
}

# linker_for TARGET: the flag that names a linker, where the machine's own does not know the target.
linker_for() {
  case $1 in
    "$(uname -m)"-*) ;;
    # It comes with Rust, and knows every architecture.
    *) echo "-C linker=rust-lld" ;;
  esac
}

# c_compiler_for TARGET: the C compiler for the crates that contain C, where this machine's own does not know the target.
c_compiler_for() {
  case $1 in
    "$(uname -m)"-*) ;;
    *)
      export "CC_${1//-/_}=$PWD/hack/zig-cc" "AR_${1//-/_}=$PWD/hack/zig-ar"
      ;;
  esac
}

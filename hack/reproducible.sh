# shellcheck shell=bash
# The same source gives the same program, in any directory, for any user and at any time. No path of the machine stays in it, and no
# time: mimalloc has C's __DATE__ in it, which compilers take from here.
export SOURCE_DATE_EPOCH=0

# use_target_directory NAME TARGET PROFILE: sets TARGET_DIRECTORY, below cargo's own. RUSTFLAGS has the paths outside the checkout only, so that a
# directory which clones share has the dependencies compiled. The workspace's members are compiled again there: cargo would take
# another clone's for this one's where its files are older.
use_target_directory() {
  TARGET_DIRECTORY=${CARGO_TARGET_DIR:-$PWD/target}/$1
  case $TARGET_DIRECTORY in
    "$PWD"/*) ;;
    *) cargo clean --locked --quiet --workspace --target-dir "$TARGET_DIRECTORY" --target "$2" --profile "$3" ;;
  esac
  CHECKOUT=$PWD RUSTC_WRAPPER=$PWD/hack/rustc-remapped
  export TARGET_DIRECTORY CHECKOUT RUSTC_WRAPPER
}

# remapped: what rustc is told to call the directories outside the checkout that it reads. Needs use_target_directory.
remapped() {
  local cargo=${CARGO_HOME:-$HOME/.cargo} sysroot
  sysroot=$(rustc --print sysroot)
  echo "--remap-path-prefix=$TARGET_DIRECTORY=/target --remap-path-prefix=$cargo=/cargo --remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rust"
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

# shellcheck shell=bash
# Debian kernels for virtual machines: downloaded and unpacked, not installed as this machine's kernel.

# find_kernel PACKAGE: sets KERNEL_PACKAGE and KERNEL_VERSION. A metapackage such as linux-image-amd64 stands for the
# kernel that it depends on.
find_kernel() {
  KERNEL_PACKAGE=$(apt-cache depends "$1" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1 || true)
  KERNEL_PACKAGE=${KERNEL_PACKAGE:-$1}
  KERNEL_VERSION=$(apt-cache show --no-all-versions "$KERNEL_PACKAGE" 2>/dev/null | sed -n 's/^Version: //p' || true)
  KERNEL_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/istio-aux/kernels/${KERNEL_PACKAGE}_$KERNEL_VERSION
}

# download_kernel DIR: fills it with the kernel, and the modules that mount this machine's files by 9p.
download_kernel() {
  cd "$1" || return
  apt-get download -qq "$KERNEL_PACKAGE=$KERNEL_VERSION"
  dpkg-deb --fsys-tarfile ./*.deb |
    tar x --wildcards './boot/vmlinuz-*' '*/kernel/drivers/virtio/*' '*/kernel/fs/*' '*/kernel/net/9p/*'
  rm ./*.deb
}

# ensure_kernel PACKAGE: sets KERNEL_DIR, where the kernel of this package is. One that is there needs no network.
ensure_kernel() {
  find_kernel "$1"
  if [ -d "$KERNEL_DIR" ]; then return; fi
  logged "apt-get update" "$LOGS/apt-update.log" apt-get update -qq
  find_kernel "$1"
  if [ -d "$KERNEL_DIR" ]; then return; fi
  [ -n "$KERNEL_VERSION" ] || fail "apt knows no package $1" "apt-cache search '^linux-image-' lists the kernels"
  rm -rf "$KERNEL_DIR.part"
  mkdir -p "$KERNEL_DIR.part"
  logged "download $KERNEL_PACKAGE $KERNEL_VERSION" "$LOGS/kernel.log" download_kernel "$KERNEL_DIR.part"
  mv "$KERNEL_DIR.part" "$KERNEL_DIR"
}

# shellcheck shell=bash
# Virtual machines with a Debian kernel, whose root is this machine's. The kernel is downloaded and unpacked, not installed.

# find_kernel PACKAGE: sets KERNEL_PACKAGE and KERNEL_VERSION. A metapackage such as linux-image-amd64 stands for the
# kernel that it depends on.
find_kernel() {
  KERNEL_PACKAGE=$(apt-cache depends "$1" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1 || true)
  KERNEL_PACKAGE=${KERNEL_PACKAGE:-$1}
  KERNEL_VERSION=$(apt-cache show --no-all-versions "$KERNEL_PACKAGE" 2>/dev/null | sed -n 's/^Version: //p' || true)
  KERNEL_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/istio-aux/vm-kernels/${KERNEL_PACKAGE}_$KERNEL_VERSION
}

# download_kernel DIR: fills it with the kernel, and the modules of file systems, networks and this machine's files (9p).
download_kernel() {
  cd "$1" || return
  apt-get download -qq "$KERNEL_PACKAGE=$KERNEL_VERSION"
  dpkg-deb --fsys-tarfile ./*.deb |
    tar x --wildcards './boot/vmlinuz-*' '*/modules.builtin*' '*/modules.order' '*/kernel/arch/*' '*/kernel/crypto/*' '*/kernel/fs/*' \
      '*/kernel/lib/*' '*/kernel/net/*' '*/kernel/drivers/virtio/*' '*/kernel/drivers/block/virtio_blk*' '*/kernel/drivers/net/veth*' \
      '*/kernel/drivers/net/dummy*'
  rm ./*.deb
  find . -name '*.ko.xz' -exec busybox unxz {} +
  busybox depmod -b . "$(basename lib/modules/*)"
}

# ensure_kernel PACKAGE|DIRECTORY: sets KERNEL_DIR, where the kernel of this package is, with boot/vmlinuz-* and lib/modules/*. One that is
# there needs no network.
ensure_kernel() {
  if [ -d "$1" ]; then
    KERNEL_DIR=$1
    return
  fi
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

# make_initramfs INIT ROOT MODULES…: writes ROOT.cpio with busybox, these directories of modules, and INIT as its first process.
make_initramfs() {
  local init=$1 root=$2 release part
  release=$(basename "$KERNEL_DIR"/lib/modules/*)
  mkdir -p "$root"/{bin,dev,proc,host} "$root/lib/modules/$release"
  cp /bin/busybox "$root/bin/busybox"
  ln -s busybox "$root/bin/sh"
  cp "$init" "$root/init"
  cd "$KERNEL_DIR/lib/modules/$release" || return
  for part in "${@:3}"; do
    # Some kernels have a part built in, or none of that name.
    if [ -e "kernel/$part" ]; then cp -r --parents "kernel/$part" "$root/lib/modules/$release"; fi
  done
  cd "$root" || return
  # Those of a directory of the caller's.
  find . -name '*.ko.xz' -exec busybox unxz {} +
  busybox depmod -b . "$release"
  find . | busybox cpio -o -H newc 2>/dev/null >"$root.cpio"
}

# run_vm INITRAMFS WORDS OPTION…: becomes a virtual machine, whose kernel command line ends with the words.
run_vm() {
  exec timeout --kill-after=10 "$TIME_LIMIT" nice qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -cpu max -smp 2 -display none \
    -serial stdio -kernel "$KERNEL_DIR"/boot/vmlinuz-* -initrd "$1" -append "console=ttyS0 quiet panic=-1 mitigations=off $2" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
    "${@:3}" </dev/null
}

# prepare_vm: sets WORK, a directory that is removed at the script's end, with a virtual machine that still runs.
VM=
prepare_vm() {
  WORK=$(mktemp -d)
  trap 'end_vm 2>/dev/null || true' EXIT
  trap 'exit 130' INT TERM HUP
}

end_vm() {
  if [ -n "$VM" ]; then kill "$VM" && wait "$VM"; fi
  rm -rf "$WORK"
}

# boot_vm ARGUMENT…: runs a virtual machine to its end (run_vm), and shows its console. WORK/console keeps that.
boot_vm() {
  local reader
  # The console's lines end with a carriage return.
  exec 3> >(sed -u 's/\r*$//' | tee "$WORK/console")
  reader=$!
  run_vm "$@" >&3 &
  VM=$!
  exec 3>&-
  wait "$VM" || say "the virtual machine ended with $?"
  VM=
  wait "$reader"
}

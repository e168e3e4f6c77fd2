# shellcheck shell=bash
# Debian packages: installed where a command or file of theirs is missing, with a line that says so.

# Images are built beside the cluster, and apt-get update does not wait for another.
update_debian_lists() {
  mkdir -p "$CACHE"
  logged "apt-get update" "$LOGS/apt-update.log" flock --close "$CACHE/debian.lock" apt-get update -qq
}

# ensure_debian COMMAND-OR-FILE:PACKAGE…
ensure_debian() {
  local missing=() entry
  for entry in "$@"; do
    command -v "${entry%%:*}" >/dev/null || [ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    fail "not installed: ${missing[*]}, and there is no apt-get to install them with" "install them by hand, or use Debian or Ubuntu"
  fi
  if [ "$(id -u)" != 0 ]; then
    fail "not installed: ${missing[*]}, and only root can install them" "sudo apt-get install ${missing[*]}"
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  update_debian_lists
  logged "apt-get install" "$LOGS/apt-install.log" flock --close "$CACHE/debian.lock" apt-get install -y -o DPkg::Lock::Timeout=300 -qq --no-install-recommends "${missing[@]}"
}

# debian_file PACKAGE PATH: where a file of a package is that is unpacked and not installed, so that none of its daemons starts.
debian_file() {
  local home=$CACHE/debian/$1
  if [ ! -e "$home/$2" ]; then
    command -v apt-get >/dev/null || fail "there is no ${2##*/}, and no apt-get to download it with" "install it by hand"
    logged "download Debian's $1" "$LOGS/debian-$1.log" unpack_debian "$1" "$home" || return
  fi
  [ -e "$home/$2" ] || fail "Debian's $1 has no $2" "install ${2##*/} by hand"
  echo "$home/$2"
}

unpack_debian() {
  local part=$2.part
  # Only root can fetch the lists of packages. They may be there.
  apt-get update -qq || true
  rm -rf "$2" "$part" && mkdir -p "$part" &&
    (cd "$part" && apt-get download -qq "$1" && dpkg-deb --extract ./*.deb . && rm ./*.deb) && mv "$part" "$2"
}

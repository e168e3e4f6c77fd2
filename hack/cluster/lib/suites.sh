# shellcheck shell=bash
# Images of Kubernetes' own e2e tests, and of Istio's (docs/conformance.md). They take the tests' own names and tags, in this cluster's
# registry where the tests let that be chosen.

SUITE_PREFIX=$IMAGE_PREFIX/e2e

add_kubernetes_e2e() {
  local image recipe programs registries=$STATE/kubernetes-e2e-registries.yaml
  programs=$(part_directory kubernetes-e2e)/bin
  ln -sfn "$programs" "$STATE/kubernetes-e2e"
  recipe=$({ part_hash kubernetes-e2e; cat "$REPO/deploy/images/pack"; declare -f rootfs_{agnhost,busybox,nonewprivs,nonroot,pause} copy_programs copy_libraries; } | sha256sum | cut -c1-16)
  printf '%s: %s\n' promoterE2eRegistry "$SUITE_PREFIX" gcRegistry "$SUITE_PREFIX" >"$registries"
  KUBE_TEST_REPO_LIST=$registries "$programs/e2e.test" --list-images >"$LOGS/e2e-images"
  for image in agnhost busybox nonewprivs nonroot pause; do
    # Of agnhost, the tests have an older one for upgrades, too.
    add_image "$(grep -o "e2e/$image:.*" "$LOGS/e2e-images" | sort -V | tail -n 1)" "$CACHE/images/e2e-$image-$recipe.tar" "rootfs_$image"
  done
}

# shellcheck disable=SC2329  # called by its name
rootfs_agnhost() {
  rootfs_busybox
  copy_programs /usr/bin /usr/bin/curl
  copy_programs /bin /bin/bash
  cp "$(part_directory kubernetes-e2e)/bin/agnhost" .
  ln -s agnhost agnhost-2
  mkdir uploads
  cp "$(part_directory kubernetes-e2e)"/source/test/images/agnhost/porter/localhost.{crt,key} .
  # Tests of supplemental groups know this user.
  echo 'user-defined-in-image:x:1000:1000::/home:/bin/sh' >>etc/passwd
  printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >>etc/group
  CONFIG=$'ENTRYPOINT ["/agnhost"]\nCMD ["pause"]'
}

# shellcheck disable=SC2329
rootfs_nonewprivs() {
  rootfs_busybox
  mkdir -p usr/local/bin
  install -m 4755 "$(part_directory kubernetes-e2e)/bin/nonewprivs" usr/local/bin/nnp
  CONFIG='CMD ["/usr/local/bin/nnp"]'
}

# shellcheck disable=SC2329
rootfs_nonroot() {
  rootfs_busybox
  CONFIG='USER 1234'
}

# Istio's suites expect an ingress gateway, which comes from its chart.
add_istio_suites() {
  local part recipe image program
  part=$(part_directory istio-suites)
  ln -sfn "$part" "$STATE/istio-suites"
  recipe=$({ part_hash istio-suites; cat "$REPO/deploy/images/pack"; declare -f rootfs_{app,server,busybox} certificates_and_tmp copy_programs copy_libraries; } | sha256sum | cut -c1-16)
  add_image app "$CACHE/images/app-$recipe.tar" rootfs_app
  while read -r image program; do
    add_image "$image" "$CACHE/images/$program-$recipe.tar" rootfs_server "$part/bin/$program"
  done <<IMAGES
ext-authz extauthz
$(image_in samples/jwt-server/jwt-server.yaml jwt-server) src
$(image_in pkg/test/framework/components/registryredirector/registry_redirector_server.yaml fake-registry) imageregistry
$(image_in samples/addons/prometheus.yaml prom/prometheus) prometheus
IMAGES
  add_image docker.io/library/busybox:1.28 "$CACHE/images/busybox-$recipe.tar" rootfs_busybox
  logged "install Istio's ingress gateway" "$LOGS/ingress-gateway.log" helm upgrade --install istio-ingressgateway "$ISTIO/source/manifests/charts/gateway" \
    -n istio-system --set service.type=NodePort,labels.istio=ingressgateway,imagePullPolicy=IfNotPresent --wait --timeout=3m
}

# image_in FILE NAME: the image of that name in a file of Istio's.
image_in() { grep -oE "[a-z.]+/([a-z]+/)?$2:[a-z0-9.]+" "$(part_directory istio-suites)/source/$1"; }

# shellcheck disable=SC2329
rootfs_app() {
  local part
  part=$(part_directory istio-suites)
  certificates_and_tmp
  mkdir -p usr/local/bin
  cp "$part"/bin/{client,server} usr/local/bin/
  cp "$part/source/tests/testdata/certs/dns/cert-chain.pem" cert.crt
  cp "$part/source/tests/testdata/certs/dns/key.pem" cert.key
  cp "$part/source/tests/testdata/certs/dns/root-cert.pem" .
  CONFIG=$'USER 1338\nENTRYPOINT ["/usr/local/bin/server"]'
}

# rootfs_server PROGRAM: as root, since only root may read the key in its Secret's volume.
# shellcheck disable=SC2329
rootfs_server() {
  certificates_and_tmp
  mkdir bin
  cp "$1" bin/server
  CONFIG='ENTRYPOINT ["/bin/server"]'
}

# shellcheck shell=bash
# The one list of what is in each image: the script that `build`s its `programs`, and the `sources` they are built from. `beside` lists
# programs that are built with them and are not in the image.
contents_of() {
  beside=()
  case $1 in
    webhook)
      build=webhook/build programs=(istio-aux-webhook istio-aux-controller) beside=(istio-aux)
      sources=(api cli contract controller inject webhook deploy/helm/istio-aux/policy deploy/overlays)
      ;;
    shim) build=shim/build programs=(aux-shim) sources=(contract shim) ;;
    node) build=node/build programs=(istio-aux-node istio-aux-cni) sources=(contract node) ;;
    *) echo "deploy/images: there is no image '$1'; there are: webhook shim node" >&2 && return 2 ;;
  esac
}

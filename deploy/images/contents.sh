# shellcheck shell=bash
# The one list of what is in each image: `programs` (the script that builds it, and its name), and the `sources` that they are built
# from. `beside` lists programs that are built with them and are not in the image.
contents_of() {
  beside=()
  case $1 in
    webhook)
      programs=(webhook/build:istio-aux-webhook webhook/build:istio-aux-controller) beside=(webhook/build:istio-aux)
      sources=(api cli contract controller inject webhook)
      ;;
    shim) programs=(shim/build:aux-shim) sources=(contract shim) ;;
    node) programs=(node/build:istio-aux-node node/build:istio-aux-cni) sources=(contract node) ;;
    *) echo "deploy/images: there is no image '$1'; there are: webhook shim node" >&2 && return 2 ;;
  esac
}

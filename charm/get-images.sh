#!/usr/bin/env bash
# Prints the images that the charm needs, one a line, for registries of air-gapped sites: charm/get-images.sh
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
# The resource's image, and the default of the option shim-image.
sed -n 's/^    upstream-source: //p; /^    shim-image:/,/^    [a-z-]*:$/s/^      default: //p' charmcraft.yaml

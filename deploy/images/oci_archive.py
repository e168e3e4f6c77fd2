#!/usr/bin/env python3
"""Packs a folder into an OCI image archive of one layer, without a container engine.

The same folder and arguments give the same bytes, so the same digest: entries are sorted, owned by
root and dated 1970. `ctr images import`, `docker load` (25 and later), `podman load` and `skopeo` read the result.
"""

import argparse
import hashlib
import io
import json
import os
import tarfile
import tempfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="example: oci_archive.py rootfs docker.io/istio-aux/shim:0.1.0 shim.tar "
        "--entrypoint /aux-shim --user 65000:65000",
    )
    parser.add_argument("rootfs", help="the folder that becomes the image's root")
    parser.add_argument("name", help="the image's full name, REGISTRY/REPOSITORY:TAG")
    parser.add_argument("archive", help="the archive to write")
    parser.add_argument("--entrypoint", action="append", default=[], help="a word of the entrypoint; repeat for more")
    parser.add_argument("--user", default="", help="UID[:GID] that the image runs as")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="a label of the image")
    parser.add_argument("--architecture", default="amd64")
    given = parser.parse_args()
    if not os.path.isdir(given.rootfs):
        parser.error(f"rootfs: {given.rootfs} is no folder")
    if ":" not in given.name.rsplit("/", 1)[-1]:
        parser.error(f"name: {given.name} has no tag; give REGISTRY/REPOSITORY:TAG")
    return given


def layer_of(rootfs, out):
    """Writes the folder as a tar to `out` and returns its digest and size."""

    def plain(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder, folders, files in os.walk(rootfs):
            folders.sort()
            if folder != rootfs:
                tar.add(folder, os.path.relpath(folder, rootfs), recursive=False, filter=plain)
            links = [f for f in folders if os.path.islink(os.path.join(folder, f))]
            for name in sorted(files + links):
                path = os.path.join(folder, name)
                tar.add(path, os.path.relpath(path, rootfs), recursive=False, filter=plain)
    size = out.tell()
    out.seek(0)
    sha = hashlib.sha256()
    while block := out.read(1 << 20):
        sha.update(block)
    return sha.hexdigest(), size


def digest(data):
    return hashlib.sha256(data).hexdigest()


def as_json(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def described(kind, data):
    return {"mediaType": kind, "digest": "sha256:" + digest(data), "size": len(data)}


def write(given):
    with tempfile.TemporaryFile() as layer, open(given.archive + ".part", "wb") as archive:
        layer_digest, layer_size = layer_of(given.rootfs, layer)
        config = as_json({
            "architecture": given.architecture,
            "os": "linux",
            "config": {
                "Entrypoint": given.entrypoint or None,
                "User": given.user,
                "Env": ["PATH=" + PATH],
                "Labels": dict(label.split("=", 1) for label in given.label) or None,
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + layer_digest]},
        })
        manifest = as_json({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described(CONFIG, config),
            "layers": [{"mediaType": LAYER, "digest": "sha256:" + layer_digest, "size": layer_size}],
        })
        entry = described(MANIFEST, manifest)
        entry["annotations"] = {
            "io.containerd.image.name": given.name,
            "org.opencontainers.image.ref.name": given.name.rsplit(":", 1)[1],
        }
        with tarfile.open(fileobj=archive, mode="w") as tar:

            def add(name, data, size=None):
                info = tarfile.TarInfo(name)
                info.size = len(data) if size is None else size
                tar.addfile(info, io.BytesIO(data) if size is None else data)

            add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            add("index.json", as_json({"schemaVersion": 2, "manifests": [entry]}))
            add("blobs/sha256/" + digest(config), config)
            add("blobs/sha256/" + digest(manifest), manifest)
            layer.seek(0)
            add("blobs/sha256/" + layer_digest, layer, layer_size)
    os.replace(given.archive + ".part", given.archive)
    print(f"{given.name} sha256:{digest(manifest)} {layer_size} bytes -> {given.archive}")


if __name__ == "__main__":
    write(arguments())

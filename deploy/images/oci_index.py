#!/usr/bin/env python3
"""Joins the archives of one image, one for each architecture, into one archive with an OCI image index.

The same archives give the same bytes, so the same digest. `skopeo copy --all` pushes every architecture.
"""

import argparse
import io
import json
import os
import sys
import tarfile

from oci_archive import as_json, digest

INDEX = "application/vnd.oci.image.index.v1+json"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: oci_index.py shim.tar shim-amd64.tar shim-arm64.tar"
    )
    parser.add_argument("archive", help="the archive to write")
    parser.add_argument("parts", nargs="+", help="the archives of one architecture each, as oci_archive.py writes them")
    return parser.parse_args()


def read(part):
    """Returns an archive's entry in its index, and its blobs by their digests."""
    blobs = {}
    with tarfile.open(part) as tar:
        for member in tar.getmembers():
            name = member.name
            data = tar.extractfile(member).read()
            if name == "index.json":
                (entry,) = json.loads(data)["manifests"]
            elif name.startswith("blobs/sha256/"):
                blobs[name.removeprefix("blobs/sha256/")] = data
    return entry, blobs


def blob(blobs, descriptor):
    return json.loads(blobs[descriptor["digest"].removeprefix("sha256:")])


def write(given):
    manifests, blobs, names = [], {}, set()
    for part in given.parts:
        entry, of_part = read(part)
        config = blob(of_part, blob(of_part, entry)["config"])
        names.add(as_json(entry.pop("annotations")))
        manifests.append({**entry, "platform": {"architecture": config["architecture"], "os": config["os"]}})
        blobs.update(of_part)
    if len(names) != 1:
        sys.exit("oci_index: the archives are of images with different names; give those of one image")
    architectures = [manifest["platform"]["architecture"] for manifest in manifests]
    if len(set(architectures)) != len(architectures):
        sys.exit(f"oci_index: two archives have one architecture: {', '.join(architectures)}")
    index = as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    blobs[digest(index)] = index
    annotations = json.loads(names.pop())
    entry = {"mediaType": INDEX, "digest": "sha256:" + digest(index), "size": len(index), "annotations": annotations}
    with tarfile.open(given.archive + ".part", mode="w") as tar:

        def add(name, data):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add("index.json", as_json({"schemaVersion": 2, "manifests": [entry]}))
        for sha, data in sorted(blobs.items()):
            add("blobs/sha256/" + sha, data)
    os.replace(given.archive + ".part", given.archive)
    print(f"{annotations['io.containerd.image.name']} {entry['digest']} {'+'.join(architectures)} -> {given.archive}")


if __name__ == "__main__":
    write(arguments())

"""A stand-in for Kubeflow's PodDefault webhook (kubeflow/dashboard 2.0.0, components/poddefaults-webhooks).

To a pod with the label LABEL=true it adds the PodDefault of Kubeflow's documentation for Pipelines, by the path /LABEL: a volume, and in
each container a mount and a variable. As Kubeflow's it rejects a pod in which another volume is mounted at the same path, or the
variable has another value.

usage: pod-default-webhook.py CERTIFICATE KEY, which prints its port.
"""

import base64
import http.server
import json
import ssl
import sys

NAME = "volume-kf-pipeline-token"
MOUNT = {"name": NAME, "mountPath": "/var/run/secrets/kubeflow/pipelines", "readOnly": True}
VARIABLE = {"name": "KF_PIPELINES_SA_TOKEN_PATH", "value": MOUNT["mountPath"] + "/token"}
TOKEN = {"path": "token", "expirationSeconds": 7200, "audience": "pipelines.kubeflow.org"}
VOLUME = {"name": NAME, "projected": {"sources": [{"serviceAccountToken": TOKEN}]}}


def merged(old, new, key):
    """The list with the new item. Fails where one with the same value of `key` differs."""
    for item in old:
        if item[key] == new[key]:
            if item != new:
                raise ValueError(f"merging {key} has a conflict on {new[key]}: {item} does not match {new}")
            return old
    return [*old, new]


def patch(pod):
    spec = pod["spec"]
    operations = [{"op": "add", "path": "/spec/volumes", "value": merged(spec.get("volumes", []), VOLUME, "name")}]
    for index, container in enumerate(spec["containers"]):
        mounts = merged(container.get("volumeMounts", []), MOUNT, "mountPath")
        variables = merged(container.get("env", []), VARIABLE, "name")
        operations.append({"op": "add", "path": f"/spec/containers/{index}/volumeMounts", "value": mounts})
        operations.append({"op": "add", "path": f"/spec/containers/{index}/env", "value": variables})
    return operations


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review.pop("request")
        pod = request["object"]
        response = {"uid": request["uid"], "allowed": True}
        if pod["metadata"].get("labels", {}).get(self.path.split("?")[0].strip("/")) == "true":
            try:
                text = json.dumps(patch(pod)).encode()
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
            except ValueError as error:
                response |= {"allowed": False, "status": {"message": str(error)}}
        body = json.dumps({**review, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()

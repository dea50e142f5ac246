"""The server's certificate, made for one run, and the kubeconfig that trusts it.

Source: openssl-req(1); Kubernetes, "Organizing Cluster Access Using kubeconfig Files".
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def make_certificate(directory: Path, addresses: Sequence[str]) -> tuple[Path, Path]:
    """Make a self-signed certificate for some IP addresses; returns the paths of it and of its key."""
    certificate, key = directory / "server.crt", directory / "server.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    places = ["-keyout", str(key), "-out", str(certificate)]
    names = ",".join(["DNS:localhost", *(f"IP:{address}" for address in addresses)])
    named = ["-nodes", "-days", "2", "-subj", "/CN=kubernetes-double", "-addext", f"subjectAltName={names}"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *places, *named],
        check=True,
        capture_output=True,
    )
    return certificate, key


def write_kubeconfig(path: Path, server: str, certificate: Path, token: str) -> None:
    """Write the file; JSON is YAML."""
    trusted = base64.b64encode(certificate.read_bytes()).decode()
    context = {"cluster": "double", "user": "tests", "namespace": "default"}
    content: Json = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "double",
        "contexts": [{"name": "double", "context": context}],
        "clusters": [{"name": "double", "cluster": {"server": server, "certificate-authority-data": trusted}}],
        "users": [{"name": "tests", "user": {"token": token}}],
    }
    path.touch(0o600)
    path.write_text(json.dumps(content))

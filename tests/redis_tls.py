"""Certificates for a server that speaks TLS, made for the test by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from redis_server import free_port


@dataclass(frozen=True)
class Certificates:
    authority: Path
    port: int
    options: tuple[str, ...]
    """The arguments of the server."""


def certificates(folder: Path) -> Certificates:
    authority, key, request, signed = (folder / name for name in ("ca.pem", "key.pem", "ask.pem", "cert.pem"))
    authority_key, names = folder / "ca-key.pem", folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = ["req", "-newkey", "rsa:2048", "-nodes", "-sha256"]
    constraints = ["-addext", "keyUsage=critical,keyCertSign"]
    _openssl(
        *new,
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=authority",
        *constraints,
        "-keyout",
        authority_key,
        "-out",
        authority,
    )
    _openssl(*new, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    by: list[str | Path] = [
        "-CA",
        authority,
        "-CAkey",
        authority_key,
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        names,
    ]
    _openssl("x509", "-req", "-sha256", "-in", request, *by, "-out", signed)
    port = free_port()
    files = ("--tls-cert-file", signed, "--tls-key-file", key, "--tls-ca-cert-file", authority)
    options = ("--tls-port", port, *files, "--tls-auth-clients", "no")
    return Certificates(authority, port, tuple(map(str, options)))


def _openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)

"""The certificate authority that an agent is told to trust: made on first use, ours alone, never a system root.

It lives in the data directory (`recorder.home`): the directory is 0700, the key 0600.
"""

import os
import shutil
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import certifi
from mitmproxy.certs import CertStore

from recorder.errors import LaunchError

KEY_BITS = 2048
"""mitmproxy's own choice for leaf certificates, which reuse the authority's key."""

BASENAME = "mitmproxy"
"""mitmproxy looks for `mitmproxy-ca.pem` in its configuration directory; the name inside the certificate is ours."""


TRUST_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


@dataclass(frozen=True, slots=True)
class Authority:
    directory: Path
    """Holds key and certificate; mitmproxy's `confdir`."""

    @property
    def certificate(self) -> Path:
        """PEM of the certificate alone, safe to hand out."""
        return self.directory / f"{BASENAME}-ca-cert.pem"


def authority(home: Path) -> Authority:
    """The authority below `home`, made if missing; two processes that do so agree on one. Raises LaunchError."""
    directory = home / "ca"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        if not (directory / f"{BASENAME}-ca.pem").exists():
            _make(directory)
    except OSError as e:
        raise LaunchError(f"expected a writable data directory, got {e.strerror or e}, at {home}") from e
    return Authority(directory)


def _make(directory: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix="ca-", dir=directory.parent))
    try:
        CertStore.create_store(draft, BASENAME, KEY_BITS, organization="memorywalker", cn="memorywalker")
        CertStore.load_dhparam(draft / f"{BASENAME}-dhparam.pem")  # written on first load, which must not be a race
        try:
            draft.rename(directory)
        except OSError:
            if not (directory / f"{BASENAME}-ca.pem").exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def roots(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """What this user trusts already: certifi's roots, the system's, and the files named in the environment."""
    named = (environ.get(name, "") for name in TRUST_VARIABLES)
    candidates = (certifi.where(), ssl.get_default_verify_paths().cafile or "", *named)
    return tuple(dict.fromkeys(Path(c) for c in candidates if c and Path(c).is_file()))


def bundle(home: Path, files: Iterable[Path]) -> Path:
    """One PEM file with all certificates of `files`, each once; the same content gives the same path."""
    blocks: dict[str, None] = {}
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        for piece in text.split("-----BEGIN CERTIFICATE-----")[1:]:
            blocks["".join(piece.split("-----END CERTIFICATE-----")[0].split())] = None
    content = "".join(
        "-----BEGIN CERTIFICATE-----\n"
        + "\n".join(b[i : i + 64] for i in range(0, len(b), 64))
        + "\n-----END CERTIFICATE-----\n"
        for b in blocks
    )
    path = home / f"bundle-{blake2b(content.encode(), digest_size=8).hexdigest()}.pem"
    if not path.exists():
        handle, draft = tempfile.mkstemp(prefix="bundle-", dir=home)
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(content)
        os.replace(draft, path)
    return path

"""Certificates for tests, made by openssl. Where there is none, the tests are skipped, loudly."""

import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from floodplain.workers.channel import Certificates


def certificates(folder: Path) -> Certificates:
    """Of an authority of its own."""
    if shutil.which("openssl") is None:
        warnings.warn("TLS is not tested: there is no openssl", stacklevel=2)
        pytest.skip("there is no openssl")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-days", "2", "-keyout", "authority.key", "-out", "authority.pem")
    openssl("req", *curve, "-subj", "/CN=query", "-keyout", "query.key", "-out", "query.csr")
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2")
    openssl("x509", "-req", "-in", "query.csr", *signed, "-out", "query.pem")
    made = Certificates(*(str(folder / name) for name in ("query.pem", "query.key", "authority.pem")))
    made.check()
    return made

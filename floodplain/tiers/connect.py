"""A connection to an object store, set up so that no one but us retries."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from obstore.store import from_url

from floodplain.errors import BadInput, Refused
from floodplain.settings import RetrySettings
from floodplain.tiers.redact import without_credentials, without_values

_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "root_certificate",
    "user_agent",
}
"""obstore takes these apart from the others, and panics if they are not."""

_used_in_process: list[int] = []


def connect(url: str, options: Mapping[str, str], retry: RetrySettings) -> Any:
    """The obstore store at ``url``; raises ``BadInput`` if the URL or an option makes no sense. Sends nothing."""
    if url.startswith("memory:"):
        return from_url("memory:///")
    timeout = timedelta(milliseconds=retry.timeout_ms)
    config: Any = {key: value for key, value in options.items() if key not in _CLIENT_OPTIONS}
    client: Any = {key: value for key, value in options.items() if key in _CLIENT_OPTIONS}
    client |= {"timeout": timeout, "connect_timeout": timeout}
    try:
        return from_url(url, config=config, client_options=client, retry_config={"max_retries": 0, "retry_timeout": timeout})
    except Exception as error:
        # Not its cause: that quotes values of options, too.
        message = without_values(str(error).splitlines()[0], options)
        raise BadInput(without_credentials(f"cannot open {url}: {message}")) from None


def check_not_forked() -> None:
    """obstore's threads do not survive a fork: a request in the child would wait for ever."""
    if not _used_in_process:
        _used_in_process.append(os.getpid())
    if _used_in_process[0] != os.getpid():
        raise Refused(
            "this process was forked from one that had already used an object store; "
            "use object stores only after the fork, or start processes with spawn"
        )

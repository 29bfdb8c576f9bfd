"""Storage options as a user writes them: obstore's configuration keys and its client options.

obstore takes the two apart, users and other tools do not. Given in the wrong place, a client option
such as ``aws_allow_http`` or ``timeout`` ends in a panic of its Rust code (0.12.1).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# obstore names its keys in stubs only, which do not exist at runtime; a test compares.
_CLIENT = """
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only
    http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle
    http2_max_frame_size http2_only pool_idle_timeout pool_max_idle_per_host proxy_url
    proxy_ca_certificate proxy_excludes randomize_addresses read_timeout root_certificate
    timeout user_agent
"""
CLIENT_OPTIONS = frozenset(_CLIENT.split())
# Only to name the nearest one: obstore itself decides what a configuration key is, aliases too.
CONFIGURATION_KEYS = {
    "aws_": """
        access_key_id aws_endpoint_url_s3 bucket checksum_algorithm conditional_put
        container_credentials_relative_uri container_credentials_full_uri
        container_authorization_token_file copy_if_not_exists default_region disable_tagging
        disable_bulk_delete endpoint imdsv1_fallback metadata_endpoint region request_payer
        role_arn role_session_name s3_express secret_access_key server_side_encryption
        session_token skip_signature sse_bucket_key_enabled sse_customer_key_base64
        sse_kms_key_id sts_endpoint unsigned_payload virtual_hosted_style_request
        web_identity_token_file
    """,
    "google_": """
        service_account service_account_key base_url bearer_token bucket application_credentials
        skip_signature
    """,
    "azure_": """
        account_name account_key client_id client_secret credential_type tenant_id
        authority_host sas_key token use_emulator use_fabric_endpoint encryption_key endpoint
        msi_endpoint object_id msi_resource_id federated_token_file use_azure_cli
        skip_signature container_name disable_tagging fabric_token_service_url
        fabric_workload_host fabric_session_token fabric_cluster_identifier
    """,
}
_PREFIX = {"s3": "aws_", "s3a": "aws_", "gs": "google_"}


class StorageOptions(NamedTuple):
    """The same options in obstore's two places."""

    config: dict[str, str]
    client: dict[str, str]


def split(scheme: str, given: Mapping[str, str]) -> StorageOptions:
    """Put each option where obstore wants it; client options may carry the store's prefix too.

    Raises:
        StoreError: a client option is given twice, with the prefix and without.
    """
    options = StorageOptions({}, {})
    for key, value in given.items():
        name = _bare(scheme, key)
        if name not in CLIENT_OPTIONS:
            options.config[key] = value
        elif name in options.client:
            raise StoreError(f"The storage option {name} is given twice: expected it once.")
        else:
            options.client[name] = value
    return options


def unknown_options(scheme: str, unknown: Iterable[str]) -> str:
    """Name what obstore does not know, each with the nearest option that it knows."""
    known = [*CLIENT_OPTIONS, *CONFIGURATION_KEYS[_prefix(scheme)].split()]
    named = []
    for key in unknown:
        nearest = get_close_matches(_bare(scheme, key), known, n=1)
        named.append(f"{key!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else ""))
    return ", ".join(named)


def _prefix(scheme: str) -> str:
    return _PREFIX.get(scheme, "azure_")


def _bare(scheme: str, key: str) -> str:
    return key.lower().removeprefix(_prefix(scheme))

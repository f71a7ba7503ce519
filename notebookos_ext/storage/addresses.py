"""Where a checkpoint store is, as one setting says it: a folder, or a bucket of an S3 service.

    /shared/checkpoints            a folder; file:///shared/checkpoints is the same
    s3://BUCKET/PREFIX?OPTIONS     a bucket, see `S3Address`

An address has no credentials in it: it stands in configuration files, logs and on screens.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from notebookos_ext.errors import InvalidSettings

SETTING = "checkpoint_store"
ENCRYPTIONS = ("AES256", "aws:kms")
CHECKSUMS = ("when_supported", "when_required")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[\w!.*'()/-]*", re.ASCII)
"""What every S3 service takes in a key."""
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class FolderAddress(msgspec.Struct, frozen=True):
    """A folder of this machine, or of a file system that all hosts share."""

    path: str

    @property
    def name(self) -> str:
        """What people call it."""
        return self.path


class S3Address(msgspec.Struct, frozen=True):
    """A bucket, and under which prefix. The options, as they stand in the address:"""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    """Address of a service that is not AWS's own; empty: AWS."""
    region: str = ""
    """Empty: as boto3 finds it in the environment or its configuration."""
    profile: str = ""
    """Section of the AWS configuration files whose credentials are used; empty: boto3's choice."""
    path_style: bool = False
    """The bucket is in the path, not in the host name; most services that are not AWS want it."""
    sse: str = ""
    """Encryption by the service: `AES256` or `aws:kms`; empty: as the bucket says."""
    kms_key: str = ""
    """The key for `aws:kms`; empty: the service's own."""
    checksums: str = "when_supported"
    """`when_required` for services that refuse the checksums of newer clients."""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


StoreAddress = FolderAddress | S3Address


def parse_address(text: str) -> StoreAddress:
    """Read an address. Raises InvalidSettings with what is wrong with it."""
    if "://" not in text:
        return FolderAddress(_absolute(text, text))
    try:
        parts = urlsplit(text)
        has_user = parts.username is not None or parts.password is not None
    except ValueError as error:
        raise InvalidSettings(f"{SETTING} is not an address: {error}") from None
    if has_user:
        # It is not repeated: there may be a secret in it.
        raise InvalidSettings(
            f"{SETTING} has credentials in its address; leave them out, and give them to boto3 by "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in ~/.aws/credentials"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or parts.query:
            raise InvalidSettings(f'{SETTING} is "{text}"; a folder is file:///path/of/the/folder')
        return FolderAddress(_absolute(unquote(parts.path), text))
    if parts.scheme == "s3":
        return _s3(parts.netloc, unquote(parts.path), parts.query)
    raise InvalidSettings(
        f'{SETTING} begins with "{parts.scheme}://"; it must be the path of a folder, file:///… '
        "or s3://bucket/prefix"
    )


def _absolute(path: str, given: str) -> str:
    found = Path(path).expanduser()
    if not found.is_absolute():
        raise InvalidSettings(f'{SETTING} is "{given}"; a folder must have an absolute path')
    return str(found)


def _s3(bucket: str, path: str, query: str) -> S3Address:
    if not _BUCKET.fullmatch(bucket):
        raise InvalidSettings(
            f'{SETTING} names the bucket "{bucket}"; a bucket has 3 to 63 lower-case letters, '
            "digits, dots and dashes, as in s3://my-bucket/notebooks"
        )
    prefix = path.strip("/")
    if not _KEY.fullmatch(prefix) or any(part in ("", ".", "..") for part in prefix.split("/")[1:]):
        raise InvalidSettings(
            f'{SETTING} has the prefix "{prefix}"; use letters, digits, dots, dashes, underscores '
            "and single slashes"
        )
    options = _options(query)
    address = S3Address(
        bucket=bucket,
        prefix=prefix,
        path_style=_yes_no(options.pop("path_style", "0")),
        **options,
    )
    _check_endpoint(address.endpoint)
    _one_of("sse", address.sse, ("", *ENCRYPTIONS))
    _one_of("checksums", address.checksums, CHECKSUMS)
    if address.kms_key and address.sse != "aws:kms":
        raise InvalidSettings(f"{SETTING} has a kms_key, which needs sse=aws:kms beside it")
    return address


def _options(query: str) -> dict[str, str]:
    known = [name for name in S3Address.__struct_fields__ if name not in ("bucket", "prefix")]
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InvalidSettings(f'{SETTING} has an option "{name}", which is none; {advice}')
        if name in found:
            raise InvalidSettings(f"{SETTING} has the option {name} twice")
        found[name] = value
    return found


def _yes_no(value: str) -> bool:
    _one_of("path_style", value, tuple(_YES_NO))
    return _YES_NO[value]


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(choice for choice in allowed if choice)
        raise InvalidSettings(f'{SETTING} has {name}="{value}"; it must be one of {choices}')


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        good = bool(parts.hostname) and parts.port != 0
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        good = secret = False
    if secret:
        raise InvalidSettings(f"{SETTING} has credentials in its endpoint; leave them out")
    if not good or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query:
        raise InvalidSettings(
            f'{SETTING} has endpoint="{endpoint}"; it must be like https://s3.example.org:9000'
        )

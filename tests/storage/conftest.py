"""One S3 service for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_service import S3Service, credentials, s3_service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    with s3_service(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials of the service in the environment."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return monkeypatch

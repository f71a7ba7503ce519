from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from namespace_pairs import Replicas, Template


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def replicas(template: Template, tmp_path: Path) -> Iterator[Callable[..., Replicas]]:
    """Makes groups of replicas: `replicas(2)`."""
    made: list[Replicas] = []

    def make(count: int = 2, **options: int) -> Replicas:
        group = Replicas([template.fork(tmp_path, options) for _ in range(count)])
        made.append(group)
        return group

    yield make
    for each in made:
        each.close()

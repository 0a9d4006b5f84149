"""A package of tests/plugins as pip would have installed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import stack.plugins as plugins

PLUGINS = Path(__file__).parents[1] / "plugins"


@contextmanager
def installed_package(
    info: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """`info`: the files of its .dist-info, which is in `folder`."""
    held = folder / "acme-1.0.dist-info"
    held.mkdir()
    for name, text in info.items():
        (held / name).write_text(text)
    for path in (folder, PLUGINS):
        monkeypatch.syspath_prepend(str(path))
    caches = (plugins._points, plugins.load)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()

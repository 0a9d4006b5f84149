"""`stackc live`: the page follows the file, an error leaves the last one, others are refused."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack.cli import main
from stack.report.live_page import HOST, Follower, server

pytest.importorskip("torch")
SOURCE = "import torch\n\n\ndef net(x):\n    return torch.{op}(x) * 2\n"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, Follower, str]]:
    file = tmp_path / "net.py"
    file.write_text(SOURCE.format(op="tanh"))
    follower = Follower([f"{file}:net", "--input=f32[4,8]"])
    made = server(follower, 0)
    threads = [
        threading.Thread(target=made.serve_forever, daemon=True),
        threading.Thread(target=follower.follow, args=([file],), daemon=True),
    ]
    for thread in threads:
        thread.start()
    yield file, follower, f"http://{HOST}:{made.server_address[1]}"
    follower.stop.set()
    made.shutdown()
    made.server_close()
    threads[1].join()


def wait(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


def get(address: str, host: str = "") -> str:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return str(answer.read().decode())


def test_it_follows(live: tuple[Path, Follower, str]) -> None:
    file, follower, address = live
    wait(lambda: follower.version)
    first = follower.version
    assert f'data-live="{first}"' in get(f"{address}/")
    assert "connect-src &#x27;self&#x27;" in get(f"{address}/")
    file.write_text("import torch\n\n\ndef net(x:\n")
    wait(lambda: json.loads(get(f"{address}/news"))["error"])
    news = json.loads(get(f"{address}/news"))
    assert "net.py" in news["error"]
    assert news["version"] == first
    file.write_text(SOURCE.format(op="exp"))
    wait(lambda: follower.version != first)
    assert "torch.exp" in get(f"{address}/")
    for host in ("example.org", "127.0.0.1.example.org:80"):
        with pytest.raises(urllib.error.HTTPError):
            get(f"{address}/", host)


def test_a_port_that_is_taken_is_an_error_without_a_traceback(
    live: tuple[Path, Follower, str], capsys: pytest.CaptureFixture[str]
) -> None:
    file, _, address = live
    for port, why in ((address.rpartition(":")[2], "in use"), ("70000", "port must be")):
        assert main(["live", f"{file}:net", "-i", "f32[4,8]", "--port", port]) == 2
        said = capsys.readouterr().err
        assert f"port {port} of 127.0.0.1" in said and why in said and "without --port" in said

"""Real installations of a one-file wheel made here, from a folder instead of an index."""

import base64
import hashlib
import json
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from gnomon.harness.clients import catalogue, environment, install
from gnomon.harness.clients.catalogue import Client
from gnomon.harness.clients.environment import ClientError, find, folder

NAME = "gnomon-tiny"


@dataclass(frozen=True)
class TinyClient(Client):
    text: str = ""

    @property
    def lock(self) -> str:
        return self.text


def make_wheel(where: Path) -> str:
    """A wheel with one module; returns its sha256."""
    path = where / "gnomon_tiny-1.0-py3-none-any.whl"
    info = "gnomon_tiny-1.0.dist-info"
    members = {
        "gnomon_tiny.py": "ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest())
            record.append(f"{name},sha256={digest.decode().rstrip('=')},{len(content)}")
        wheel.writestr(f"{info}/RECORD", "\n".join((*record, f"{info}/RECORD,,", "")))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyClient:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    digest = make_wheel(wheels)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    client = TinyClient(
        name=NAME,
        version="1.0",
        purpose="tests",
        disk_bytes=1 << 20,
        probe="import gnomon_tiny; assert gnomon_tiny.ANSWER == 42",
        text=f"{NAME}==1.0 \\\n    --hash=sha256:{digest}\n",
    )
    use(client, monkeypatch)
    return client


def use(client: TinyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (catalogue, environment, install):
        monkeypatch.setattr(module, "CLIENTS", {NAME: client})


def test_an_environment_is_built_once_and_found_afterwards(tiny: TinyClient) -> None:
    said: list[str] = []
    (first,) = install.install(said.append)
    assert first.python.exists()
    assert first.versions == {NAME: "1.0"}
    assert said[-1] == f"{NAME} 1.0: installed"
    said.clear()
    (second,) = install.install(said.append)
    assert said == [f"{NAME} 1.0: already installed"]
    assert second == first == environment.environment(NAME)


def test_another_lock_is_another_environment(
    tiny: TinyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folder(tiny)
    other = TinyClient(**{**vars(tiny), "text": tiny.text + "# newer\n"})
    assert folder(other) != before


def test_two_installers_build_once(tiny: TinyClient) -> None:
    said: list[str] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            install.install(said.append)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert said.count(f"{NAME}: creating the environment") == 1
    assert find(tiny) is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": f"{NAME}==1.0 --hash=sha256:{'0' * 64}\n"}, "downloading and installing"),
        ({"text": "not-there==9 --hash=sha256:" + "0" * 64}, "downloading and installing"),
        ({"probe": "raise SystemExit('it does not work')"}, "it does not work"),
        ({"disk_bytes": 1 << 60}, "free some space"),
    ],
)
def test_a_failed_build_leaves_nothing_and_says_what_to_do(
    tiny: TinyClient, monkeypatch: pytest.MonkeyPatch, change: dict, says: str
) -> None:
    broken = TinyClient(**{**vars(tiny), **change})
    use(broken, monkeypatch)
    with pytest.raises(ClientError, match=says):
        install.install(lambda line: None)
    assert not folder(broken).exists()
    with pytest.raises(ClientError, match="gnomon clients install"):
        environment.environment(NAME)


def test_a_build_that_was_killed_is_built_again(tiny: TinyClient) -> None:
    (built,) = install.install(lambda line: None)
    (folder(tiny) / environment.MARKER).unlink()
    assert find(tiny) is None
    (again,) = install.install(lambda line: None)
    assert again == built


def test_an_environment_whose_interpreter_is_gone_is_built_again(tiny: TinyClient) -> None:
    (built,) = install.install(lambda line: None)
    built.python.unlink()
    assert find(tiny) is None
    (again,) = install.install(lambda line: None)
    assert again.python.exists()


def test_a_cancelled_build_leaves_nothing(tiny: TinyClient) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ClientError, match="cancelled"):
        install.install(lambda line: None, cancel=cancel)
    assert not folder(tiny).exists()


def test_the_marker_names_the_lock(tiny: TinyClient) -> None:
    install.install(lambda line: None)
    marker = json.loads((folder(tiny) / environment.MARKER).read_text())
    assert marker["lock_sha256"] == hashlib.sha256(tiny.text.encode()).hexdigest()

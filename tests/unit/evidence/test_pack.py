"""A run in one file: the same bytes anywhere, and nothing comes in that was not sealed."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.runs import manifest, sealed_run

from gnomon.harness.errors import StoreError
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.pack import pack
from gnomon.harness.evidence.remote import export_run, open_packed, packed_runs
from gnomon.harness.evidence.store import Store


def packed(run: RunFolder) -> bytes:
    file = io.BytesIO()
    pack(run, file)
    return file.getvalue()


def members(run: RunFolder) -> dict[str, bytes]:
    return {
        path.relative_to(run.path).as_posix(): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return sealed_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=["plain", "local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder's address in the file systems that need no network."""
    path = f"{tmp_path}/packed/"
    return {"plain": path, "local": f"file://{path}", "memory": f"memory:/{path}"}[request.param]


def test_a_run_travels_through_a_file_system(address: str, run: RunFolder, store: Store) -> None:
    target = export_run(run, address)
    assert target == f"{address}{run.path.name}.run.tar"
    (listed,) = packed_runs(address)
    with open_packed(listed) as file:
        imported, new = store.take_in(file, listed)
    assert new
    assert imported.path == store.root / run.path.name
    assert members(imported) == members(run)
    with open_packed(target) as file:
        again, new = store.take_in(file, target)
    assert (again.path, new) == (imported.path, False)
    system, path = fsspec.core.url_to_fs(address)
    assert [Path(each).name for each in system.ls(path, detail=False)] == [
        f"{run.path.name}.run.tar"
    ]


def test_packing_depends_on_nothing_but_the_run(run: RunFolder, tmp_path: Path) -> None:
    first = packed(run)
    copy = RunFolder(Path(shutil.copytree(run.path, tmp_path / run.path.name)))
    for path in copy.path.rglob("*"):
        path.chmod(0o755)
    (copy.path / "link").symlink_to("/etc/passwd")
    assert packed(copy) == first
    store = Store(tmp_path / "imported")
    assert packed(store.take_in(io.BytesIO(first), "x")[0]) == first


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_changed_byte_comes_in(
    run: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = packed(run)
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    store = Store(tmp_path_factory.mktemp("store"))
    try:
        imported, _ = store.take_in(io.BytesIO(bytes(changed)), "changed.run.tar")
    except StoreError:
        assert list(store.root.iterdir()) == []
    else:  # a byte of the archive that is no content: padding, a time, an owner
        assert members(imported) == members(run)


@pytest.mark.parametrize("part", [0, 100, 512, 2000, 5000])
def test_a_part_of_a_file_does_not_come_in(part: int, run: RunFolder, store: Store) -> None:
    with pytest.raises(StoreError, match=r"cut\.run\.tar"):
        store.take_in(io.BytesIO(packed(run)[:part]), "cut.run.tar")
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "r/../../evil", ".hidden/manifest.sha256", "r", "r/.writing-x"],
)
def test_an_archive_reaches_nothing_outside_its_run(name: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    store = Store(tmp_path / "deep" / "runs")
    with pytest.raises(StoreError, match="is no packed run"):
        store.take_in(io.BytesIO(file.getvalue()), "evil")
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "runs"]


def test_a_file_that_comes_twice_is_refused(store: Store) -> None:
    twice = io.BytesIO()
    with tarfile.open(fileobj=twice, mode="w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("r/manifest.json"))
    with pytest.raises(StoreError, match="cannot be unpacked"):
        store.take_in(io.BytesIO(twice.getvalue()), "twice")


def test_a_link_in_an_archive_is_refused(store: Store) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        link = tarfile.TarInfo("r/log.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(StoreError, match=r"it holds 'r/log\.txt'"):
        store.take_in(io.BytesIO(file.getvalue()), "x")


def test_another_run_of_the_same_id_is_refused_and_the_old_one_kept(
    run: RunFolder, store: Store
) -> None:
    store.take_in(io.BytesIO(packed(run)), "x")
    other = RunFolder(store.root.parent / "other" / run.path.name)
    other.path.mkdir(parents=True)
    other.seal(manifest(run_id=run.path.name))
    with pytest.raises(StoreError, match="is there already and is another run"):
        store.take_in(io.BytesIO(packed(other)), "x")
    assert members(store.find(run.path.name)) == members(run)


def test_what_is_not_whole_is_not_packed(tmp_path: Path) -> None:
    open_run = RunFolder.create(tmp_path, "x")
    with pytest.raises(StoreError, match=r"cannot be packed: .* was not sealed"):
        packed(open_run)
    changed = sealed_run(tmp_path)
    (changed.path / "more").write_text("x")
    with pytest.raises(StoreError, match="cannot be packed: more: added"):
        packed(changed)


def test_addresses_that_cannot_be_used_are_refused_in_words(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be written to nosuch://x"):
        export_run(run, "nosuch://x")
    with pytest.raises(StoreError, match="cannot be read from"), open_packed(f"{tmp_path}/absent"):
        pass
    with pytest.raises(StoreError, match="holds no packed runs"):
        packed_runs(f"{tmp_path}/")

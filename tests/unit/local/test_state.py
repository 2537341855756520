"""Which folders are fit for the state and for sockets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpu.backends.local import LocalBackend, sockets, state
from jupyter_gpu.backends.local.state import machine_id, state_folder, write_whole
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import LocalSettings
from tests.builders import a_workload, shown


def fit(path: Path, *, make: bool = True) -> Path:
    return state_folder(LocalSettings(state_folder=path), make=make).path


def test_it_is_made_for_this_account_alone(tmp_path: Path) -> None:
    path = fit(tmp_path / "a" / "b")
    assert {folder.stat().st_mode & 0o777 for folder in (path, path / "workloads", path / "replica")} == {0o700}


def test_without_a_setting_it_is_below_jupyters_data_and_named_by_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert state_folder(LocalSettings()).path == tmp_path / "data" / "gpu" / machine_id()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    mounts = tmp_path / "mountinfo"
    point = str(home).replace(" ", r"\040")
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 8:1 / {point} rw shared:1 - {kind} server:/home rw\n")
    monkeypatch.setattr(state, "_MOUNTS", mounts)
    with pytest.raises(InvalidRequestError, match=rf"\({kind}\).*state_folder"):
        fit(home / "not" / "yet" / "there")
    assert not (home / "not").exists()
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(InvalidRequestError, match=kind):
        fit(tmp_path / "link" / "state")
    assert fit(tmp_path / "state")


def test_of_two_mounts_at_one_place_the_later_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"23 22 8:1 / {tmp_path} rw - nfs server:/home rw\n24 23 8:2 / {tmp_path} rw - xfs /dev/sdb rw\n")
    monkeypatch.setattr(state, "_MOUNTS", mounts)
    assert fit(tmp_path / "state")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "state"):
        for make in (True, False):
            with pytest.raises(InvalidRequestError, match=r"file.*state_folder"):
                fit(path, make=make)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidRequestError, match="state_folder"):
        fit(tmp_path / "a" / "state")


def test_somebody_elses_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fit(tmp_path / "state")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(InvalidRequestError, match=r"belongs to another account.*state_folder"):
        fit(path)


def test_a_folder_that_can_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write everywhere
    with pytest.raises(InvalidRequestError, match=r"not writable.*state_folder"):
        fit(tmp_path)


def test_an_open_folder_is_closed_if_it_is_ours_and_refused_if_it_is_used_for_more(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o755)
    assert fit(path).stat().st_mode & 0o777 == 0o700
    used = tmp_path / "used"
    used.mkdir(mode=0o755)
    (used / "thesis.tex").write_text("")
    with pytest.raises(InvalidRequestError, match="something else"):
        fit(used)
    assert used.stat().st_mode & 0o777 == 0o755


async def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    async with LocalBackend("local", LocalSettings(state_folder=tmp_path / "state", emulated_gpus=1)) as backend:
        documents = await backend.submit(a_workload("w-1", gpus=1), secrets={"token": "swordfish"}, dry_run=True)
    assert "swordfish" not in str(documents)
    assert not (tmp_path / "state").exists()


def test_sockets_go_into_a_private_folder_of_the_runtime(tmp_path: Path, runtime: Path) -> None:
    folder = sockets.socket_folder(tmp_path / "state", "k-1", 1)
    assert folder.parent == runtime / "jupyter-gpu"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert folder != sockets.socket_folder(tmp_path / "state", "k-1", 2)


@pytest.mark.parametrize("trouble", ["not set", "relative", "open to others", "not there", "too long"])
def test_where_the_runtime_folder_is_unfit_they_go_below_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(sockets, "_TEMPORARY", tmp_path)
    runtime = tmp_path / ("r" * 90 if trouble == "too long" else "r")
    if trouble != "not there":
        runtime.mkdir(mode=0o755 if trouble == "open to others" else 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", {"not set": "", "relative": "r"}.get(trouble, str(runtime)))
    folder = sockets.socket_folder(tmp_path / "state", "k-1", 1)
    assert folder.parent == tmp_path / f"jupyter-gpu-{os.getuid()}"


def test_a_link_that_somebody_laid_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_TEMPORARY", tmp_path)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"jupyter-gpu-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequestError, match=r"a link.*XDG_RUNTIME_DIR"):
        sockets.socket_folder(tmp_path / "state", "k-1", 1)


async def test_where_no_socket_may_go_nothing_is_queued(
    local_backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_TEMPORARY", tmp_path)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    (tmp_path / f"jupyter-gpu-{os.getuid()}").touch()
    with pytest.raises(InvalidRequestError, match="set XDG_RUNTIME_DIR"):
        await local_backend.submit(a_workload("w-1"))
    assert await shown(local_backend) == {}


def test_a_folder_that_was_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    folder = sockets.socket_folder(tmp_path / "state", "k-1", 1).parent
    folder.chmod(0o777)
    sockets.socket_folder(tmp_path / "state", "k-1", 1)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "secrets.json", {"key": "k"})
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]

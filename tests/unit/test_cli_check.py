"""``jupyter gpu check``: what works here, and what is off."""

from __future__ import annotations

from pathlib import Path

from jupyter_gpu.connection import open_connection
from jupyter_gpu.schema import Missing
from jupyter_gpu.verbs.status import missing_text
from tests.homes import Home


def _checks(home: Home, *words: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    result = home.cli("check", "--json", *words)
    found: dict[str, list[tuple[str, str]]] = {}
    for one in result.data["checks"]:
        found.setdefault(one["subject"], []).append((one["state"], one["message"]))
    assert result.data["ok"] is (result.exit_code == 0)
    return result.exit_code, found


def test_where_all_is_well_nothing_is_off(home: Home) -> None:
    home.cli("kernels", "install", "--user")
    exit_code, found = _checks(home)
    assert exit_code == 0
    assert found["configuration"] == [("ok", str(home.folder / "config" / "jupyter_gpu_config.json"))]
    assert found["profile gpu"] == [("ok", "local would take its kernels")]
    assert found["kernelspec gpu"][0][0] == "ok"
    said = " ".join(message for _, message in found["place local"])
    for words in (str(home.state), "2 nvidia.com/gpu, 2 free", "emulated", "sockets of kernels in"):
        assert words in said


def test_people_read_a_table_with_a_verdict(home: Home) -> None:
    result = home.cli("check")
    assert "profile gpu" in result.out and result.out.endswith("nothing is off\n")


def test_it_starts_and_installs_nothing(home: Home) -> None:
    home.cli("check")
    assert home.cli("list", "--all", "--json").data["workloads"] == []
    assert not (home.folder / "data" / "kernels").exists()


def test_a_profile_that_no_kernel_could_start_from_is_off(home: Home) -> None:
    home.configure(
        profiles={"huge": {"resources": {"gpus": 3}}, "gone": {"environment": {"interpreter": "/gone/python"}}, "ok": {}}
    )
    exit_code, found = _checks(home)
    assert exit_code == 1
    assert found["profile huge"][0][0] == "off" and "can never give 3 nvidia.com/gpu" in found["profile huge"][0][1]
    assert found["profile gone"][0][0] == "off" and "/gone/python" in found["profile gone"][0][1]
    assert found["profile ok"][0][0] == "ok"


def test_a_profile_without_its_place_is_off(home: Home) -> None:
    home.configure(profiles={"lost": {"place": "moon"}})
    exit_code, found = _checks(home)
    assert exit_code == 1 and found["profile lost"] == [("off", "its place 'moon' is not configured; there are: local")]


def test_a_kernelspec_without_its_profile_is_off(home: Home) -> None:
    metadata = {"kernel_provisioner": {"provisioner_name": "jupyter-gpu", "config": {"profile": "old"}}}
    home.install_kernelspec("gpu-old", {"argv": ["python3"], "display_name": "x", "language": "python", "metadata": metadata})
    exit_code, found = _checks(home)
    assert exit_code == 1 and "'old' is not configured" in found["kernelspec gpu-old"][0][1]


def test_a_place_that_cant_be_used_is_off_and_the_others_are_looked_at(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home.configure(places={"broken": {"backend": "local", "state_folder": str(tmp_path / "file" / "x")}, "local": home.local})
    exit_code, found = _checks(home)
    assert exit_code == 1
    assert found["place broken"][0][0] == "off" and "set state_folder" in found["place broken"][0][1]
    assert found["place local"][0][0] == "ok"


def test_one_place_may_be_asked_about_alone(home: Home) -> None:
    home.configure(places={"other": {**home.local, "emulated_gpus": 7}, "local": home.local})
    _, found = _checks(home, "other")
    assert "place local" not in found and "7 nvidia.com/gpu" in found["place other"][0][1]
    open_connection("other").close()


def test_a_broken_configuration_is_off_and_the_rest_is_told(home: Home) -> None:
    path = home.write_config("{", ".json")
    exit_code, found = _checks(home)
    assert exit_code == 1
    assert found["configuration"][-1][0] == "off" and str(path) in found["configuration"][-1][1]
    assert found["python"][0][0] == "ok"


def test_rights_that_lack_are_named() -> None:
    missing = Missing(what="nodes", why="free devices can't be told", right="list nodes")
    assert missing_text(missing) == "nodes can't be read: free devices can't be told (needs the right to list nodes)"

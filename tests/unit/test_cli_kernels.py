"""``jupyter gpu kernels``: profiles as kernelspecs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_gpu.verbs.kernelspecs import kernelspec_name
from tests.homes import Home

_PROFILES = {
    "gpu": {"display_name": "Python 3 (GPU)", "resources": {"gpus": 1}},
    "big": {"resources": {"gpus": 2}, "environment": {"interpreter": "/opt/big/bin/python"}},
    "julia": {"argv": ["julia", "{connection_file}"], "language": "julia", "kernelspec_metadata": {"debugger": False}},
}


def _content(folder: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((Path(folder) / "kernel.json").read_text())
    return content


def test_install_writes_a_kernelspec_for_each_profile(home: Home) -> None:
    home.configure(profiles=_PROFILES)
    done = home.cli("kernels", "install", "--user", "--json").data["kernels"]
    assert [one["name"] for one in done] == ["gpu", "gpu-big", "gpu-julia"]
    gpu, big, julia = (_content(one["folder"]) for one in done)
    assert gpu == {
        "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (GPU)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {
            "debugger": True,
            "supported_encryption": ["curve"],
            "kernel_provisioner": {"provisioner_name": "jupyter-gpu", "config": {"profile": "gpu"}},
        },
    }
    assert big["argv"][0] == "/opt/big/bin/python" and big["display_name"] == "big"  # type: ignore[index]
    assert julia["interrupt_mode"] == "signal"
    assert julia["argv"] == ["julia", "{connection_file}"] and "supported_encryption" not in julia["metadata"]  # type: ignore[operator]
    assert (Path(done[0]["folder"]) / "logo-64x64.png").exists()


def test_the_kernelspec_of_the_wheel_is_the_one_that_install_would_write(home: Home) -> None:
    shipped = json.loads((Path(__file__).parents[2] / "kernels" / "gpu" / "kernel.json").read_text())
    done = home.cli("kernels", "install", "gpu", "--user", "--json").data["kernels"]
    assert _content(done[0]["folder"]) == shipped


def test_installing_twice_changes_nothing(home: Home) -> None:
    assert "written to" in home.cli("kernels", "install", "--user").out
    assert "is already in" in home.cli("kernels", "install", "--user").out


def test_another_kernelspec_is_written_over_only_with_replace(home: Home) -> None:
    home.install_kernelspec("gpu", {"argv": ["mine"], "display_name": "mine", "language": "python"})
    refused = home.cli("kernels", "install", "--user")
    assert refused.exit_code == 4 and "--replace" in refused.err
    assert home.cli("kernels", "install", "--user", "--replace").exit_code == 0
    assert _content(str(home.folder / "data" / "kernels" / "gpu"))["display_name"] == "Python 3 (GPU)"


def test_if_one_profile_is_unknown_none_is_installed(home: Home) -> None:
    result = home.cli("kernels", "install", "gpu", "tpu", "--user")
    assert result.exit_code == 3 and "'tpu'" in result.err
    assert not (home.folder / "data" / "kernels").exists()


def test_two_profiles_of_one_name_are_refused(home: Home) -> None:
    home.configure(profiles={"a": {}, "gpu-a": {}})
    result = home.cli("kernels", "install", "--user")
    assert result.exit_code == 4 and "both become kernelspec 'gpu-a'" in result.err
    assert not (home.folder / "data" / "kernels").exists()


def test_a_prefix_is_where_it_goes(home: Home, tmp_path: Path) -> None:
    folder = home.cli("kernels", "install", "--prefix", str(tmp_path / "env"), "--json").data["kernels"][0]["folder"]
    assert folder == str(tmp_path / "env" / "share" / "jupyter" / "kernels" / "gpu")


def test_a_file_in_place_of_a_folder_is_named(home: Home, tmp_path: Path) -> None:
    (tmp_path / "share").write_text("")
    result = home.cli("kernels", "install", "--prefix", str(tmp_path))
    assert result.exit_code == 2 and str(tmp_path / "share") in result.err


def test_list_shows_ours_and_says_what_is_wrong_with_each(home: Home) -> None:
    home.configure(profiles={"gpu": {}, "gone": {"environment": {"interpreter": "/gone/python"}}, "lost": {"place": "moon"}})
    assert home.cli("kernels", "install", "--user").exit_code == 0
    home.install_kernelspec("gpu-old", {**_content(str(home.folder / "data/kernels/gpu")), "metadata": _metadata("old")})
    home.install_kernelspec("theirs", {"argv": ["x"], "display_name": "x", "language": "python", "metadata": {}})
    found = {one["name"]: one["problem"] for one in home.cli("kernels", "list", "--json").data["kernels"]}
    assert set(found) == {"gpu", "gpu-gone", "gpu-lost", "gpu-old"}
    assert found["gpu"] is None
    assert "'/gone/python', which is not there" in found["gpu-gone"]
    assert "no place 'moon'" in found["gpu-lost"]
    assert "profile 'old' is not configured" in found["gpu-old"]


def test_remove_takes_away_ours_and_no_others(home: Home) -> None:
    home.install_kernelspec("gpu-old", {"argv": ["x"], "display_name": "x", "language": "python", "metadata": _metadata("old")})
    home.install_kernelspec("theirs", {"argv": ["x"], "display_name": "x", "language": "python", "metadata": {}})
    assert home.cli("kernels", "remove", "gpu-old").exit_code == 0
    refused = home.cli("kernels", "remove", "theirs")
    assert refused.exit_code == 3 and "jupyter kernelspec remove theirs" in refused.err
    assert [path.name for path in (home.folder / "data" / "kernels").iterdir()] == ["theirs"]


@pytest.mark.parametrize(("profile", "name"), [("gpu", "gpu"), ("gpu-large", "gpu-large"), ("a100", "gpu-a100")])
def test_a_kernelspec_is_named_after_its_profile(profile: str, name: str) -> None:
    assert kernelspec_name(profile) == name


@pytest.mark.parametrize("profile", ["../..", "Größe", "x" * 300, "\N{PILE OF POO}", "a/b c"])
def test_a_kernelspec_of_a_strange_profile_has_a_name_that_jupyter_takes(profile: str) -> None:
    made = kernelspec_name(profile)
    assert made.startswith("gpu-") and len(made) <= 40 and made.isascii() and made.replace("-", "").isalnum()


def _metadata(profile: str) -> dict[str, object]:
    return {"kernel_provisioner": {"provisioner_name": "jupyter-gpu", "config": {"profile": profile}}}

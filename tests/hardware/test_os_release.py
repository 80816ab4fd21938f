import platform

from cm4vllm.hardware.os_release import os_env, os_line, read_os_release


def test_the_system_is_named_as_the_public_recipe_names_it(server):
    env = os_env(server)
    assert env["CM_HOST_OS_FLAVOR"] == "ubuntu"
    assert env["CM_HOST_OS_FLAVOR_LIKE"] == "debian"
    assert env["CM_HOST_OS_VERSION"] == "24.04"
    assert env["CM_HOST_OS_PACKAGE_MANAGER"] == "apt"
    assert env["CM_HOST_OS_MACHINE"] == platform.machine()


def test_the_machines_name_is_not_given(server):
    assert "CM_HOST_SYSTEM_NAME" not in os_env(server)
    assert platform.node() not in os_env(server).values()


def test_a_system_without_os_release_has_no_fields(tmp_path):
    assert read_os_release(tmp_path) == {}
    assert os_env(tmp_path)["CM_HOST_OS_TYPE"] == platform.system().lower()


def test_the_system_is_told_in_one_line(server, tmp_path):
    assert os_line(server).startswith("Ubuntu 24.04.1 LTS (Noble Numbat), Linux ")
    assert os_line(tmp_path / "none").startswith(f"{platform.system()}, ")

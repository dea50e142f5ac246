"""What a compose file may ask, field by field, in the forms people write and in the one that Compose prints."""

import pytest

from domain.lifecycle.compose_rules import refusals, unknown_variables


def _file(**main: object) -> dict[str, object]:
    return {"services": {"main": {"image": "x", **main}}}


@pytest.mark.parametrize(
    "main",
    [
        {"volumes": ["./a:/a:ro", "kept:/data", "/anonymous", {"type": "tmpfs", "target": "/t"}]},
        {"build": {"context": "${CONTEXT_DIR}/api", "dockerfile": "api.Dockerfile", "args": {"A": "b"}}},
        {"privileged": False, "ports": [], "cap_add": None, "x-note": "free"},
        {"network_mode": "none", "networks": {"a": {"aliases": ["b"]}}},
        {"deploy": {"replicas": 1, "resources": {"limits": {"memory": "1g"}, "reservations": {"cpus": "1"}}}},
        {"env_file": ["./settings.env", {"path": "b.env"}], "extra_hosts": ["a:127.0.0.1"]},
        {"volumes": ["${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}"]},
    ],
)
def test_what_a_box_gives_is_admitted(main: dict[str, object]) -> None:
    """Nothing is named."""
    assert list(refusals(_file(**main))) == []


@pytest.mark.parametrize(
    ("main", "named"),
    [
        ({"privileged": True}, "services.main.privileged"),
        ({"ports": ["80:80"]}, "services.main.ports"),
        ({"pid": "host"}, "services.main.pid"),
        ({"ipc": "host"}, "services.main.ipc"),
        ({"userns_mode": "host"}, "services.main.userns_mode"),
        ({"cap_add": ["SYS_ADMIN"]}, "services.main.cap_add"),
        ({"devices": ["/dev/kvm"]}, "services.main.devices"),
        ({"security_opt": ["apparmor=unconfined"]}, "services.main.security_opt"),
        ({"cgroup_parent": "/"}, "services.main.cgroup_parent"),
        ({"runtime": "runc"}, "services.main.runtime"),
        ({"container_name": "one"}, "services.main.container_name"),
        ({"extends": {"file": "/x", "service": "y"}}, "services.main.extends"),
        ({"volumes_from": ["container:other"]}, "services.main.volumes_from"),
        ({"network_mode": "host"}, "services.main.network_mode"),
        ({"network_mode": "container:x"}, "services.main.network_mode"),
        ({"volumes": ["/:/host:ro"]}, "services.main.volumes.0"),
        ({"volumes": ["/var/run/docker.sock:/s"]}, "services.main.volumes.0"),
        ({"volumes": ["~/.ssh:/s:ro"]}, "services.main.volumes.0"),
        ({"volumes": ["../other:/s:ro"]}, "services.main.volumes.0"),
        ({"volumes": ["./a/../../b:/s:ro"]}, "services.main.volumes.0"),
        ({"volumes": ["./a:/a"]}, "services.main.volumes.0"),
        ({"volumes": [{"type": "bind", "source": "/etc", "target": "/e", "read_only": True}]}, "volumes.0"),
        ({"volumes": [{"type": "bind", "source": "./a", "target": "/a"}]}, "must be read-only"),
        ({"volumes": [{"type": "npipe", "source": "./a", "target": "/a"}]}, "volumes.0.type"),
        ({"volumes": [{"type": "volume", "volume": {"subpath": "../x"}, "target": "/a"}]}, "volume.subpath"),
        ({"build": "https://host/repository.git"}, "services.main.build.context"),
        ({"build": {"context": "/etc"}}, "services.main.build.context"),
        ({"build": {"context": ".", "dockerfile": "../Dockerfile"}}, "services.main.build.dockerfile"),
        ({"build": {"context": ".", "network": "host"}}, "services.main.build.network"),
        ({"build": {"context": ".", "additional_contexts": {"a": "/"}}}, "build.additional_contexts"),
        ({"env_file": "/etc/environment"}, "services.main.env_file.0"),
        ({"extra_hosts": {"here": "host-gateway"}}, "services.main.extra_hosts"),
        ({"deploy": {"replicas": 2}}, "services.main.deploy.replicas"),
        ({"deploy": {"resources": {"reservations": {"devices": [{"count": 1}]}}}}, "reservations.devices"),
        ({"networks": {"a": {"ipv4_address": "10.0.0.1"}}}, "services.main.networks.a.ipv4_address"),
        ({"secrets": ["s"]}, "services.main.secrets"),
        ({"develop": {"watch": []}, "post_start": [{"command": "x", "privileged": True}]}, "services.main.post_start"),
    ],
)
def test_what_a_box_does_not_give_is_named(main: dict[str, object], named: str) -> None:
    """One complaint, with the place in the file."""
    found = [words for words in refusals(_file(**main)) if named in words]
    assert len(found) == 1, list(refusals(_file(**main)))


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"services": {"web": {"image": "x"}}}, "services.main: missing"),
        ({**_file(), "include": ["other.yaml"]}, "include"),
        ({**_file(), "secrets": {"s": {"file": "/etc/shadow"}}}, "secrets"),
        ({**_file(), "configs": {"c": {"file": "/etc/shadow"}}}, "configs"),
        ({**_file(), "volumes": {"v": {"driver_opts": {"o": "bind", "device": "/"}}}}, "volumes.v.driver_opts"),
        ({**_file(), "volumes": {"v": {"external": True}}}, "volumes.v.external"),
        ({**_file(), "volumes": {"v": {"driver": "sshfs"}}}, "volumes.v.driver"),
        ({**_file(), "networks": {"n": {"external": True}}}, "networks.n.external"),
        ({**_file(), "networks": {"n": {"driver": "host"}}}, "networks.n.driver"),
        ({**_file(), "networks": {"n": {"ipam": {"config": [{"subnet": "10.0.0.0/8"}]}}}}, "networks.n.ipam"),
        ({"services": {"main": []}}, "services.main: not a mapping"),
        ({"services": {f"s{number}": {"image": "x"} for number in range(17)}}, "services: 17, a box has 16 at most"),
        ([], "not a mapping"),
    ],
)
def test_what_a_file_does_not_have_is_named(document: object, named: str) -> None:
    """Above the services as below."""
    assert any(words.startswith(named) for words in refusals(document)), list(refusals(document))


def test_absolute_paths_are_a_tasks_own_below_its_directory_alone() -> None:
    """Compose writes paths out; a directory whose name only starts the same is another."""
    mount = {"type": "bind", "target": "/a", "read_only": True}
    assert list(refusals(_file(volumes=[{**mount, "source": "/run/x/a"}]), root="/run/x")) == []
    assert list(refusals(_file(volumes=[{**mount, "source": "/run/xy/a"}]), root="/run/x"))
    assert list(refusals(_file(volumes=[{**mount, "source": "/run/x/../y"}]), root="/run/x"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("${MAIN_IMAGE_NAME} $CPUS $$HOME ${A:-b} ${B-} ${C:+d} price: 5$", []),
        ("${A} and $B and ${C:?needed}", ["A", "B", "C"]),
    ],
)
def test_variables_that_nobody_sets_are_named(text: str, named: list[str]) -> None:
    """A default, or Harbor's own variables, are fine."""
    assert [words.split("}")[0].removeprefix("${") for words in unknown_variables(text)] == named


def test_variables_of_the_file_beside_are_known() -> None:
    """``.env`` is the task's own."""
    assert list(unknown_variables("${A} $B", "A=1\nexport B = 2\n# C=3\n")) == []
    assert len(list(unknown_variables("${C}", "A=1\n# C=3\n"))) == 1

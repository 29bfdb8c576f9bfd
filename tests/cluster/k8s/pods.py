"""What a pod asks of its node: a command, variables, and what is mounted where."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.k8s.objects import Object, Objects

ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
HOME = "/opt/spark"

# The image's own files lie over those of this machine, and what a pod writes there is gone with it.
_SET_UP = """
set -eu
hostname "$1"; own=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$own"
mkdir -p "$own/image"
for each in /etc /opt /var; do
  [ -d $each ] || continue
  up=$own/up$each; work=$own/work$each
  mkdir -p "$up" "$work"
  mount -t overlay overlay -o "lowerdir=$each,upperdir=$up,workdir=$work" $each
done
mkdir -p /opt/spark/jars /opt/spark/work-dir
"""


@dataclass(frozen=True)
class Image:
    """What stands for the image of ``deploy/Dockerfile``.

    Attributes:
        spark: where the jars and programs of Spark are.
        jars: beside Spark's own.
        env: the variables that the image sets.
    """

    spark: Path
    jars: Sequence[Path]
    env: Mapping[str, str]


def environment(image: Image, pod: Object) -> dict[str, str]:
    """The whole environment of the container: of this machine's nothing is inherited."""
    found = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "HOSTNAME": pod["metadata"]["name"],
        "LANG": "C.UTF-8",
        "SPARK_HOME": HOME,
        **image.env,
    }
    for each in container(pod).get("env", ()):
        source = each.get("valueFrom", {}).get("fieldRef")
        if source is None:
            found[each["name"]] = each.get("value", "")
        else:
            value = pod
            for part in source["fieldPath"].split("."):
                value = value[part]
            found[each["name"]] = str(value)
    return found


def command(pod: Object, env: Mapping[str, str]) -> list[str]:
    """What the entry point of Spark's image runs (``entrypoint.sh`` of its Dockerfile)."""
    role, *args = container(pod)["args"]
    if role == "driver":
        bind = f"spark.driver.bindAddress={env['SPARK_DRIVER_BIND_ADDRESS']}"
        return [f"{HOME}/bin/spark-submit", "--conf", bind, "--deploy-mode", "client", *args]
    if role != "executor":
        return [role, *args]
    options = sorted(
        (name for name in env if name.startswith("SPARK_JAVA_OPT_")),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    memory = env["SPARK_EXECUTOR_MEMORY"]
    return [
        f"{env['JAVA_HOME']}/bin/java",
        *(env[name] for name in options),
        *(f"-Xms{memory}", f"-Xmx{memory}", "-cp"),
        f"{env.get('SPARK_CONF_DIR', HOME + '/conf')}:{HOME}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", env["SPARK_DRIVER_URL"]),
        *("--executor-id", env["SPARK_EXECUTOR_ID"]),
        *("--cores", env["SPARK_EXECUTOR_CORES"]),
        *("--app-id", env["SPARK_APPLICATION_ID"]),
        *("--hostname", env["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", env["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", env["SPARK_EXECUTOR_POD_NAME"]),
    ]


def script(image: Image, pod: Object, kept: Objects, hosts: Path, folder: Path, token: str) -> str:
    """What makes the container, in namespaces of its own, and becomes its command.

    Raises:
        RefusedError: a volume names what is not there yet; a node waits for it.
    """
    lines = [_SET_UP]
    lines += [f"ln -s {_q(image.spark / each)} {HOME}/" for each in ("bin", "python", "sbin")]
    jars = " ".join(map(_q, image.jars))
    lines.append(f"ln -s {_q(image.spark / 'jars')}/*.jar {jars} {HOME}/jars/")
    lines.append(f"mount --bind {_q(hosts)} /etc/hosts")
    account = folder / "account"
    account.mkdir(exist_ok=True)
    (account / "token").write_text(token)
    (account / "namespace").write_text("default")
    # /var/run leads to /run, which is this machine's.
    lines += ["mount -t tmpfs tmpfs /run", *_bound(account, ACCOUNT_FOLDER)]
    volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
    for mounted in container(pod).get("volumeMounts", ()):
        volume, path = volumes[mounted["name"]], mounted["mountPath"]
        if "hostPath" in volume:
            lines += _bound(Path(volume["hostPath"]["path"]), path)
        elif "emptyDir" in volume:
            lines.append(f"mkdir -p {_q(path)}")
        else:
            lines += _bound(_files(volume, kept, folder), path)
    lines.append(f'cd {HOME}/work-dir; shift 2; exec "$@"')
    return "\n".join(lines)


def container(pod: Object) -> Object:
    """The only one that Spark's pods have."""
    (found,) = pod["spec"]["containers"]
    return dict(found)


def _files(volume: Object, kept: Objects, folder: Path) -> Path:
    """The files of a ConfigMap or of a Secret."""
    made = folder / f"volume-{volume['name']}"
    if "configMap" in volume:
        data = kept.get("configmaps", volume["configMap"]["name"]).get("data", {})
        files = {name: text.encode() for name, text in data.items()}
    else:
        data = kept.get("secrets", volume["secret"]["secretName"]).get("data", {})
        files = {name: base64.b64decode(text) for name, text in data.items()}
    made.mkdir(mode=0o700, exist_ok=True)
    for name, content in files.items():
        (made / name).write_bytes(content)
    return made


def _bound(source: Path, path: str) -> list[str]:
    return [f"mkdir -p {_q(path)}", f"mount --bind {_q(source)} {_q(path)}"]


def _q(what: str | os.PathLike[str]) -> str:
    return shlex.quote(os.fspath(what))

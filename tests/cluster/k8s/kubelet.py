"""The node: it runs the pods that are made, says how they are, and ends those that are deleted."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from airflow_eos.local.process import guarded
from tests.cluster.k8s.objects import Object, Objects, RefusedError
from tests.cluster.k8s.pods import Image, command, environment, script
from tests.cluster.k8s.rights import Rights

_UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_LOOK_S = 0.1


class Kubelet:
    """One node with room for all pods; ``restartPolicy`` is ``Never``, as Spark has it."""

    def __init__(self, objects: Objects, rights: Rights, image: Image, folder: Path) -> None:
        self._objects = objects
        self._rights = rights
        self._image = image
        self._folder = folder
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._addresses = itertools.count(2)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = False
        threading.Thread(target=self._watch, name="kubelet", daemon=True).start()

    def pids(self, name: str) -> list[int]:
        """The processes of a pod, as this machine numbers them."""
        process = self._running.get(name)
        if process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        return []

    def kill(self, name: str) -> None:
        """End a pod's processes at once, as a machine that is lost does."""
        # unshare's child is the first process of the pod: the kernel ends the others with it.
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self, name: str) -> Path:
        """What a pod says."""
        return self._folder / f"{name}.log"

    def said(self) -> str:
        """What all pods said last."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def close(self) -> None:
        self._ended = True
        for name in list(self._running):
            self.kill(name)

    def _watch(self) -> None:
        for event in self._objects.watch("pods", 0, lambda _: True):
            if self._ended:
                return
            if event is not None and event.kind == "ADDED":
                name = event.seen["metadata"]["name"]
                threading.Thread(target=self._run, args=(name,), name=name, daemon=True).start()

    def _run(self, name: str) -> None:
        try:
            process = self._start(name)
        except RefusedError as error:
            self.log(name).write_text(f"{error.reason}: {error}\n")
            self._say(name, "Failed", {"terminated": {"exitCode": 128, "reason": error.reason}})
            return
        self._running[name] = process
        told_to_end: float | None = None
        while process.poll() is None and not self._ended:
            time.sleep(_LOOK_S)
            told_to_end = self._end_if_deleted(name, told_to_end)
        code = process.wait()
        del self._running[name]
        reason = "Completed" if code == 0 else "Error"
        ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now()}}
        self._say(name, "Succeeded" if code == 0 else "Failed", ended)
        if "deletionTimestamp" in self._objects.get("pods", name)["metadata"]:
            self._objects.remove("pods", name)
        self._resolve()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        pod = self._objects.get("pods", name)
        pod["status"] = {"podIP": f"127.0.1.{next(self._addresses)}"}
        token = self._rights.token_of(pod["spec"].get("serviceAccountName", "default"))
        deadline = time.monotonic() + 60
        while True:  # what it mounts may be made after it
            try:
                made = script(self._image, pod, self._objects, self._hosts, folder, token)
                break
            except RefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)
        env = environment(self._image, pod)
        self._say(name, "Running", {"running": {"startedAt": _now()}}, pod["status"])
        self._resolve()
        own = folder / "own"
        own.mkdir()
        whole = [*_UNSHARE, "sh", "-c", made, "sh", name, str(own), *command(pod, env)]
        return guarded(whole, folder=folder, log=self.log(name), env=env)

    def _end_if_deleted(self, name: str, told_to_end: float | None) -> float | None:
        meta = self._objects.get("pods", name)["metadata"]
        if "deletionTimestamp" not in meta:
            return None
        if told_to_end is None:
            for pid in self.pids(name)[1:2]:  # the command; before it is what made the container
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            return time.monotonic()
        if time.monotonic() - told_to_end > meta["deletionGracePeriodSeconds"]:
            self.kill(name)
        return told_to_end

    def _say(
        self, name: str, phase: str, state: dict[str, Any], more: dict[str, Any] | None = None
    ) -> None:
        running = phase == "Running"

        def said(pod: Object) -> Object:
            image = pod["spec"]["containers"][0]
            status = {
                "name": image["name"],
                "image": image["image"],
                "imageID": image["image"],
                "ready": running,
                "started": running,
                "restartCount": 0,
                "state": state,
            }
            ready = {"type": "Ready", "status": str(running)}
            pod["status"] |= {"phase": phase, "conditions": [ready], "containerStatuses": [status]}
            pod["status"] |= more or {}
            return pod

        with suppress(RefusedError):
            self._objects.change("pods", name, said)

    def _resolve(self) -> None:
        """What the cluster's DNS answers: the address of the running pod behind each service."""
        services, _ = self._objects.find("services", lambda _: True)
        pods, _ = self._objects.find("pods", lambda it: it["status"]["phase"] == "Running")
        lines = ["127.0.0.1 localhost"]
        lines += [f"{each['status']['podIP']} {each['metadata']['name']}" for each in pods]
        for service in services:
            wanted = service["spec"].get("selector", {}).items()
            name = service["metadata"]["name"]
            lines += [
                f"{each['status']['podIP']} {name}.default.svc"
                for each in pods
                if wanted <= each["metadata"].get("labels", {}).items()
            ]
        self._hosts.write_text("\n".join(lines) + "\n")  # in place: it is mounted


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

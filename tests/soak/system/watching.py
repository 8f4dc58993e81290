"""All pods and nodes as the API server tells of them, by list and watch, without any code of gputile."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx

from tests.localcluster.client import Api, ApiError

AGAIN_AFTER_S = 0.5
SILENT_FOR_S = 12.0
SEEN = Callable[[str, dict[str, Any]], None]  # "ADDED", "MODIFIED" or "DELETED", and the object


class Mirror:
    """The objects at ``path``, by UID, kept up to date by a thread. ``seen`` is told of each change, in order."""

    def __init__(self, api: Api, path: str, seen: SEEN | None = None) -> None:
        self._api, self._path, self._seen = api, path, seen
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, Any]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mirror of {path}", daemon=True)
        self.fresh = 0.0  # monotonic time when the API server was last heard of
        self.problem: BaseException | None = None

    def __enter__(self) -> "Mirror":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SILENT_FOR_S + 10)

    def all(self) -> list[dict[str, Any]]:
        """Return the objects as of one moment."""
        with self._lock:
            return list(self._objects.values())

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                with contextlib.suppress(httpx.HTTPError, ApiError, json.JSONDecodeError):
                    self._watch(self._list())
                self._ending.wait(AGAIN_AFTER_S)
        except BaseException as error:
            self.problem = error

    def _list(self) -> str:
        answer = self._api.get(self._path)
        listed = {each["metadata"]["uid"]: each for each in answer["items"]}
        with self._lock:
            gone = [known for uid, known in self._objects.items() if uid not in listed]
            news = [
                ("MODIFIED" if uid in self._objects else "ADDED", each)
                for uid, each in listed.items()
                if self._objects.get(uid, {}).get("metadata", {}).get("resourceVersion")
                != each["metadata"]["resourceVersion"]
            ]
            self._objects = listed
        self.fresh = time.monotonic()
        for each in gone:
            self._tell("DELETED", each)
        for kind, each in news:
            self._tell(kind, each)
        return str(answer["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "5"}
        while not self._ending.is_set():
            with self._api.http.stream("GET", self._path, params=query, timeout=SILENT_FOR_S) as answer:
                if answer.is_error:
                    return
                for line in answer.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    self.fresh = time.monotonic()
                    query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["type"], event["object"])
            self.fresh = time.monotonic()

    def _take(self, kind: str, each: dict[str, Any]) -> None:
        uid = each["metadata"]["uid"]
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(uid, None)
            else:
                self._objects[uid] = each
        self._tell(kind, each)

    def _tell(self, kind: str, each: dict[str, Any]) -> None:
        if self._seen is not None:
            self._seen(kind, each)

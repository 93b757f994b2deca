"""A sweep on an existing cluster: joblib with Dask or Ray behind it. The extra `sweep` installs what it needs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from topologies.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

BACKENDS = ("local", "dask", "ray")
_WAVE = 4
"""Chunks for each of Ray's workers between two looks at the results."""
_PATIENCE = 10.0
"""Seconds for a scheduler to answer."""


@contextmanager
def cluster(backend: str, address: str) -> Iterator[Cluster]:
    """A pool on the scheduler at `address`. Raises `BadInput` when it cannot be reached or a package is missing."""
    if backend not in BACKENDS:
        raise BadInput(f"unknown backend '{backend}'. Allowed: {', '.join(BACKENDS)}")
    try:
        import joblib
    except ImportError:
        raise BadInput(f'--backend {backend} needs joblib: pip install "steptwin[sweep]"') from None
    client = _connect(backend, address)

    try:
        with joblib.parallel_config(backend="loky" if backend == "local" else backend):
            yield Cluster(joblib, backend)
    finally:
        if client is not None:
            client.close()


class Cluster:
    """Where chunks of a sweep run: joblib with one of its backends."""

    def __init__(self, joblib: Any, backend: str) -> None:
        self._joblib, self._backend = joblib, backend

    def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
        """Results come as they are ready, those of Ray a wave at a time."""
        joblib = self._joblib
        calls = (joblib.delayed(function)(chunk) for chunk in chunks)
        if self._backend != "ray":
            yield from joblib.Parallel(n_jobs=-1, return_as="generator_unordered")(calls)
            return
        # Ray's backend returns nothing before the end: a wave at a time, so that what is computed is kept as it comes.
        wave = _WAVE * joblib.effective_n_jobs(-1)
        while some := list(islice(calls, wave)):
            yield from joblib.Parallel(n_jobs=-1)(some)


def _connect(backend: str, address: str) -> Any:
    if backend == "local":
        return None
    if not address:
        raise BadInput(f"--backend {backend} needs --address of a running scheduler, e.g. tcp://host:8786")
    try:
        if backend == "dask":
            return import_module("distributed").Client(address, timeout=_PATIENCE)
        import ray
        from ray.util.joblib import register_ray

        _reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        register_ray()
        return _Joined(ray)
    except ImportError as error:
        raise BadInput(f"--backend {backend} needs a package that is not installed ({error.name})") from None
    except (OSError, TimeoutError, ValueError, ConnectionError, RuntimeError) as error:
        raise BadInput(f"no {backend} scheduler answers at {address}: {error}. Start one, or check the address") from None


def _reachable(address: str) -> None:
    """Raises `OSError` where nothing listens: Ray itself would try for a minute, then end the process. Words like "auto" pass."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


class _Joined:
    """This process in a Ray cluster, until `close`."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def close(self) -> None:
        self._ray.shutdown()

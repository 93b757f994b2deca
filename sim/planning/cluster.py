"""A sweep on an existing cluster: joblib with Dask or Ray behind it. The extra `sweep` installs what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from sim.planning.pool import Pool
from topologies.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

BACKENDS = ("local", "dask", "ray")


@contextmanager
def cluster(backend: str, address: str) -> Iterator[Pool]:
    """A pool on the scheduler at `address`. Raises `BadInput` when it cannot be reached or a package is missing."""
    if backend not in BACKENDS:
        raise BadInput(f"unknown backend '{backend}'. Allowed: {', '.join(BACKENDS)}")
    try:
        import joblib
    except ImportError:
        raise BadInput(f'--backend {backend} needs joblib: pip install "steptwin[sweep]"') from None
    client = _connect(backend, address)

    class Cluster:
        def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
            run = joblib.Parallel(n_jobs=-1, return_as="generator_unordered" if backend != "ray" else "generator")
            yield from run(joblib.delayed(function)(chunk) for chunk in chunks)

    try:
        with joblib.parallel_config(backend="loky" if backend == "local" else backend):
            yield Cluster()
    finally:
        if client is not None and hasattr(client, "close"):
            client.close()


def _connect(backend: str, address: str) -> Any:
    if backend == "local":
        return None
    if not address:
        raise BadInput(f"--backend {backend} needs --address of a running scheduler, e.g. tcp://host:8786")
    try:
        if backend == "dask":
            return import_module("distributed").Client(address, timeout=10)
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=address)
        register_ray()
    except ImportError as error:
        raise BadInput(f"--backend {backend} needs a package that is not installed ({error.name})") from None
    except (OSError, TimeoutError, ValueError, ConnectionError) as error:
        raise BadInput(f"no {backend} scheduler answers at {address}: {error}. Start one, or check the address") from None
    return None

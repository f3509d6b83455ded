"""Repair of stores that are damaged or differ from their changelogs: folders are moved away."""

from __future__ import annotations

from functools import partial

from strandline.changelog.embedded.repairing.plan import RepairPlan
from strandline.changelog.storage import Storage
from strandline.statestore.checking.stores import CheckedStores
from strandline.statestore.engines.folders import lock_folder


def add_stores(plan: RepairPlan, stores: CheckedStores) -> None:
    """Add the repair of these stores to a plan. Each is then restored from its changelog."""
    for folder in stores.bad:
        what = f"move {folder} away: the store is restored from its changelog"
        plan.add(what, partial(_move, folder))


def _move(folder: str, storage: Storage, kept: str) -> None:
    target = f"{kept}/{folder}"
    storage.make_dir(_parent(target))
    lock = lock_folder(storage, folder)  # a worker that lost its log may still have it open
    try:
        storage.rename(folder, target)
        storage.sync_dir(_parent(target))
        storage.sync_dir(_parent(folder))
    finally:
        lock.release()


def _parent(path: str) -> str:
    return path.rpartition("/")[0]

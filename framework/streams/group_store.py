"""Handle of the store of an aggregation, whose readers see figures and not states."""

from __future__ import annotations

from typing import Any

from strandline.framework.parts import Merge
from strandline.framework.session import Session
from strandline.framework.store import Store
from strandline.framework.streams.stored_groups import StoredGroups
from strandline.framework.streams.windows import SessionWindow
from strandline.statestore.aggregates import Aggregates
from strandline.statestore.spec import StoreSpec


class GroupStore(Store[Any, Any]):
    """State of the aggregation of a stream: `App.query` reads its groups and windows."""

    def __init__(
        self,
        session: Session,
        spec: StoreSpec[Any, Any],
        groups: StoredGroups,
        kept: Aggregates,
    ) -> None:
        super().__init__(session, spec)
        self.groups = groups
        """Layout of the store, with the functions of the app's reducers."""
        self._kept = kept

    def shown(self, value: Any) -> Any:
        """Return the figures of a stored state; of a session, also its start and end."""
        return self.groups.typed(self._kept.result(value))

    @property
    def merge(self) -> Merge[Any] | None:
        """Function that merges the states that several partitions hold of one key, or None."""
        aggregates = self.groups.aggregates
        is_session = isinstance(self.groups.window, SessionWindow)  # they have numbers of their own
        return aggregates.merge if aggregates.can_merge and not is_session else None

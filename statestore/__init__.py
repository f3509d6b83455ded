"""Key/value state that is restored from a changelog.

`open_store` opens one partition of a store (`store.py` shows its layers in one expression), and
`restore_all` restores several at once. `keys` and `serdes` encode keys and values, `aggregates`
keeps counts and sums, and `engines` store the committed bytes.
"""

from strandline.statestore.aggregates import (
    Aggregate,
    Aggregates,
    AggregateStore,
    CounterStore,
    counter_spec,
)
from strandline.statestore.changelogged import ChangelogBatch
from strandline.statestore.engine import Engine, StorePosition
from strandline.statestore.keys import KeyCodec, decode_key, key_codec
from strandline.statestore.replay import ReplayProgress
from strandline.statestore.restore import Restored, RestorePlan, plan_restore, restore_all
from strandline.statestore.serdes import (
    Bytes,
    Double,
    Long,
    MessagePack,
    Serde,
    TypedMessagePack,
    Utf8,
    topic_key_serde,
    value_serde,
)
from strandline.statestore.spec import StoreLimits, StoreSpec
from strandline.statestore.store import PartitionStore, open_store

__all__ = [
    "StoreSpec",
    "StoreLimits",
    "open_store",
    "PartitionStore",
    "ChangelogBatch",
    "Aggregate",
    "Aggregates",
    "AggregateStore",
    "CounterStore",
    "counter_spec",
    "Engine",
    "StorePosition",
    "RestorePlan",
    "ReplayProgress",
    "Restored",
    "plan_restore",
    "restore_all",
    "KeyCodec",
    "key_codec",
    "decode_key",
    "Serde",
    "MessagePack",
    "TypedMessagePack",
    "Bytes",
    "Utf8",
    "Long",
    "Double",
    "value_serde",
    "topic_key_serde",
]

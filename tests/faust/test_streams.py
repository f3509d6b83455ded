"""Operations of Faust's streams, each once for each record, from one source topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from strandline import changelog
from tests.faust.faust_workers import append, by_key, eventually, in_folder, latest, rows, worker

ORDERS = [{"account": f"a{n % 4}", "amount": n} for n in range(20)]
SPENT = "streams-spent-changelog"


def test_each_operation_gives_each_record_once(tmp_path: Path) -> None:
    large = [one for one in ORDERS if one["amount"] > 5]
    spent: Counter[str] = Counter()
    for one in large:
        spent[str(one["account"])] += int(one["amount"])
    all_of = {
        "large": Counter(f"{one['account']} {one['amount']}" for one in large),
        "through": Counter(f"{one['account']} {one['amount']}" for one in ORDERS),
        "isolated": Counter({"True": 20}),
        "noack": Counter(str(one["account"]) for one in ORDERS),
        "task": Counter(f"{one['account']} {int(one['amount']) * 2}" for one in ORDERS),
        "service": Counter({"started": 1}),
    }
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("orders", 2)
        append(log, "orders", ORDERS, [str(one["account"]) for one in ORDERS])
        with worker("sample_streams", in_folder(tmp_path), tmp_path) as running:

            def found() -> dict[str, Counter[str]]:
                return {key: Counter(of) for key, of in by_key(log, "found").items()}

            eventually(lambda: all_of.items() <= found().items())
            eventually(lambda: len(by_key(log, "found").get("enumerate", ())) == 20)
            eventually(lambda: latest(log, SPENT) == spent)
            eventually(lambda: len(rows(log, "forwarded")) == len(rows(log, "echoed")) == 20)
            assert running.stop() == 0
        numbers = [int(text.split()[0]) for text in by_key(log, "found")["enumerate"]]
        assert sorted(numbers) == list(range(1, 21))
        assert all_of.items() <= found().items()
        with worker(
            "sample_streams", in_folder(tmp_path), tmp_path
        ) as running:  # and nothing is handled again
            eventually(lambda: found()["service"] == Counter({"started": 2}))
            assert running.stop() == 0
        assert found()["through"] == all_of["through"]
        assert found()["noack"] == all_of["noack"]


def test_a_batch_of_a_grouped_or_relayed_stream_is_committed_with_its_records(
    tmp_path: Path,
) -> None:
    where = in_folder(tmp_path)
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("source", 1)
        log.create_topic("ticks", 1)
        append(log, "source", [1, 2, 3], ["a", "b", "c"])
        with worker("sample_grouped_batches", where, tmp_path, FAUST_SLEEP="60") as running:
            for agent in ("group", "relay"):
                eventually(lambda agent=agent: f"{agent} has sent a batch" in running.text())
            append(log, "ticks", [9], ["t"])
            eventually(lambda: "tick" in by_key(log, "outgoing"))  # a commit after the batches
            running.kill()
        assert by_key(log, "outgoing") == {"tick": [9]}
        with worker("sample_grouped_batches", where, tmp_path, FAUST_SLEEP="0") as running:
            eventually(lambda: len(rows(log, "outgoing")) == 7)
            assert running.stop() == 0
        found = {key: sorted(values) for key, values in by_key(log, "outgoing").items()}
        assert found == {"tick": [9], "group": [1, 2, 3], "relay": [1, 2, 3]}

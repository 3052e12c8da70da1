"""Bugs that are planted into production code to see that the simulated world finds them.

Each replaces one function by a version with one fault, as it might be written by mistake. `within` is the number of
seeds, from the first on, in which it must have been found; `seed` is one that finds it. Those of `plain` worlds are
about relays without a log. A bug is found by a promise that it breaks, not by an exception: unless it `breaks_the_code`
by its nature, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apsw
import msgspec
import pytest

from anabranch.core import clock, nostr, retention, revisions, snapshots
from anabranch.core.checkpoint import Checkpoint
from anabranch.core.token import Gap, GapReason, Log, Position, ProgressToken
from anabranch.node import admission, hub, reconciliation, replay
from anabranch.replicate import applying, comparisons, link, manner, peers, push, repair, settled, standing
from anabranch.replicate.effects import SavePush
from anabranch.sim import host
from anabranch.store import held, sql_reader, sql_writer, sqlite
from anabranch.store.contract import LinkChange, StoreError
from anabranch.wire import messages

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Bug:
    name: str
    plant: Plant
    seed: int
    within: int
    plain: bool = False
    breaks_the_code: bool = False


BUGS: list[Bug] = []


def bug(seed: int, within: int, plain: bool = False, breaks_the_code: bool = False) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS.append(Bug(plant.__name__, plant, seed, within, plain, breaks_the_code))
        return plant

    return add


# --- durability and the log ----------------------------------------------------------------------------------------


@bug(seed=0, within=10)
def acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = admission.Admission._commit

    def early(self: Any) -> None:
        for publisher, offer in self._proven:
            publisher.acknowledge(messages.ok(offer.operation.event.id, True), 0)
        commit(self)

    patch.setattr(admission.Admission, "_commit", early)


@bug(seed=18, within=20)
def commits_that_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    tuned = sqlite.tuned
    patch.setattr(sqlite, "tuned", lambda connection, synchronous: tuned(connection, "OFF"))


@bug(seed=4, within=10, breaks_the_code=True)
def a_group_that_is_no_transaction(patch: pytest.MonkeyPatch) -> None:
    """The half of a group that a crash leaves behind holds positions that the log does not know of: from then on the
    store refuses every group, and that is what the node logs."""

    @contextmanager
    def statement_by_statement(db: Any) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise StoreError(str(error)) from error

    patch.setattr(sql_writer, "transaction", statement_by_statement)


@bug(seed=11, within=20)
def a_restored_backup_that_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(held, "notice_restore", lambda writer, seen, moved=False: False)


@bug(seed=1, within=10)
def signatures_that_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host.HostProver, "submit", lambda self, proofs, done: done(b"\1" * (len(proofs) // 128)))
    patch.setattr(nostr, "verify", lambda events: [True for _ in events])


# --- the feed ------------------------------------------------------------------------------------------------------


@bug(seed=16, within=30)
def a_floor_that_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def gap(log: Log, since: Position) -> Gap | None:
        if since < log.floor - 2:
            return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_OLD)
        return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_NEW) if since > log.tip else None

    patch.setattr(replay, "gap", gap)


@bug(seed=5, within=20)
def a_gap_that_is_served_in_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay, "gap", lambda log, since: None)


@bug(seed=4, within=10)
def a_hand_off_that_loses_one(patch: pytest.MonkeyPatch) -> None:
    join = hub.Hub.join
    patch.setattr(hub.Hub, "join", lambda self, sub, at: join(self, sub, min(self.tip, at + 1)))


@bug(seed=0, within=10)
def a_hand_off_that_repeats_one(patch: pytest.MonkeyPatch) -> None:
    join = hub.Hub.join
    patch.setattr(hub.Hub, "join", lambda self, sub, at: join(self, sub, max(0, at - 1)))


@bug(seed=0, within=10)
def a_page_that_says_it_is_complete_when_it_was_cut(patch: pytest.MonkeyPatch) -> None:
    page = sql_reader._page

    def to_the_end(rows: Any, cut: Any, since: Any, last: Any, limit: Any, log: Any, now: Any) -> Any:
        found = page(rows, cut, since, last, limit, log, now)
        return type(found)(found.entries, max(found.complete_to, last), found.log)

    patch.setattr(sql_reader, "_page", to_the_end)


# --- forgetting ----------------------------------------------------------------------------------------------------


@bug(seed=21, within=30)
def compaction_that_takes_a_head(patch: pytest.MonkeyPatch) -> None:
    keep = retention.keep

    def too_few(versions: Any, policy: Any, now: int, horizons: Any = ()) -> frozenset[Position]:
        kept = keep(versions, policy, now, horizons)
        return kept - {max(kept)} if len(kept) > 1 else kept

    drop = sql_writer.SqlWriter._drop
    patch.setattr(retention, "keep", too_few)
    patch.setattr(
        sql_writer.SqlWriter,
        "_drop",
        lambda self, positions, state, reason, condition="", hard=False: drop(
            self, positions, state, reason, "1 = 1", hard
        ),
    )


# --- the families --------------------------------------------------------------------------------------------------


@bug(seed=56, within=100)
def a_twin_that_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def advance(current: Any, version: Any) -> list[Any]:
        if any(head.clock == version.clock for head in current):
            return list(current)
        return _advance(current, version)

    _advance = snapshots.advance
    patch.setattr(snapshots, "advance", advance)


@bug(seed=2, within=10)
def a_clock_that_overlooks_what_is_missing(patch: pytest.MonkeyPatch) -> None:
    def dominates(a: Any, b: Any) -> bool:
        return a != b and all(a[name] >= count for name, count in b.items() if name in a)

    patch.setattr(clock, "dominates", dominates)


@bug(seed=0, within=10)
def a_late_parent_that_becomes_a_head(patch: pytest.MonkeyPatch) -> None:
    advance = revisions.advance
    patch.setattr(revisions, "advance", lambda current, one, parents, named: advance(current, one, parents, False))


@bug(seed=6, within=10)
def a_deletion_that_is_forgotten_when_it_comes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_writer._Group, "_is_deleted", lambda self, operation, id: False)


@bug(seed=1, within=10)
def a_tie_that_the_last_to_arrive_wins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nostr, "newer", lambda a_at, a_id, b_at, b_id: a_at > b_at)


@bug(seed=0, within=10)
def heads_that_are_not_demoted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_writer._Group, "_demote", lambda self, positions: None)


# --- digests -------------------------------------------------------------------------------------------------------


@bug(seed=1, within=10)
def a_kept_set_that_misses_what_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation.Sets, "removed", lambda self, removals: None)


@bug(seed=0, within=10)
def a_kept_set_that_misses_what_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation.Sets, "published", lambda self, operations: None)


# --- links ---------------------------------------------------------------------------------------------------------


def checkpoint_early(patch: pytest.MonkeyPatch, concerns: Callable[[ProgressToken], bool]) -> None:
    """The checkpoint of a page is written before the page, where its last token `concerns` the bug."""
    store = applying.Page.store

    async def early(self: Any, checkpoint: Checkpoint) -> Any:
        tokens = [arrival.token for arrival in self._asked.arrivals if arrival.token is not None]
        if tokens and concerns(tokens[-1]):
            change = LinkChange(self._link, pull=Checkpoint.at(tokens[-1]))
            await self._host.write(lambda writer: writer.note_link(change))
        return await store(self, checkpoint)

    patch.setattr(applying.Page, "store", early)


@bug(seed=1, within=10)
def a_checkpoint_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    checkpoint_early(patch, lambda token: True)


@bug(seed=6, within=20)
def a_gap_that_is_jumped_over(patch: pytest.MonkeyPatch) -> None:
    reconcile = link.Link._reconcile

    def jump(self: Any, now: float) -> Any:
        if self.pull.contiguous is None:
            return reconcile(self, now)
        self._target = peers.tip(self.peer, self._epoch, self._wall())
        return [*self._save_pull(), *self._subscribe(now)]

    patch.setattr(link.Link, "_reconcile", jump)


@bug(seed=12, within=20)
def a_repair_that_fetches_nothing(patch: pytest.MonkeyPatch) -> None:
    unknown = repair.Round.unknown
    patch.setattr(repair.Round, "unknown", lambda self, ids: unknown(self, []))


@bug(seed=12, within=30)
def a_repair_without_a_comparison(patch: pytest.MonkeyPatch) -> None:
    start = link.Link._start_round

    def believe(self: Any, now: float, closes: bool, pushes: bool) -> Any:
        if self.phase is link.Phase.RECONCILING:
            return start(self, now, closes, pushes)
        self._comparisons.equal, self._comparisons.equal_as_of = True, now
        return self._verified(now)

    patch.setattr(link.Link, "_start_round", believe)


@bug(seed=2, within=10)
def an_echo_that_is_sent_back(patch: pytest.MonkeyPatch) -> None:
    advance = applying.Page._advance
    patch.setattr(
        applying.Page,
        "_advance",
        lambda self, checkpoint, outcomes: msgspec.structs.replace(advance(self, checkpoint, outcomes), echoes=()),
    )


@bug(seed=0, within=10)
def a_push_that_counts_what_was_not_answered(patch: pytest.MonkeyPatch) -> None:
    publish = push.Pusher._publish
    patch.setattr(push.Pusher, "_publish", lambda self, now: [SavePush(Checkpoint.at(self._next)), *publish(self, now)])


@bug(seed=36, within=60)
def a_peer_whose_signatures_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    prove = applying.Page.prove

    async def trusting(self: Any) -> None:
        await prove(self)
        self._forged = ()

    patch.setattr(applying.Page, "prove", trusting)


@bug(seed=0, within=10)
def a_link_that_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    retreat = link.Link._retreat

    def for_good(self: Any, *args: Any) -> Any:
        effects = retreat(self, *args)
        self.retry_at = None
        return effects

    patch.setattr(link.Link, "_retreat", for_good)


@bug(seed=1, within=20)
def a_difference_of_which_one_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    unknown = repair.Round.unknown
    patch.setattr(repair.Round, "unknown", lambda self, ids: unknown(self, list(ids)[1:]))


@bug(seed=0, within=10)
def a_link_that_is_caught_up_while_something_is_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(standing.Standing, "_quiet", True)


@bug(seed=0, within=10)
def a_push_that_counts_as_settled_before_it_is_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(push.Pusher, "settled", True)


# --- plain relays --------------------------------------------------------------------------------------------------


@bug(seed=0, within=10, plain=True)
def a_checkpoint_before_the_commit_of_what_a_plain_relay_gave(patch: pytest.MonkeyPatch) -> None:
    checkpoint_early(patch, lambda token: peers.is_plain(token.stream))


@bug(seed=1, within=60, plain=True)
def only_what_was_made_lately_is_compared(patch: pytest.MonkeyPatch) -> None:
    """And the stream has nothing that is dated back either."""
    patch.setattr(manner.Survey, "lost", lambda self: setattr(self, "complete", True))
    request = peers.request

    def lately(*args: Any) -> bytes:
        asked = request(*args)
        parts = msgspec.json.decode(asked)
        return msgspec.json.encode(parts[:3]) if parts[0] == "REQ" else asked

    patch.setattr(peers, "request", lately)


@bug(seed=29, within=100, plain=True)
def what_was_answered_for_once_counts_for_ever(patch: pytest.MonkeyPatch) -> None:
    def give(self: Any, id: str) -> None:
        self._vain.add(id)

    patch.setattr(settled.Settled, "give", give)
    patch.setattr(settled.Settled, "push", give)
    patch.setattr(settled.Settled, "clear", settled.Settled.lost)


@bug(seed=18, within=30, plain=True)
def a_relay_that_was_put_back_is_taken_for_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(link.Link, "_ask_anchor", lambda self, now: self._begin(None, now))
    patch.setattr(manner.Survey, "lost", lambda self: setattr(self, "complete", True))


@bug(seed=95, within=120, plain=True)
def differences_that_count_as_equal_until_they_stay(patch: pytest.MonkeyPatch) -> None:
    """The next comparison finds them again, and they are closed: in the end nothing is missing. Only that the link said
    it was caught up can be seen, and only while it says so."""
    judge = comparisons.Comparisons.judge

    def hasty(self: Any, found: Any, certain: bool = True, began: float = 0.0) -> Any:
        verdict = judge(self, found, certain, began)
        if verdict is comparisons.Verdict.UNCLEAR and certain:
            self.equal, self.equal_as_of = True, began
        return verdict

    patch.setattr(comparisons.Comparisons, "judge", hasty)
